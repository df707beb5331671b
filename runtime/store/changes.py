"""The changes of a store that are in memory but not yet on disk. They are collected step by step
and written in one commit.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from runtime.store.interface import Entry, StoreEvent
from runtime.store.memory import StoreMachine


@attrs.define
class Changes:
    """The changes since the last commit.

    `entries` and `leases` map each changed key or lease to its present value, or to None if it was
    deleted. If `everything` is true, `events` is incomplete, and the whole machine must be written
    instead.
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

    @property
    def size(self) -> int:
        """Bytes of the keys and values to write, roughly."""
        values = sum(len(entry.value) for entry in self.entries.values() if entry is not None)
        return sum(map(len, self.entries)) + values

    def note(self, machine: StoreMachine, before: int, leases_before: Mapping[int, float]) -> bool:
        """Add the changes of one step. `before` and `leases_before` are the revision and the leases
        before the step. Returns False if the step changed nothing that must be written.
        """
        leases = machine.leases
        assert machine.revision >= before >= self.revision, "steps are noted in their order"
        # The machine returns the same object while no lease comes or goes: with many nodes, to
        # compare them at each step would cost more than the step.
        kept = leases is leases_before
        if machine.revision == before and (kept or leases.keys() == leases_before.keys()):
            return False
        # Read the entry from the machine, not from the event: if a step changed a key several
        # times, only its last value is written.
        for event in machine.events_after(before):
            self.events.append(event)
            self.entries[event.key] = machine.get(event.key)
            assert self.events[-1].revision <= machine.revision
        # The step had more events than the history keeps, so its first events were compacted away.
        # The events alone no longer describe it.
        self.everything |= machine.compacted > before
        # Only leases that came or went. Their remaining time is not written: a restart gives each
        # its full time again, and writing each renewal would cost a sync for every node and second.
        if not kept:
            for lease in leases_before.keys() - leases.keys():
                self.leases[lease] = None
            for lease in leases.keys() - leases_before.keys():
                self.leases[lease] = leases[lease]
        self.revision, self.compacted, self.next_lease = (
            machine.revision,
            machine.compacted,
            machine.next_lease,
        )
        assert self.compacted <= self.revision
        assert not self.is_empty, "what was noted is written"
        assert all(0 < lease < self.next_lease for lease in self.leases)
        return True
