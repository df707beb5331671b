"""Pools whose members take resources of their nodes: they are started where these are, never more
than there is room for, and what they have taken is free when they have ended.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from actors.errors import ActorStartError, NoPlacementError
from runtime import open_node
from runtime.environment import SystemEnvironment
from runtime.node import Node, internals_of
from runtime.pools.pool import Pool
from runtime.pools.supervisor import PoolSupervisor
from runtime.testing import Platform
from runtime.timings import Timings
from tests.pools.actors_used import Squares
from tests.waiting import until

SECRET = "a secret for the tests of resources of pools"
GPU = {"gpu": 1.0}
GPUS = {"driver": 0, "left": 2, "right": 2, "bare": 0}
"""How many each node has."""


@pytest.fixture
async def nodes() -> AsyncIterator[dict[str, Node]]:
    """By name."""
    found: dict[str, Node] = {}
    async with AsyncExitStack() as stack:
        for name, gpus in GPUS.items():
            join = found["driver"].address if found else None
            # No test here waits for room that does not come.
            platform = Platform(environment=SystemEnvironment(Timings(first_placement=0.1)))
            opening = open_node(
                name, join=join, secret=SECRET, resources={"gpu": gpus}, platform=platform
            )
            found[name] = await stack.enter_async_context(opening)
        await found["driver"].wait_for(len(GPUS))
        yield found
        for node in found.values():
            internals_of(node).host.check_invariants()


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Where pools have started members, or tried to."""
    found: list[str | None] = []
    begin = PoolSupervisor._begin

    def noted(self: PoolSupervisor, kind: str, node: str | None) -> None:
        if kind == "member-":
            found.append(node)
        begin(self, kind, node)

    monkeypatch.setattr(PoolSupervisor, "_begin", noted)
    return found


def where(pool: Pool[Squares]) -> Counter[str]:
    """How many members each node has."""
    return Counter(member.address.node for member in pool.members())


def taken(nodes: dict[str, Node]) -> Counter[str]:
    """How many GPUs are taken of each node."""
    return Counter(
        {name: len(internals_of(node).host.allocations.holders) for name, node in nodes.items()}
    )


async def test_members_for_each_node_are_on_those_that_have_what_they_take(
    nodes: dict[str, Node], places: list[str | None]
) -> None:
    async with await nodes["driver"].pool(None, Squares, per_node=1, resources=GPU) as pool:
        await pool.ready(2)
        assert where(pool) == {"left": 1, "right": 1}
        await pool.resize(per_node=2)
        await pool.ready(4)
        assert where(pool) == {"left": 2, "right": 2}
        await pool.resize(per_node=1)
        await until(lambda: taken(nodes), "two have ended", lambda now: sum(now.values()) == 2)
        await pool.resize(per_node=2)
        await until(lambda: where(pool), "they are back", lambda now: sum(now.values()) == 4)
        assert {*places} == {"left", "right"}, "none was tried where there is no GPU"
    assert not any(taken(nodes).values())


async def test_a_pool_for_which_no_node_has_what_its_members_take_says_what_each_lacks(
    nodes: dict[str, Node],
) -> None:
    with pytest.raises(NoPlacementError, match="has no disk"):
        await nodes["driver"].options(resources={"disk": 1}).spawn(Squares)
    with pytest.raises(ActorStartError, match="has no disk"):
        await nodes["driver"].pool(None, Squares, size=1, resources={"disk": 1})


async def test_a_pool_that_is_larger_than_the_room_says_so_in_one_line_and_fills_what_is_freed(
    nodes: dict[str, Node], places: list[str | None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "understudy")
    driver = nodes["driver"]
    guests = [await driver.options(on="left", resources=GPU).spawn(Squares) for _ in range(2)]

    def lines(level: int) -> list[str]:
        return [
            record.getMessage()
            for record in caplog.records
            if record.levelno == level and "pool" in record.getMessage()
        ]

    async with await driver.pool("many", Squares, size=7, resources=GPU) as pool:
        await until(lambda: len(places), "it has tried again, twice", lambda tries: tries >= 9)
        (line,) = lines(logging.WARNING)
        assert line.startswith("pool many has 2 of its 7 members, and there is no room")
        assert all(f"{name} has 0 gpu left of 2" in line for name in ("left", "right"))
        # All at first; then one at a time, and not all that it lacks.
        assert places[:7] == [None] * 7
        assert where(pool) == {"right": 2}
        for guest in guests:
            await driver.stop(guest)
        await until(lambda: where(pool), "they follow", lambda now: sum(now.values()) == 4)
        await pool.resize(4)
        await until(
            lambda: lines(logging.INFO),
            "it says that it has all",
            lambda found: any("has all of its 4 members" in line for line in found),
        )
    assert len(lines(logging.WARNING)) <= 3


async def test_members_that_were_to_start_on_a_node_that_leaves_start_on_another() -> None:
    """Not when the time for a first start is over: that is an hour here."""
    platform = Platform(environment=SystemEnvironment(Timings(first_placement=3600.0)))
    async with (
        open_node("driver", secret=SECRET, platform=platform) as driver,
        open_node("left", join=driver.address, secret=SECRET, platform=platform) as left,
        open_node("right", join=driver.address, secret=SECRET, platform=platform),
    ):
        await driver.wait_for(3)
        # The others do not know yet that it leaves.
        internals_of(left).host.take_no_new_work()
        async with await driver.pool("some", Squares, size=2) as pool:
            await until(lambda: where(pool), "one is there", lambda now: now == {"right": 1})
            await internals_of(left).registration.set_state("draining")
            await until(lambda: where(pool), "both are there", lambda now: now == {"right": 2})
