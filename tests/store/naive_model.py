"""A store that remembers everything: a copy of all its keys for every revision there ever was.

The changes of a revision are found by comparing two copies, a prefix by looking at every key. It
shares nothing with the product but the value objects, and is meant to be obviously right.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from runtime.store.interface import Compare, Delete, Entry, Get, Operation, Put, StoreEvent

Keys = dict[str, Entry]


class LostError(Exception):
    """What the product says as LeaseLostError."""


@attrs.define
class Lease:
    """A lease with the time at which it may end."""

    ttl: float
    ends: float


class NaiveStore:
    """See the module. `copies[revision]` are the keys as they were then; there was nothing at
    revisions 0 and 1.
    """

    def __init__(self) -> None:
        self.copies: list[Keys] = [{}, {}]
        self.leases: dict[int, Lease] = {}

    @property
    def revision(self) -> int:
        """The latest."""
        return len(self.copies) - 1

    @property
    def keys(self) -> Keys:
        """The keys as they are now."""
        return self.copies[-1]

    def range(self, prefix: str) -> list[Entry]:
        """The keys under a prefix."""
        return [self.keys[key] for key in sorted(self.keys) if key[: len(prefix)] == prefix]

    def holds(self, condition: Compare) -> bool:
        """Whether a condition holds now."""
        entry = self.keys.get(condition.key)
        facts: dict[str, object] = {"mod_revision": 0, "create_revision": 0, "version": 0}
        if entry is not None:
            facts = attrs.asdict(entry)
        return condition.field in facts and facts[condition.field] == condition.expected

    def transaction(
        self, compare: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation]
    ) -> tuple[bool, list[object]]:
        """Whether the conditions held, and the answers."""
        held = [self.holds(condition) for condition in compare].count(False) == 0
        operations = then if held else otherwise
        if any(
            isinstance(operation, Put) and operation.lease not in {0, *self.leases}
            for operation in operations
        ):
            raise LostError
        revision = self.revision + 1
        keys = dict(self.keys)
        answers: list[object] = []
        for operation in operations:
            match operation:
                case Get(key):
                    answers.append(keys.get(key))
                case Delete(key):
                    answers.append(key in keys)
                    keys.pop(key, None)
                case Put(key, value, lease):
                    old = keys.get(key)
                    created, version = (
                        (old.create_revision, old.version + 1) if old else (revision, 1)
                    )
                    keys[key] = Entry(key, value, created, revision, version, lease)
                    answers.append(None)
        if keys != self.keys:
            self.copies.append(keys)
        return held, answers

    def revoke(self, lease: int) -> None:
        """End a lease."""
        if lease not in self.leases:
            raise LostError
        del self.leases[lease]
        keys = {key: entry for key, entry in self.keys.items() if entry.lease != lease}
        if keys != self.keys:
            self.copies.append(keys)

    def expire(self, now: float) -> None:
        """End the leases whose time is over, in the order of their ends."""
        for lease in sorted(self.leases, key=lambda lease: (self.leases[lease].ends, lease)):
            if self.leases[lease].ends <= now:
                self.revoke(lease)

    def changes(self, prefix: str, from_revision: int) -> list[set[StoreEvent]]:
        """The changes under a prefix, one set for each revision that has any."""
        found = []
        for revision in range(max(2, from_revision), self.revision + 1):
            before, after = self.copies[revision - 1], self.copies[revision]
            changed = {
                key
                for key in {*before, *after}
                if key.startswith(prefix) and before.get(key) != after.get(key)
            }
            if changed:
                found.append({_event(revision, before.get(key), after.get(key)) for key in changed})
        return found


def _event(revision: int, before: Entry | None, after: Entry | None) -> StoreEvent:
    previous = before.value if before else None
    if after is not None:
        return StoreEvent("put", after.key, after.value, revision, after.create_revision, previous)
    assert before is not None
    return StoreEvent("delete", before.key, b"", revision, before.create_revision, previous)
