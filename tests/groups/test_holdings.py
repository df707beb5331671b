"""What a node writes of its members, and what others make of it: no store, no clock."""

from __future__ import annotations

import random

from actors.identifiers import ActorId, NodeId
from actors.method import Address
from runtime.groups.memberships import (
    MOST_RECORDS,
    RECORD_MEMBERS,
    GroupRecord,
    GroupView,
    LocalMemberships,
    from_plain,
    plain,
    prefix_of,
)
from tests.invariants import checked_in_module

look_through_tables = checked_in_module(LocalMemberships)


def actor(name: str, epoch: int = 1) -> Address:
    return Address(name, "here", 7, epoch, "module:Class", True)


class FakeStore:
    """Revisions and conditions, nothing else. What is `lost` is applied, now or later, without an
    answer.
    """

    def __init__(self) -> None:
        self.revision = 10
        self.records: dict[str, tuple[int, GroupRecord]] = {}

    def write(self, holdings: LocalMemberships) -> bool:
        writes = holdings.batch()
        found = {
            write.key: self.records[write.key][0] if write.key in self.records else 0
            for write in writes
        }
        if any(found[write.key] != write.revision for write in writes):
            holdings.on_refused(found)
            return False
        self.apply(writes)
        holdings.on_written(self.revision, writes)
        return True

    def apply(self, writes: list) -> bool:
        if any(
            (self.records[write.key][0] if write.key in self.records else 0) != write.revision
            for write in writes
        ):
            return False
        self.revision += 1
        for write in writes:
            if write.record is None:
                self.records.pop(write.key, None)
            else:
                self.records[write.key] = self.revision, from_plain(plain(write.record))
        return True

    def members(self, group: str) -> dict[str, int]:
        return {
            one.address.name: one.times
            for key, (_, record) in self.records.items()
            if key.startswith(prefix_of(group))
            for one in record.members
        }


def settle(store: FakeStore, holdings: LocalMemberships) -> None:
    for _ in range(100):
        if not holdings.is_dirty:
            return
        store.write(holdings)
    raise AssertionError("does not settle")


def test_what_joins_meanwhile_goes_in_one_write() -> None:
    holdings, store = LocalMemberships("here", 7), FakeStore()
    for number in range(RECORD_MEMBERS + 1):
        holdings.join("g", actor(f"a{number}"))
    assert store.write(holdings)
    assert not holdings.is_dirty
    assert len(store.records) == 2
    assert len(store.members("g")) == RECORD_MEMBERS + 1


def test_a_batch_has_a_bound_and_what_is_left_comes_with_the_next() -> None:
    holdings, store = LocalMemberships("here", 7), FakeStore()
    for number in range(MOST_RECORDS + 1):
        holdings.join(f"g{number}", actor("a"))
    assert len(holdings.batch()) == MOST_RECORDS
    holdings.on_not_written()
    settle(store, holdings)
    assert len(store.records) == MOST_RECORDS + 1


def test_one_more_or_less_changes_one_record() -> None:
    holdings, store = LocalMemberships("here", 7), FakeStore()
    for number in range(3 * RECORD_MEMBERS):
        holdings.join("g", actor(f"a{number}"))
    settle(store, holdings)
    assert holdings.leave("g", ActorId("a5", 1))
    assert len(holdings.batch()) == 1


def test_what_changes_while_it_is_written_is_written_again() -> None:
    holdings, store = LocalMemberships("here", 7), FakeStore()
    holdings.join("g", actor("a"))
    writes = holdings.batch()
    holdings.join("g", actor("b"))
    assert store.apply(writes)
    holdings.on_written(store.revision, writes)
    assert holdings.is_dirty
    settle(store, holdings)
    assert store.members("g") == {"a": 1, "b": 1}


def test_times_are_counted_and_the_end_takes_all_of_them() -> None:
    holdings, store = LocalMemberships("here", 7), FakeStore()
    for _ in range(3):
        holdings.join("g", actor("a"))
    holdings.join("h", actor("a"))
    assert holdings.leave("g", ActorId("a", 1))
    settle(store, holdings)
    assert store.members("g") == {"a": 2}
    assert sorted(holdings.on_ended(ActorId("a", 1))) == ["g", "h"]
    assert holdings.on_ended(ActorId("a", 1)) == []
    assert not holdings.leave("g", ActorId("a", 1))
    settle(store, holdings)
    assert store.records == {}
    assert len(holdings) == 0


def test_the_version_changes_with_every_change_and_is_never_an_old_one() -> None:
    holdings, store = LocalMemberships("here", 7), FakeStore()
    seen = {holdings.version("g")}
    for _ in range(3):
        holdings.join("g", actor("a"))
        assert holdings.version("g") not in seen
        seen.add(holdings.version("g"))
        holdings.leave("g", ActorId("a", 1))
        settle(store, holdings)


def test_a_write_that_comes_late_makes_no_ghost_member() -> None:
    for seed in range(500):
        draw = random.Random(seed)
        holdings, store = LocalMemberships("here", 7), FakeStore()
        late: list[list] = []
        for _ in range(40):
            name, group = f"a{draw.randrange(4)}", f"g{draw.randrange(2)}"
            match draw.randrange(6):
                case 0 | 1:
                    holdings.join(group, actor(name))
                case 2:
                    holdings.leave(group, ActorId(name, 1))
                case 3:
                    holdings.on_ended(ActorId(name, 1))
                case 4 if late:
                    store.apply(late.pop(draw.randrange(len(late))))
                case _ if holdings.is_dirty:
                    if draw.random() < 0.4:
                        late.append(holdings.batch())
                        holdings.on_doubtful()
                    else:
                        store.write(holdings)
                case _:
                    pass
        settle(store, holdings)
        expected = {
            group: {one.address.name: one.times for one in holdings.members(group)}
            for group in ("g0", "g1")
        }
        for writes in late:
            store.apply(writes)
            # A late one may have taken effect where nothing newer had been written: never
            # otherwise.
        assert {group: store.members(group) for group in expected} == expected, seed


def test_a_view_shows_the_members_of_live_nodes_but_not_its_own() -> None:
    def record(node: str, incarnation: int, *names: str) -> GroupRecord:
        holdings = LocalMemberships(node, incarnation)
        for name in names:
            holdings.join("g", Address(name, node, incarnation, 1))
        (write,) = holdings.batch()
        assert write.record is not None
        return write.record

    view = GroupView(7)
    view.replace(
        {
            "g/9.1": record("z", 9, "b"),
            "g/8.1": record("there", 8, "a"),
            "g/7.1": record("here", 7, "own"),
        },
        20,
    )
    dead: set[NodeId] = set()

    def names() -> list[str]:
        return [one.address.name for one in view.members(lambda node: node not in dead)]

    assert names() == ["a", "b"]
    assert view.nodes() == {NodeId("there", 8), NodeId("z", 9)}
    version = view.version
    view.change([("g/8.2", record("there", 8, "c")), ("g/9.1", None)], 22)
    assert names() == ["a", "c"]
    assert view.version != version
    view.change([("g/8.1", None)], 21)
    assert names() == ["a", "c"]
    dead.add(NodeId("there", 8))
    assert names() == []
