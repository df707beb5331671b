"""What a store has changed in memory and not yet on disk: collected step by step, written all
together.
"""

from __future__ import annotations

import attrs

from runtime.store.interface import Entry, StoreEvent
from runtime.store.memory import StoreMachine


@attrs.define
class Changes:
    """The changes since the last that was written.

    `entries` and `leases` hold what is there now, or None for what is there no more. `everything`:
    `events` lacks some, so the machine must be written as a whole.
    """

    revision: int = 0
    compacted: int = 0
    next_lease: int = 0
    entries: dict[str, Entry | None] = attrs.field(factory=dict)
    leases: dict[int, float | None] = attrs.field(factory=dict)
    events: list[StoreEvent] = attrs.field(factory=list)
    everything: bool = False

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to write."""
        return not self.revision

    def note(self, machine: StoreMachine, before: int, leases_before: frozenset[int]) -> bool:
        """Add what a step did, which began at revision `before` with these leases; False if it
        changed nothing that lasts.
        """
        leases = machine.leases
        assert machine.revision >= before >= self.revision, "steps are noted in their order"
        if machine.revision == before and leases.keys() == leases_before:
            return False
        # The key as it is now, not as the event says: of several changes only the last is written.
        for event in machine.events_after(before):
            self.events.append(event)
            self.entries[event.key] = machine.get(event.key)
        # A step so large that it pushed its own beginning out of the history.
        self.everything |= machine.compacted > before
        for lease in leases_before - leases.keys():
            self.leases[lease] = None
        for lease in leases.keys() - leases_before:
            self.leases[lease] = leases[lease]
        self.revision, self.compacted, self.next_lease = (
            machine.revision,
            machine.compacted,
            machine.next_lease,
        )
        assert self.compacted <= self.revision
        assert all(0 < lease < self.next_lease for lease in self.leases)
        return True
