"""The memberships of one node's own actors, and which of them the store does not have yet.

No I/O and no clock. The writer takes a `batch`, writes it, and reports the outcome (`on_written`,
`on_refused`, `on_doubtful` or `on_not_written`); changes during the write go into the next batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from actors.identifiers import ActorId, NodeId
from actors.method import Address

# The records of groups in the store, and their keys.
#
# A node writes its members of one group in records of at most `RECORD_MEMBERS`, so that thousands
# fit and an actor that joins or leaves costs one record. All changes of the meantime go into one
# transaction. A write names the revision that it replaces: an abandoned write that arrives late
# changes nothing.

PREFIX = "groups/"


RECORD_MEMBERS = 200
"""Members in one record. Each change writes its whole record anew."""

MOST_RECORDS = 10
"""Records in one transaction: together below etcd's default limit for a request, however long the
names are.
"""


@attrs.frozen
class GroupMembership:
    """An actor in a group, `times` times."""

    address: Address
    times: int


@attrs.frozen
class GroupRecord:
    """A part of the members that one incarnation of a node has of one group."""

    node: str
    incarnation: int
    members: tuple[GroupMembership, ...]


def prefix_of(group: str) -> str:
    """Return the prefix of the keys of a group's records. Slashes in the name are escaped, so that
    no group's prefix is the beginning of another's.
    """
    return f"{PREFIX}{group.replace('%', '%25').replace('/', '%2F')}/"


def plain(record: GroupRecord) -> list[Any]:
    """Convert a record to plain data for the store."""
    members = [
        [
            one.address.name,
            one.address.epoch,
            one.address.class_path,
            one.address.registered,
            one.times,
        ]
        for one in record.members
    ]
    return [record.node, record.incarnation, members]


def from_plain(value: Any) -> GroupRecord:
    """Decode what `plain` has made. Raises ValueError or TypeError for anything else."""
    node, incarnation, members = value
    return GroupRecord(
        node,
        incarnation,
        tuple(
            GroupMembership(
                Address(name, node, incarnation, epoch, class_path, registered), int(times)
            )
            for name, epoch, class_path, registered, times in members
        ),
    )


# A group as one node sees it: the records of all other nodes. No I/O and no clock. The node's own
# records are left out: it knows its own members earlier than the store does.


class GroupView:
    """The view of one group. `own`: this node's incarnation."""

    def __init__(self, own: int) -> None:
        self._own = own
        self._records: dict[str, GroupRecord] = {}
        self._nodes: frozenset[NodeId] = frozenset()
        self.revision = 0
        """All changes up to this revision are in the view; 0 before the first."""
        self.version = 0
        """A number that grows with each change of the records."""

    def replace(self, records: Mapping[str, GroupRecord], revision: int) -> None:
        """Replace all records by those of `revision`, unless the view is newer."""
        if revision >= self.revision:
            self._records = {
                key: record for key, record in records.items() if record.incarnation != self._own
            }
            self._moved(revision)

    def change(self, changes: Iterable[tuple[str, GroupRecord | None]], revision: int) -> None:
        """Apply the changes up to `revision`; None for a record that was deleted."""
        # `replace` may have read beyond these changes.
        if revision <= self.revision:
            return
        for key, record in changes:
            if record is None:
                self._records.pop(key, None)
            elif record.incarnation != self._own:
                self._records[key] = record
        self._moved(revision)

    def nodes(self) -> frozenset[NodeId]:
        """Return the incarnations that have members, whether they live or not."""
        return self._nodes

    def members(self, lives: Callable[[NodeId], bool]) -> list[GroupMembership]:
        """Return the members on nodes that live, in the same order on all nodes."""
        records = sorted(
            (
                item
                for item in self._records.items()
                if lives(NodeId(item[1].node, item[1].incarnation))
            ),
            key=lambda item: (item[1].node, item[1].incarnation, len(item[0]), item[0]),
        )
        return [membership for _, record in records for membership in record.members]

    def check_invariants(self) -> None:
        """Assert what must hold between any two changes. For tests and simulations."""
        assert not self._records or self.version > 0
        assert all(record.incarnation != self._own for record in self._records.values()), (
            "this node's own members are not read from the store"
        )
        assert self._nodes == self._nodes_of_records()

    def _moved(self, revision: int) -> None:
        assert revision >= self.revision, "a view never goes back"
        self.revision = revision
        self.version += 1
        # Once for each change: `Groups.state` needs the nodes for each call to a member.
        self._nodes = self._nodes_of_records()

    def _nodes_of_records(self) -> frozenset[NodeId]:
        return frozenset(
            NodeId(record.node, record.incarnation) for record in self._records.values()
        )


@attrs.define(eq=False)
class _Shard:
    """One record. `revision`: that of the store's copy, 0 if there is none. `dirty`: it differs
    from that copy. `doubtful`: a write of it may still arrive at the store.
    """

    key: str
    group: str
    members: dict[ActorId, GroupMembership] = attrs.field(factory=dict)
    revision: int = 0
    dirty: bool = False
    doubtful: bool = False


@attrs.frozen
class GroupWrite:
    """Write one record if the store's copy has this revision (0: there is none); `record` None:
    delete it.
    """

    key: str
    revision: int
    record: GroupRecord | None


@attrs.define(eq=False)
class _LocalGroup:
    shards: list[_Shard] = attrs.field(factory=list)
    place: dict[ActorId, _Shard] = attrs.field(factory=dict)
    version: int = 0


