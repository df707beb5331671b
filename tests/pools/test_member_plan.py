"""Where members of a pool are started and stopped: the plan alone."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pytest

from runtime.pools.member_plan import MOST_MEMBERS, MemberChanges, PoolSize, plan, wanted_members


def settled(
    size: PoolSize,
    nodes: list[str],
    placed: dict[str, str | None] | None = None,
    *,
    demand: int = 0,
    **options: Any,
) -> dict[str, str | None]:
    """What comes of plan after plan, when each is carried out, until nothing is to be done."""
    members = dict(placed or {})
    known = set(members)
    fresh = (f"new-{number}" for number in itertools.count() if f"new-{number}" not in known)
    for _ in range(200):
        changes = plan(size, demand, nodes, members, **options)
        if changes == MemberChanges():
            return members
        for node in changes.starts:
            members[next(fresh)] = node
        for member in changes.stops:
            del members[member]
    raise AssertionError(f"it goes on for ever: {members}")


def on_nodes(members: dict[str, str | None]) -> dict[str | None, int]:
    return dict(Counter(members.values()))


def test_members_are_spread_and_not_on_the_node_that_opened_the_pool() -> None:
    size = PoolSize.of(5)
    found = on_nodes(settled(size, ["a", "b", "me"], opener="me"))
    assert sorted(found) == ["a", "b"]  # type: ignore[type-var]
    assert sorted(found.values()) == [2, 3]
    assert on_nodes(settled(size, ["me"], opener="me")) == {"me": 5}, "there is no other"


def test_members_move_to_a_node_that_joins_until_the_spread_is_even() -> None:
    size = PoolSize.of(6)
    before = settled(size, ["a", "b"])
    after = settled(size, ["a", "b", "c"], before)
    assert on_nodes(after) == {"a": 2, "b": 2, "c": 2}
    assert len(before.keys() & after.keys()) == 4, "no more moved than had to"


def test_members_move_from_the_opener_once_there_is_another_node() -> None:
    before = settled(PoolSize.of(2), ["me"], opener="me")
    assert on_nodes(settled(PoolSize.of(2), ["me", "a"], before, opener="me")) == {"a": 2}


def test_none_is_moved_while_members_start() -> None:
    members: dict[str, str | None] = {"1": "a", "2": "a", "3": "a"}
    assert plan(PoolSize.of(3), 0, ["a", "b"], members, busy={"3"}) == MemberChanges()
    assert plan(PoolSize.of(3), 0, ["a", "b"], members).starts == ("b",)


def test_so_many_on_each_node_also_on_those_that_join() -> None:
    size = PoolSize.of(per_node=2)
    before = settled(size, ["a"])
    assert on_nodes(before) == {"a": 2}
    after = settled(size, ["a", "b", "c"], before)
    assert on_nodes(after) == {"a": 2, "b": 2, "c": 2}
    assert before.keys() <= after.keys()
    left = settled(size, ["b", "c"], after)
    assert on_nodes(left) == {"b": 2, "c": 2}
    assert on_nodes(settled(PoolSize.of(per_node=1), ["b", "c"], left)) == {"b": 1, "c": 1}


def test_without_nodes_nothing_is_begun() -> None:
    assert plan(PoolSize.of(3), 0, [], {}) == MemberChanges()
    assert plan(PoolSize.of(per_node=3), 0, [], {"1": "a"}) == MemberChanges()


def test_the_runtime_places_members_that_need_resources() -> None:
    changes = plan(PoolSize.of(3), 0, ["a", "b"], {"1": None}, free=True)
    assert changes == MemberChanges(starts=(None, None))


@pytest.mark.parametrize(("demand", "members"), [(0, 2), (1, 2), (5, 5), (64, 8), (10**9, 8)])
def test_a_pool_grows_with_demand_within_its_bounds(demand: int, members: int) -> None:
    size = PoolSize.of(least=2, most=8)
    assert wanted_members(size, demand, 3) == members
    found = settled(size, ["a", "b"], demand=demand)
    assert len(found) == members
    assert len(settled(size, ["a", "b"], found)) == 2, "and shrinks without"


def test_a_large_pool_is_planned_in_time_that_grows_with_its_size() -> None:
    # Far beyond the time limit of a test if each member were compared with all others.
    nodes = [f"n{i}" for i in range(200)]
    starts = plan(PoolSize.of(MOST_MEMBERS), 0, nodes, {}).starts
    assert {*Counter(starts).values()} == {MOST_MEMBERS // 200}
    placed = {str(i): node for i, node in enumerate(starts)}
    stops = plan(PoolSize.of(200), 0, nodes, placed).stops
    assert {*Counter(placed[id] for id in stops).values()} == {MOST_MEMBERS // 200 - 1}


# In tens: a test for each seed costs more than what it tests.
@pytest.mark.parametrize("tens", range(20))
def test_whatever_comes_and_goes_the_plan_settles_on_an_even_spread(tens: int) -> None:
    for seed in range(10 * tens, 10 * tens + 10):
        _check_spread(random.Random(seed))


def _check_spread(draw: random.Random) -> None:
    members: dict[str, str | None] = {}
    for _ in range(8):
        nodes = draw.sample(["a", "b", "c", "d", "me"], draw.randrange(1, 6))
        # Members die with their nodes, and now and then alone.
        members = {
            id: node for id, node in members.items() if node in nodes and draw.random() < 0.9
        }
        per_node = draw.random() < 0.4
        size = (
            PoolSize.of(per_node=draw.randrange(1, 4))
            if per_node
            else (PoolSize.of(draw.randrange(1, 9)))
        )
        members = settled(size, nodes, members, opener="me")
        others = [node for node in nodes if node != "me"] or nodes
        found = Counter(dict.fromkeys(others, 0))
        found.update(members.values())  # type: ignore[arg-type]
        assert set(found) == set(others)
        assert max(found.values()) - min(found.values()) <= 1
        wanted = size.per_node * len(others) if size.per_node else size.least
        assert len(members) == wanted
