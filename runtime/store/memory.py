"""The store as a state machine in memory: time in, answers out; no I/O, no clock.

Each method is one step, and one that raises has changed nothing. A lease that is not revoked ends
when `expire` is called with a time at or after its end: the caller that drives the machine calls it
at `next_expiry`. Waiting, and surviving this process, are left to others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import groupby, islice

import attrs

from actors.errors import LeaseLostError, StoreCompactedError
from runtime.store.interface import (
    Compare,
    Delete,
    Entry,
    Get,
    Operation,
    Put,
    RangeResult,
    Response,
    StoreEvent,
    TransactionResult,
    WatchBatch,
    check_key,
    check_revision,
    check_time_to_live,
    check_transaction,
)
from runtime.store.sorted_keys import SortedKeys

# The changes that a store still knows, for watches that start late. Older ones are compacted. A
# watch that asks for them gets `StoreCompactedError`: it sees every change, or learns that it
# cannot. etcd's event history works in the same way.

MAX_EVENTS = 10_000
"""Changes that a store keeps for late watches."""

MAX_BYTES = 64 * 1024 * 1024
"""Bytes of keys and values of these changes, likewise: large values would otherwise fill the memory
long before their number does.
"""

MAX_PREVIOUS = 64 * 1024
"""Bytes of a value that is kept as the previous one of a change. With larger ones the deletion of a
value would need as much room on the store's disk as the value has.
"""

BATCH_EVENTS = 1_000
"""Events after which a batch ends, at the next end of a revision. It bounds the frames in which a
watch on another node gets what it missed.
"""


BATCH_BYTES = 4 * 1024 * 1024
"""Bytes of keys and values after which a batch ends, likewise."""


class ChangeHistory:
    """Changes in the order of their revisions. `max_bytes` counts keys, values and previous
    values.
    """

    def __init__(self, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> None:
        if max_events < 1 or max_bytes < 1:
            raise ValueError(
                f"a history keeps at least one event and one byte, not {max_events} and {max_bytes}"
            )
        self.compacted = 0
        """Changes up to this revision are no longer kept."""
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._events: deque[StoreEvent] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._events)

    def add(self, event: StoreEvent) -> None:
        """Append a change. Its revision must not be lower than that of the last one. Compacts the
        oldest revisions if a bound is exceeded.
        """
        assert event.revision > self.compacted
        assert not self._events or event.revision >= self._events[-1].revision
        self._events.append(event)
        self._bytes += _size(event)
        # Whole revisions only: half of one would show a watch a transaction that never was. And
        # never the newest: a watch that keeps up must not be refused, however large one change is.
        while (
            len(self._events) > self._max_events or self._bytes > self._max_bytes
        ) and self._events[0].revision < event.revision:
            self.compact(self._events[0].revision)

    def compact(self, revision: int) -> None:
        """Forget the changes up to and including `revision`."""
        while self._events and self._events[0].revision <= revision:
            self._bytes -= _size(self._events.popleft())
        self.compacted = max(self.compacted, revision)
        assert self._bytes >= 0 if self._events else self._bytes == 0

    def check_invariants(self) -> None:
        """Assert the invariants of the history. Looks at every event: for tests and simulations."""
        assert self._bytes == sum(map(_size, self._events))
        revisions = [event.revision for event in self._events]
        assert revisions == sorted(revisions)
        assert not revisions or self.compacted < revisions[0], "what is compacted is gone"
        # One revision may exceed the bounds: the newest is kept whole.
        assert (len(revisions) <= self._max_events and self._bytes <= self._max_bytes) or revisions[
            0
        ] == revisions[-1]

    def after(self, revision: int) -> list[StoreEvent]:
        """Return the kept changes after `revision`. The cost is proportional to their number."""
        found: list[StoreEvent] = []
        # From the end: a watch that keeps up asks for the last few of thousands.
        for event in reversed(self._events):
            if event.revision <= revision:
                break
            found.append(event)
        found.reverse()
        return found

    def since(self, prefix: str, from_revision: int, present: int) -> WatchBatch | None:
        """Return the first batch of changes under `prefix` at or after `from_revision`, or None if
        there are none yet.

        `present`: the revision of the store. A batch that was not cut covers everything up to it.
        Raises like `Store.poll`.
        """
        check_revision(from_revision)
        if from_revision <= self.compacted:
            raise StoreCompactedError(
                f"changes up to revision {self.compacted} are no longer kept and {from_revision} "
                "was asked for; "
                "read the keys afresh (range) and go on from the revision after it"
            )
        found = [event for event in self.after(from_revision - 1) if event.key.startswith(prefix)]
        if not found:
            return None
        if len(found) == 1 or (len(found) < BATCH_EVENTS and self._bytes < BATCH_BYTES):
            # Nothing to cut: the sizes of the events need not be counted.
            return WatchBatch(tuple(found), present)
        batch: list[StoreEvent] = []
        size = 0
        # The cut is made between revisions, never within: a client acts on a batch as on a state
        # that the store once had.
        for revision, events in groupby(found, lambda event: event.revision):
            for event in events:
                batch.append(event)
                size += _size(event)
            if len(batch) < len(found) and (len(batch) >= BATCH_EVENTS or size >= BATCH_BYTES):
                return WatchBatch(tuple(batch), revision)
        return WatchBatch(tuple(batch), present)


def _size(event: StoreEvent) -> int:
    return len(event.key) + len(event.value) + len(event.previous or b"")


@attrs.define
class _Lease:
    ttl: float
    ends: float
    keys: set[str] = attrs.field(factory=set)


@attrs.frozen
class Snapshot:
    """The whole state of a store at one moment. `compacted`: changes up to this revision are not in
    `events`. `leases`: the granted seconds by lease.
    """

    revision: int
    compacted: int
    next_lease: int
    leases: dict[int, float]
    entries: tuple[Entry, ...]
    events: tuple[StoreEvent, ...]


class StoreMachine:
    """One store. `now` is always in seconds on a monotonic clock. `history` keeps changes for
    watches.
    """

    def __init__(self, history: ChangeHistory | None = None) -> None:
        self.size = 0
        """Bytes of all keys and values."""
        self.revision = 1
        """As of the last change; like etcd's, that of an empty store is 1."""
        self._entries: dict[str, Entry] = {}
        self._keys = SortedKeys()
        """The keys of `_entries` in order, so that a range costs what it returns."""
        self._leases: dict[int, _Lease] = {}
        self._granted: dict[int, float] | None = None
        """The last result of `leases`, which is returned again until one comes or goes."""
        self._next_lease = 1
        self._history = ChangeHistory() if history is None else history

    def get(self, key: str) -> Entry | None:
        """Return the entry of `key` as of the last step, or None."""
        check_key(key)
        return self._entries.get(key)

    def range(self, prefix: str, limit: int = 0) -> RangeResult:
        """Return the keys under `prefix` in order, the first `limit` unless that is 0; costs what
        is found, not what is stored.
        """
        keys = islice(self._keys.beginning_with(prefix), limit + 1 if limit else None)
        found = tuple(self._entries[key] for key in keys)
        return RangeResult(found, self.revision).cut(limit)

    def transaction(
        self,
        compare: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TransactionResult:
        """Carry out one branch in one step. If a part of it is refused, nothing has changed."""
        # Refuses a branch that writes one key twice: both writes would have the same revision, and
        # the history could not tell which came last.
        check_transaction(compare, then, otherwise)
        succeeded = all(condition.holds(self._entries.get(condition.key)) for condition in compare)
        operations = then if succeeded else otherwise
        # Check everything that can be refused before the first change: a transaction is atomic, and
        # there is no roll-back.
        for operation in operations:
            if (
                isinstance(operation, Put)
                and operation.lease
                and operation.lease not in self._leases
            ):
                raise LeaseLostError(
                    f"lease {operation.lease} has ended; {operation.key} was not written"
                )
        # One revision for all operations. It becomes the store's with the first change, so a branch
        # that changes nothing leaves the revision as it was.
        revision = self.revision + 1
        responses = tuple([self._carry_out(operation, revision) for operation in operations])
        assert self.revision in (revision - 1, revision), "a transaction has at most one revision"
        assert len(self._keys) == len(self._entries)
        return TransactionResult(succeeded, self.revision, responses)

    def grant(self, ttl: float, now: float) -> int:
        """Make a lease that ends `ttl` seconds after `now`, unless it is kept alive. Lease numbers
        are never reused.
        """
        check_time_to_live(ttl)
        lease = self._next_lease
        assert lease not in self._leases, "the number of a lease is never used again"
        self._next_lease += 1
        self._leases[lease] = _Lease(ttl, now + ttl)
        self._granted = None
        return lease

    def keep_alive(self, lease: int, now: float) -> float:
        """Let the lease end a full time after `now`, or later; returns the granted seconds. A lease
        that is overdue but not yet ended is renewed: its keys are still there, so no other client
        can have taken them.
        """
        found = self._lease(lease)
        # Never shorten the time: `postpone` may have extended it further.
        found.ends = max(found.ends, now + found.ttl)
        return found.ttl

    def time_to_live(self, lease: int, now: float) -> float:
        """Return the seconds until the lease may end, 0 if it is overdue."""
        return max(0.0, self._lease(lease).ends - now)

    def revoke(self, lease: int) -> None:
        """End the lease and delete its keys, in one revision. Raises `LeaseLostError`."""
        found = self._lease(lease)
        revision = self.revision + 1
        # In order, not as the set has them: the order of strings in a set differs between
        # processes, and the events of a simulated run must not.
        for key in sorted(found.keys):
            self._remove(key, revision)
        assert not found.keys, "a key that is removed is no longer its lease's"
        assert len(self._keys) == len(self._entries)
        del self._leases[lease]
        self._granted = None

    def expire(self, now: float) -> None:
        """End the leases whose time is over, the longest overdue first, each in its own
        revision.
        """
        for lease in self.overdue(now):
            self.revoke(lease)

    def overdue(self, now: float) -> list[int]:
        """Return the leases whose time is over, the longest overdue first."""
        # Ordered by expiry, then by number, so that every run of a simulation is the same.
        found = sorted((one.ends, lease) for lease, one in self._leases.items() if one.ends <= now)
        return [lease for _, lease in found]

    def next_expiry(self) -> float | None:
        """Return the time at which `expire` must be called next, or None if there is no lease."""
        return min((found.ends for found in self._leases.values()), default=None)

    def changes(self, prefix: str, from_revision: int) -> WatchBatch | None:
        """Return the changes for a poll, or None if there are none yet. Raises like
        `Store.poll`.
        """
        return self._history.since(prefix, from_revision, self.revision)

    def postpone(self, until: float) -> None:
        """End no lease before `until`. For use after the machine was not driven for some time:
        renewals may be waiting.
        """
        for lease in self._leases:
            self.postpone_one(lease, until)

    def postpone_one(self, lease: int, until: float) -> None:
        """Do not end this lease before `until`. Raises `LeaseLostError`."""
        # Only ever later: its holder relies on what it was granted.
        found = self._lease(lease)
        found.ends = max(found.ends, until)

    @property
    def leases(self) -> dict[int, float]:
        """The leases that have not ended, with the granted time in seconds. The same object until
        one comes or goes; it is not to be changed.
        """
        if self._granted is None:
            self._granted = {lease: found.ttl for lease, found in self._leases.items()}
        return self._granted

    def snapshot(self) -> Snapshot:
        """Return the whole state, to be stored."""
        entries = tuple(self._entries[key] for key in self._keys)
        events = tuple(self._history.after(self._history.compacted))
        return Snapshot(
            self.revision, self._history.compacted, self._next_lease, self.leases, entries, events
        )

    @classmethod
    def restored(
        cls, kept: Snapshot, now: float, grace: float, history: ChangeHistory | None = None
    ) -> StoreMachine:
        """Return a machine with the state of `kept`. Every lease gets its full time again, and at
        least `grace` seconds.
        """
        # A lease begins anew: its holder could not renew it while the store was away. Shorter, and
        # a restart of the store would end the names of nodes that are well.
        machine = cls(history)
        machine.revision = kept.revision
        machine._next_lease = kept.next_lease
        machine._leases = {
            lease: _Lease(ttl, now + max(ttl, grace)) for lease, ttl in kept.leases.items()
        }
        machine._granted = None
        for entry in kept.entries:
            machine._entries[entry.key] = entry
            machine.size += _size_of(entry)
            if entry.lease:
                machine._leases[entry.lease].keys.add(entry.key)
        machine._keys = SortedKeys(machine._entries)
        # First what is forgotten, then the events: `add` refuses an event that counts as compacted.
        machine._history.compact(kept.compacted)
        for event in kept.events:
            machine._history.add(event)
            assert machine._history.compacted >= kept.compacted
        return machine

    @property
    def next_lease(self) -> int:
        """The number that the next lease will get."""
        return self._next_lease

    def events_after(self, revision: int) -> list[StoreEvent]:
        """Return the kept changes after `revision`."""
        return self._history.after(revision)

    @property
    def compacted(self) -> int:
        """Changes up to this revision are no longer kept."""
        return self._history.compacted

    def changed_after(self, revision: int) -> list[str]:
        """Return the keys of the kept changes after `revision`, in the order of the changes."""
        return [event.key for event in self._history.after(revision)]

    def compact(self, revision: int) -> None:
        """Forget the changes up to `revision`. The keys stay. Raises ValueError if the revision is
        in the future.
        """
        if revision > self.revision:
            raise ValueError(
                f"the store is at revision {self.revision} and has nothing to forget at {revision}"
            )
        self._history.compact(revision)

    def check_invariants(self) -> None:
        """Assert the invariants of the store. Looks at every key, event and lease: for tests and
        simulations.
        """
        self._keys.check_invariants()
        assert list(self._keys) == sorted(self._entries)
        assert self.size == sum(map(_size_of, self._entries.values()))
        assert self.leases == {lease: found.ttl for lease, found in self._leases.items()}
        assert self._history.compacted <= self.revision
        self._history.check_invariants()
        newest = {event.key: event for event in self._history.after(self._history.compacted)}
        for key, event in newest.items():
            entry = self._entries.get(key)
            assert event.revision <= self.revision
            assert (entry is not None) == (event.kind == "put"), "the last event says what is there"
            assert entry is None or (entry.value, entry.mod_revision) == (
                event.value,
                event.revision,
            )
        for key, entry in self._entries.items():
            assert key == entry.key
            assert 1 < entry.create_revision <= entry.mod_revision <= self.revision
            assert 1 <= entry.version <= 1 + entry.mod_revision - entry.create_revision
            assert not entry.lease or key in self._leases[entry.lease].keys
        for lease, found in self._leases.items():
            assert 0 < lease < self._next_lease
            assert all(self._entries[key].lease == lease for key in found.keys)

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
            self._keys.add(put.key)
            entry = Entry(put.key, put.value, revision, revision, 1, put.lease)
        else:
            # Also if the lease is the same one. The new value belongs to the new lease only:
            # otherwise the end of the old lease would delete a key that its owner has renewed.
            self._untie(before)
            entry = Entry(
                put.key, put.value, before.create_revision, revision, before.version + 1, put.lease
            )
            self.size -= _size_of(before)
        if put.lease:
            self._leases[put.lease].keys.add(put.key)
        self._entries[put.key] = entry
        self.size += _size_of(entry)
        self._note(
            StoreEvent(
                "put",
                put.key,
                put.value,
                revision,
                entry.create_revision,
                None if before is None else _previous(before),
            )
        )

    def _remove(self, key: str, revision: int) -> bool:
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self._keys.remove(key)
        self.size -= _size_of(entry)
        self._untie(entry)
        self._note(
            StoreEvent("delete", key, b"", revision, entry.create_revision, _previous(entry))
        )
        return True

    def _untie(self, entry: Entry) -> None:
        if entry.lease:
            self._leases[entry.lease].keys.remove(entry.key)

    def _note(self, event: StoreEvent) -> None:
        assert self.revision <= event.revision <= self.revision + 1
        self.revision = event.revision
        self._history.add(event)

    def _lease(self, lease: int) -> _Lease:
        found = self._leases.get(lease)
        if found is None:
            raise LeaseLostError(f"lease {lease} has expired or was revoked")
        return found


def _previous(entry: Entry) -> bytes | None:
    """The value of an entry that is replaced, as its change has it."""
    return entry.value if len(entry.value) <= MAX_PREVIOUS else None


def _size_of(entry: Entry) -> int:
    return len(entry.key) + len(entry.value)