class LocalMemberships:
    """The memberships of one incarnation of a node: one entry for each actor and group."""

    def __init__(self, node: str, incarnation: int) -> None:
        self._node = node
        self._incarnation = incarnation
        self._groups: dict[str, _LocalGroup] = {}
        self._of: dict[ActorId, Counter[str]] = {}
        self._dirty: dict[str, _Shard] = {}
        self._writing: dict[str, _Shard] = {}
        self._records = 0
        self._changes = 0

    def __len__(self) -> int:
        return sum(sum(groups.values()) for groups in self._of.values())

    @property
    def is_dirty(self) -> bool:
        """True if some records have to be written."""
        return bool(self._dirty)

    def join(self, group: str, address: Address) -> None:
        """Add an actor to the group, once more if it is a member already."""
        actor = address.actor_id
        held = self._groups.setdefault(group, _LocalGroup())
        shard = held.place.get(actor)
        if shard is None:
            shard = held.place[actor] = self._shard_with_room(held, group)
        self._of.setdefault(actor, Counter())[group] += 1
        self._put(held, shard, GroupMembership(address, self._of[actor][group]))

    def leave(self, group: str, actor: ActorId) -> bool:
        """Undo one `join` of an actor; False if it is not a member."""
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

    def on_ended(self, actor: ActorId) -> list[str]:
        """Remove an actor that has ended; returns the groups that it was in."""
        groups = [group for group, times in self._of.pop(actor, Counter()).items() if times]
        for group in groups:
            self._take_out(group, actor)
        return groups

    def members(self, group: str) -> list[GroupMembership]:
        """Return the members on this node, in the order in which they joined."""
        held = self._groups.get(group)
        return (
            [held.place[actor].members[actor] for actor in held.place] if held is not None else []
        )

    def version(self, group: str) -> int:
        """Return a number that is another one after each change of `members`."""
        held = self._groups.get(group)
        return held.version if held is not None else 0

    def batch(self) -> list[GroupWrite]:
        """Return the next writes, at most `MOST_RECORDS`. One call of `on_written`, `on_refused`,
        `on_doubtful` or `on_not_written` must follow.
        """
        assert not self._writing, "one batch at a time: its outcome decides what the next replaces"
        self._writing = dict(list(self._dirty.items())[:MOST_RECORDS])
        writes: list[GroupWrite] = []
        for key, shard in self._writing.items():
            del self._dirty[key]
            shard.dirty = False
            # While an earlier write may still arrive that creates the key, the key stays, without
            # members: if it were deleted, that write would create it again.
            empty = not shard.members and not shard.doubtful
            record = (
                None
                if empty
                else GroupRecord(self._node, self._incarnation, tuple(shard.members.values()))
            )
            writes.append(GroupWrite(key, shard.revision, record))
        return writes

    def on_written(self, revision: int, writes: list[GroupWrite]) -> None:
        """The batch was written, at this revision."""
        for write in writes:
            self._writing[write.key].revision = 0 if write.record is None else revision
        self._done(again=False)

    def on_refused(self, revisions: dict[str, int]) -> None:
        """The batch was refused, because the store's copies have other revisions: these."""
        for key, shard in self._writing.items():
            shard.revision = revisions[key]
        self._done(again=True)

    def on_doubtful(self) -> None:
        """The outcome is unknown: the batch may have been written, or may arrive later."""
        # If it arrives later, the revision that it names prevents that it undoes a newer write, and
        # an empty record prevents that it creates the key again.
        for shard in self._writing.values():
            shard.doubtful = True
        self._done(again=True)

    def on_not_written(self) -> None:
        """The batch was not written, and will not be."""
        self._done(again=True)

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. Looks at every member: for tests and
        simulations.
        """
        held_in_all = 0
        for group, held in self._groups.items():
            assert held.shards, "a group without records is forgotten"
            assert len({shard.key for shard in held.shards}) == len(held.shards)
            members = [actor for shard in held.shards for actor in shard.members]
            assert len(set(members)) == len(members), "a member is in one record"
            assert set(members) == held.place.keys()
            for shard in held.shards:
                assert shard.group == group
                assert len(shard.members) <= RECORD_MEMBERS
                assert shard.dirty == (self._dirty.get(shard.key) is shard)
                # A record that is in the store, or may be, stays until it is deleted there.
                assert (
                    shard.members or shard.dirty or shard.key in self._writing or shard.doubtful
                ), "an empty record would never be deleted"
                for actor, one in shard.members.items():
                    assert held.place[actor] is shard
                    assert one.times == self._of[actor][group] > 0
                    held_in_all += one.times
        assert held_in_all == len(self), "no membership without a group"
        assert all(self._of.values()), "an actor that is in no group is forgotten"
        assert len(self._writing) <= MOST_RECORDS

    def _done(self, *, again: bool) -> None:
        assert self._writing, "an outcome belongs to a batch"
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

    def _shard_with_room(self, held: _LocalGroup, group: str) -> _Shard:
        for shard in held.shards:
            if len(shard.members) < RECORD_MEMBERS:
                return shard
        self._records += 1
        shard = _Shard(f"{prefix_of(group)}{self._incarnation}.{self._records}", group)
        held.shards.append(shard)
        return shard

    def _put(self, held: _LocalGroup, shard: _Shard, membership: GroupMembership) -> None:
        address = membership.address
        shard.members[address.actor_id] = membership
        self._changes += 1
        held.version = self._changes
        self._mark(shard)

    def _take_out(self, group: str, actor: ActorId) -> None:
        held = self._groups[group]
        shard = held.place.pop(actor)
        del shard.members[actor]
        self._changes += 1
        held.version = self._changes
        self._mark(shard)

    def _mark(self, shard: _Shard) -> None:
        shard.dirty = True
        self._dirty[shard.key] = shard
