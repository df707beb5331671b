"""The store as a state machine in memory: time in, answers out; no I/O, no clock.

Each method is one step, and one that raises has changed nothing. A lease that is not revoked ends when `expire` is called with a time at or
after its end: whoever drives the machine calls it at `next_expiry`. Waiting, and surviving this process, are left to others.

The keys are kept in order beside the entries in a plain list, so that a prefix costs what it holds. Inserting moves, on average, half of
the list in one memmove: 0.01 ms with a hundred thousand keys, which is more than coordination needs. A tree, or sortedcontainers, would be
one dependency more for nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import pairwise

import attrs

from actors.errors import LeaseLostError
from runtime.store.history import History
from runtime.store.interface import (
    Compare,
    Delete,
    Entry,
    Event,
    Get,
    Operation,
    Put,
    RangeResult,
    Response,
    TransactionResult,
    WatchBatch,
    check_key,
    check_time_to_live,
    check_transaction,
)


@attrs.define
class _Lease:
    ttl: float
    ends: float
    keys: set[str] = attrs.field(factory=set)


@attrs.frozen
class Snapshot:
    """A store at one moment. `compacted`: changes up to it are not among `events`; `leases`: seconds by number."""

    revision: int
    compacted: int
    next_lease: int
    leases: dict[int, float]
    entries: tuple[Entry, ...]
    events: tuple[Event, ...]


class StoreMachine:
    """One store. `now` is in seconds on a monotonic clock; `history`: the changes kept for watches, bounded as it says."""

    def __init__(self, history: History | None = None) -> None:
        self.revision = 1
        """As of the last change; like etcd's, that of an empty store is 1."""
        self._entries: dict[str, Entry] = {}
        self._keys: list[str] = []
        self._leases: dict[int, _Lease] = {}
        self._next_lease = 1
        self._history = History() if history is None else history

    def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        check_key(key)
        return self._entries.get(key)

    def range(self, prefix: str) -> RangeResult:
        """See `Store.range`."""
        found: list[Entry] = []
        for index in range(bisect_left(self._keys, prefix), len(self._keys)):
            if not self._keys[index].startswith(prefix):
                break
            found.append(self._entries[self._keys[index]])
        return RangeResult(tuple(found), self.revision)

    def transaction(self, compare: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation] = ()) -> TransactionResult:
        """See `Store.transaction`."""
        check_transaction(compare, then, otherwise)
        succeeded = all(self._holds(condition) for condition in compare)
        operations = then if succeeded else otherwise
        for operation in operations:
            if isinstance(operation, Put) and operation.lease and operation.lease not in self._leases:
                raise LeaseLostError(f"lease {operation.lease} has ended; {operation.key} was not written")
        revision = self.revision + 1
        responses = tuple([self._carry_out(operation, revision) for operation in operations])
        return TransactionResult(succeeded, self.revision, responses)

    def grant(self, ttl: float, now: float) -> int:
        """See `Store.grant`. The numbers of leases are never used again."""
        check_time_to_live(ttl)
        lease = self._next_lease
        self._next_lease += 1
        self._leases[lease] = _Lease(ttl, now + ttl)
        return lease

    def keep_alive(self, lease: int, now: float) -> float:
        """See `Store.keep_alive`. A lease that is overdue but has not been ended lives on: nobody can have taken what it holds."""
        found = self._lease(lease)
        found.ends = max(found.ends, now + found.ttl)
        return found.ttl

    def time_to_live(self, lease: int, now: float) -> float:
        """See `Store.time_to_live`."""
        return max(0.0, self._lease(lease).ends - now)

    def revoke(self, lease: int) -> None:
        """See `Store.revoke`."""
        found = self._lease(lease)
        revision = self.revision + 1
        for key in sorted(found.keys):
            self._remove(key, revision)
        del self._leases[lease]

    def expire(self, now: float) -> None:
        """End the leases whose time is over, the longest overdue first, each in a revision of its own."""
        overdue = sorted((found.ends, lease) for lease, found in self._leases.items() if found.ends <= now)
        for _, lease in overdue:
            self.revoke(lease)

    def next_expiry(self) -> float | None:
        """When `expire` has something to do; None if there are no leases."""
        return min((found.ends for found in self._leases.values()), default=None)

    def changes(self, prefix: str, from_revision: int) -> WatchBatch | None:
        """The changes to answer a poll with; None if there are none yet. Raises like `Store.poll`."""
        return self._history.since(prefix, from_revision, self.revision)

    def postpone(self, until: float) -> None:
        """End no lease before `until`: whoever drives the machine was away, and renewals may be waiting at its door."""
        for found in self._leases.values():
            found.ends = max(found.ends, until)

    @property
    def leases(self) -> dict[int, float]:
        """The leases that have not ended, and for how many seconds each was granted."""
        return {lease: found.ttl for lease, found in self._leases.items()}

    def snapshot(self) -> Snapshot:
        """All there is, to be kept elsewhere."""
        entries = tuple(self._entries[key] for key in self._keys)
        events = tuple(self._history.after(self._history.compacted))
        return Snapshot(self.revision, self._history.compacted, self._next_lease, self.leases, entries, events)

    @classmethod
    def restored(cls, kept: Snapshot, now: float, grace: float, history: History | None = None) -> StoreMachine:
        """The machine that `kept` was taken from. Its leases have their whole time again, and at least `grace` seconds."""
        machine = cls(history)
        machine.revision = kept.revision
        machine._next_lease = kept.next_lease
        machine._leases = {lease: _Lease(ttl, now + max(ttl, grace)) for lease, ttl in kept.leases.items()}
        for entry in kept.entries:
            machine._entries[entry.key] = entry
            if entry.lease:
                machine._leases[entry.lease].keys.add(entry.key)
        machine._keys = sorted(machine._entries)
        machine._history.compact(kept.compacted)
        for event in kept.events:
            machine._history.add(event)
        return machine

    @property
    def next_lease(self) -> int:
        """The number of the next lease."""
        return self._next_lease

    def events_after(self, revision: int) -> list[Event]:
        """The changes after `revision`, as far as they are still known."""
        return self._history.after(revision)

    @property
    def compacted(self) -> int:
        """Changes up to this revision are no longer kept."""
        return self._history.compacted

    def changed_after(self, revision: int) -> list[str]:
        """The keys that were changed after `revision`, as far as that is still known, in the order of the changes."""
        return [event.key for event in self._history.after(revision)]

    def compact(self, revision: int) -> None:
        """Forget the changes up to `revision`; the keys stay as they are. Raises ValueError if that lies in the future."""
        if revision > self.revision:
            raise ValueError(f"the store is at revision {self.revision} and has nothing to forget at {revision}")
        self._history.compact(revision)

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. Looks at everything: for tests and simulations."""
        assert self._keys == sorted(self._entries)
        assert all(first < second for first, second in pairwise(self._keys))
        assert self._history.compacted <= self.revision
        for key, entry in self._entries.items():
            assert key == entry.key
            assert 1 < entry.create_revision <= entry.mod_revision <= self.revision
            assert 1 <= entry.version <= 1 + entry.mod_revision - entry.create_revision
            assert not entry.lease or key in self._leases[entry.lease].keys
        for lease, found in self._leases.items():
            assert 0 < lease < self._next_lease
            assert all(self._entries[key].lease == lease for key in found.keys)

    def _holds(self, condition: Compare) -> bool:
        entry = self._entries.get(condition.key)
        if entry is None:
            return condition.field != "value" and condition.expected == 0
        return bool(getattr(entry, condition.field) == condition.expected)

    def _carry_out(self, operation: Operation, revision: int) -> Response:
        if isinstance(operation, Put):
            self._write(operation, revision)
            return None
        if isinstance(operation, Delete):
            return self._remove(operation.key, revision)
        assert isinstance(operation, Get)
        return self._entries.get(operation.key)

    def _write(self, put: Put, revision: int) -> None:
        before = self._entries.get(put.key)
        if before is None:
            insort(self._keys, put.key)
            entry = Entry(put.key, put.value, revision, revision, 1, put.lease)
        else:
            self._untie(before)
            entry = Entry(put.key, put.value, before.create_revision, revision, before.version + 1, put.lease)
        if put.lease:
            self._leases[put.lease].keys.add(put.key)
        self._entries[put.key] = entry
        self._note(Event("put", put.key, put.value, revision, entry.create_revision, None if before is None else before.value))

    def _remove(self, key: str, revision: int) -> bool:
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        index = bisect_left(self._keys, key)
        assert self._keys[index] == key
        del self._keys[index]
        self._untie(entry)
        self._note(Event("delete", key, b"", revision, entry.create_revision, entry.value))
        return True

    def _untie(self, entry: Entry) -> None:
        if entry.lease:
            self._leases[entry.lease].keys.remove(entry.key)

    def _note(self, event: Event) -> None:
        assert self.revision <= event.revision <= self.revision + 1
        self.revision = event.revision
        self._history.add(event)

    def _lease(self, lease: int) -> _Lease:
        found = self._leases.get(lease)
        if found is None:
            raise LeaseLostError(f"lease {lease} has expired or was revoked")
        return found
