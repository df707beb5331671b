"""The memberships of one node's own actors, and which of them the store does not have yet.

No I/O and no clock. Whoever writes takes a `batch`, writes it, and says what came of it; what changed meanwhile is in the next one.
"""

from __future__ import annotations

from collections import Counter

import attrs

from actors.method import Address
from runtime.groups.records import RECORD_MEMBERS, Member, Membership, Record, prefix_of

MOST_RECORDS = 10
"""In one transaction: together less than what etcd takes of one request by default, whatever the names."""


@attrs.define(eq=False)
class _Shard:
    """One record. `revision`: that of the store's copy, 0 if it has none. `doubtful`: a write of it may still be on its way."""

    key: str
    group: str
    members: dict[Member, Membership] = attrs.field(factory=dict)
    revision: int = 0
    dirty: bool = False
    doubtful: bool = False


@attrs.frozen
class Write:
    """One record to be written where its copy has this revision (0: none); `record` None: to be deleted."""

    key: str
    revision: int
    record: Record | None


@attrs.define(eq=False)
class _Group:
    shards: list[_Shard] = attrs.field(factory=list)
    place: dict[Member, _Shard] = attrs.field(factory=dict)
    version: int = 0


class Holdings:
    """Those of one start of a node."""

    def __init__(self, node: str, incarnation: int) -> None:
        self._node = node
        self._incarnation = incarnation
        self._groups: dict[str, _Group] = {}
        self._of: dict[Member, Counter[str]] = {}
        self._dirty: dict[str, _Shard] = {}
        self._writing: dict[str, _Shard] = {}
        self._records = 0
        self._changes = 0

    def __len__(self) -> int:
        return sum(sum(groups.values()) for groups in self._of.values())

    @property
    def is_dirty(self) -> bool:
        """True if there is something to write."""
        return bool(self._dirty)

    def join(self, group: str, address: Address) -> None:
        """An actor is in the group once more."""
        actor = address.name, address.epoch
        held = self._groups.setdefault(group, _Group())
        shard = held.place.get(actor)
        if shard is None:
            shard = held.place[actor] = self._shard_with_room(held, group)
        self._of.setdefault(actor, Counter())[group] += 1
        self._put(held, shard, Membership(address, self._of[actor][group]))

    def leave(self, group: str, actor: Member) -> bool:
        """It is in the group once less; False if it was not in it."""
        groups = self._of.get(actor)
        if groups is None or not groups[group]:
            return False
        groups[group] -= 1
        held = self._groups[group]
        shard = held.place[actor]
        if groups[group]:
            self._put(held, shard, attrs.evolve(shard.members[actor], times=groups[group]))
        else:
            self._take_out(group, actor)
            del groups[group]
            if not groups:
                del self._of[actor]
        return True

    def ended(self, actor: Member) -> list[str]:
        """The actor has ended; returns the groups that it was in."""
        groups = [group for group, times in self._of.pop(actor, Counter()).items() if times]
        for group in groups:
            self._take_out(group, actor)
        return groups

    def members(self, group: str) -> list[Membership]:
        """The members that are here, in the order in which they joined."""
        held = self._groups.get(group)
        return [held.place[actor].members[actor] for actor in held.place] if held is not None else []

    def version(self, group: str) -> int:
        """Another one whenever `members` changes."""
        held = self._groups.get(group)
        return held.version if held is not None else 0

    def batch(self) -> list[Write]:
        """Some of what is to be written; `written`, `refused`, `doubtful` or `not_written` must follow."""
        self._writing = dict(list(self._dirty.items())[:MOST_RECORDS])
        writes: list[Write] = []
        for key, shard in self._writing.items():
            del self._dirty[key]
            shard.dirty = False
            # While a write that made the key may still come, the key stays, empty: deleted, it could be made again by that.
            empty = not shard.members and not shard.doubtful
            record = None if empty else Record(self._node, self._incarnation, tuple(shard.members.values()))
            writes.append(Write(key, shard.revision, record))
        return writes

    def written(self, revision: int, writes: list[Write]) -> None:
        """The batch is in the store."""
        for write in writes:
            self._writing[write.key].revision = 0 if write.record is None else revision
        self._done(again=False)

    def refused(self, revisions: dict[str, int]) -> None:
        """The store's copies have other revisions: these."""
        for key, shard in self._writing.items():
            shard.revision = revisions[key]
        self._done(again=True)

    def doubtful(self) -> None:
        """Nobody knows whether the batch has been, or will be, written."""
        for shard in self._writing.values():
            shard.doubtful = True
        self._done(again=True)

    def not_written(self) -> None:
        """The batch is certainly not in the store, and will not be."""
        self._done(again=True)

    def _done(self, *, again: bool) -> None:
        writing, self._writing = self._writing, {}
        for shard in writing.values():
            if again:
                self._mark(shard)
            self._forget_if_empty(shard)

    def _forget_if_empty(self, shard: _Shard) -> None:
        held = self._groups.get(shard.group)
        if held is not None and not shard.members and not shard.dirty and not shard.revision:
            held.shards.remove(shard)
            if not held.shards:
                del self._groups[shard.group]

    def _shard_with_room(self, held: _Group, group: str) -> _Shard:
        for shard in held.shards:
            if len(shard.members) < RECORD_MEMBERS:
                return shard
        self._records += 1
        shard = _Shard(f"{prefix_of(group)}{self._incarnation}.{self._records}", group)
        held.shards.append(shard)
        return shard

    def _put(self, held: _Group, shard: _Shard, membership: Membership) -> None:
        shard.members[membership.address.name, membership.address.epoch] = membership
        self._changes += 1
        held.version = self._changes
        self._mark(shard)

    def _take_out(self, group: str, actor: Member) -> None:
        held = self._groups[group]
        shard = held.place.pop(actor)
        del shard.members[actor]
        self._changes += 1
        held.version = self._changes
        self._mark(shard)

    def _mark(self, shard: _Shard) -> None:
        shard.dirty = True
        self._dirty[shard.key] = shard
