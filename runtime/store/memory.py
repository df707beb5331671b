"""The store as a state machine in memory: time in, answers out; no I/O.

Keys are kept in order beside the entries, so that a prefix costs what it holds. The history of changes is bounded; older ones are compacted
and a watch that asks for them is told so.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence

import attrs

from actors.errors import LeaseLostError, StoreCompactedError
from runtime.store.interface import Compare, Delete, Entry, Event, Get, Operation, Put, RangeResult, TransactionResult, WatchBatch

HISTORY = 10_000


@attrs.define
class _Lease:
    ttl: float
    ends: float
    keys: set[str] = attrs.field(factory=set)


class StoreMachine:
    """One store. `now` is in seconds on a monotonic clock; `history`: changes that are kept for watches."""

    def __init__(self, history: int = HISTORY) -> None:
        self.revision = 1
        self._entries: dict[str, Entry] = {}
        self._keys: list[str] = []
        self._leases: dict[int, _Lease] = {}
        self._next_lease = 1
        self._events: deque[Event] = deque()
        self._kept = history
        self._compacted = 1
        """Changes up to this revision are no longer kept."""

    def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
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
        """See `Store.transaction`. Nothing is changed if a lease that is named has ended."""
        succeeded = all(self._holds(condition) for condition in compare)
        operations = then if succeeded else otherwise
        for operation in operations:
            if isinstance(operation, Put) and operation.lease and operation.lease not in self._leases:
                raise LeaseLostError(f"lease {operation.lease} has ended; {operation.key} was not written")
        revision = self.revision + 1
        responses = tuple(self._carry_out(operation, revision) for operation in operations)
        return TransactionResult(succeeded, self.revision, responses)

    def grant(self, ttl: float, now: float) -> int:
        """See `Store.grant`. Raises ValueError if `ttl` is not positive."""
        if not ttl > 0:
            raise ValueError(f"a lease's ttl is a positive number of seconds, not {ttl!r}")
        lease = self._next_lease
        self._next_lease += 1
        self._leases[lease] = _Lease(ttl, now + ttl)
        return lease

    def keep_alive(self, lease: int, now: float) -> float:
        """See `Store.keep_alive`."""
        found = self._lease(lease)
        found.ends = now + found.ttl
        return found.ttl

    def revoke(self, lease: int) -> None:
        """See `Store.revoke`."""
        found = self._lease(lease)
        revision = self.revision + 1
        for key in sorted(found.keys):
            self._remove(key, revision)
        del self._leases[lease]

    def expire(self, now: float) -> None:
        """End the leases whose time is over."""
        for lease in [lease for lease, found in self._leases.items() if found.ends <= now]:
            self.revoke(lease)

    def next_expiry(self) -> float | None:
        """When `expire` has something to do; None if there are no leases."""
        return min((found.ends for found in self._leases.values()), default=None)

    def changes(self, prefix: str, from_revision: int) -> WatchBatch | None:
        """The changes to answer a poll with; None if there are none yet."""
        if from_revision <= self._compacted:
            raise StoreCompactedError(f"changes before revision {self._compacted + 1} are no longer kept; {from_revision} was asked for")
        found: list[Event] = []
        for event in reversed(self._events):
            if event.revision < from_revision:
                break
            if event.key.startswith(prefix):
                found.append(event)
        return WatchBatch(tuple(reversed(found)), self.revision) if found else None

    def _holds(self, condition: Compare) -> bool:
        entry = self._entries.get(condition.key)
        if condition.field == "value":
            return entry is not None and entry.value == condition.expected
        return (0 if entry is None else getattr(entry, condition.field)) == condition.expected

    def _carry_out(self, operation: Operation, revision: int) -> object:
        if isinstance(operation, Get):
            return self._entries.get(operation.key)
        if isinstance(operation, Delete):
            return self._remove(operation.key, revision)
        self._write(operation, revision)
        return None

    def _write(self, put: Put, revision: int) -> None:
        before = self._entries.get(put.key)
        if before is None:
            insort(self._keys, put.key)
            entry = Entry(put.key, put.value, revision, revision, 1, put.lease)
        else:
            entry = Entry(put.key, put.value, before.create_revision, revision, before.version + 1, put.lease)
            self._untie(before)
        if put.lease:
            self._leases[put.lease].keys.add(put.key)
        self._entries[put.key] = entry
        self._note(Event("put", put.key, put.value, revision, entry.create_revision))

    def _remove(self, key: str, revision: int) -> bool:
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        del self._keys[bisect_left(self._keys, key)]
        self._untie(entry)
        self._note(Event("delete", key, b"", revision, entry.create_revision))
        return True

    def _untie(self, entry: Entry) -> None:
        if entry.lease in self._leases:
            self._leases[entry.lease].keys.discard(entry.key)

    def _note(self, event: Event) -> None:
        self.revision = event.revision
        self._events.append(event)
        while len(self._events) > self._kept:
            self._compacted = self._events.popleft().revision

    def _lease(self, lease: int) -> _Lease:
        found = self._leases.get(lease)
        if found is None:
            raise LeaseLostError(f"lease {lease} has expired or was revoked")
        return found
