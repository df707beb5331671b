"""What makes no sense is refused with an error that says so, at each door, and harms nothing: the
pool has the same members afterwards, none of them has anything to do, and the next map works.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import pytest
import trio

from actors import Actor, method
from actors.errors import (
    ActorNotFoundError,
    ActorStartError,
    BadArgumentsError,
    EncodeError,
    JournalInUseError,
)
from runtime import aio, blocking
from runtime.node import internals_of
from runtime.pools.pool import Pool
from runtime.timings import Timings
from tests.live_pair import Pair
from tests.pools.actors_used import Squares, Unstartable, triple
from tests.pools.bad_input import BAD_MAPS, BAD_POOLS, BadMap
from tests.pools.test_pools import running
from tests.waiting import until


async def unharmed(pair: Pair, pool: Pool[Squares], members: set[str]) -> None:
    """The pool is as it was."""
    assert {member.name for member in pool.members()} == members
    # All members are there: this node drives the work.
    await until(lambda: running(pair.there), "the members are free", lambda left: left == 0)
    assert [result async for result in pool.map(Squares.square, range(9))] == [
        item * item for item in range(9)
    ]


# The same table at each door.


async def given_by(bad: BadMap, pool: Any) -> tuple[list[Any], Exception]:
    """What a pool gives at a door with `await`, and how it ends."""
    given: list[Any] = []
    try:
        run = pool.starmap if bad.spread else pool.map
        async for result in run(bad.method, bad.items(), **bad.options):
            given.append(result)
    except Exception as error:
        return given, error
    pytest.fail(f"{bad.id} was accepted")


async def cannot_open(node: Any) -> None:
    """Try to open each of the bad pools, at a door with `await`."""
    for bad in BAD_POOLS:
        error: Exception | None = None
        try:
            await node.pool("bad", bad.actor, **bad.sizes)
        except Exception as found:
            error = found
        bad.check(error)


async def test_bad_maps_of_trio(pair: Pair) -> None:
    pool = await (await pair.here.pool("squares", Squares, size=2)).ready(2)
    members = {member.name for member in pool.members()}
    for bad in BAD_MAPS:
        bad.check(*await given_by(bad, pool))
        await unharmed(pair, pool, members)
    await cannot_open(pair.here)
    await unharmed(pair, pool, members)


class Tester(Actor):
    """Does the same from within an actor."""

    @method
    async def run(self, name: str) -> list[tuple[str, list[int], str]]:
        """What each of the maps gives, and its error."""
        pool = await self.node.lookup_pool(name, Squares)
        found: list[tuple[str, list[int], str]] = []
        for bad in BAD_MAPS:
            given, error = await given_by(bad, pool)
            bad.check(given, error)
            found.append((bad.id, given, str(error)))
        await cannot_open(self.node)
        return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[blocking.BlockingLocalCluster]:
    """One for all: its processes take a second to start."""
    with blocking.open_local_cluster(1) as opened:
        yield opened


@pytest.mark.cluster
def test_bad_maps_of_scripts(cluster: blocking.BlockingLocalCluster) -> None:
    with cluster.pool(None, Squares, size=2) as pool:
        for bad in BAD_MAPS:
            if bad.is_async:
                continue
            given: list[Any] = []
            run: Callable[..., Any] = pool.starmap if bad.spread else pool.map
            error: Exception | None = None
            try:
                for result in run(bad.method, bad.items(), **bad.options):
                    given.append(result)
            except Exception as found:
                error = found
            bad.check(given, error)
            assert list(pool.map(Squares.square, range(9))) == [item * item for item in range(9)]
        for bad_pool in BAD_POOLS:
            error = None
            try:
                cluster.pool("bad", bad_pool.actor, **cast("Any", bad_pool.sizes))
            except Exception as found:
                error = found
            bad_pool.check(error)
        assert list(pool.map(Squares.square, range(9))) == [item * item for item in range(9)]


@pytest.mark.cluster
def test_bad_maps_of_asyncio_programs(cluster: blocking.BlockingLocalCluster) -> None:
    async def main() -> None:
        async with (
            aio.connect(cluster.address) as own,
            await own.pool(None, Squares, size=2) as pool,
        ):
            for bad in BAD_MAPS:
                bad.check(*await given_by(bad, pool))
                again = pool.map(Squares.square, range(9))
                assert [result async for result in again] == [item * item for item in range(9)]
            await cannot_open(own)

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.cluster
@pytest.mark.parametrize("isolation", ["none", "process"])
def test_bad_maps_of_actors(cluster: blocking.BlockingLocalCluster, isolation: Any) -> None:
    with cluster.pool(f"squares-{isolation}", Squares, size=2) as pool:
        tester = cluster.options(isolation=isolation, on="worker-1").spawn(Tester)
        found = tester.run(pool.name)
        assert [id for id, _, _ in found] == [bad.id for bad in BAD_MAPS]
        assert list(pool.map(Squares.square, range(9))) == [item * item for item in range(9)]


# Pools that are opened, resized and called.


def at_the_top(item: int) -> int:
    """A function that claims to be of the main script, which the tests' is not."""
    return item


def halves(item: int) -> Iterator[int]:
    """It has no one result."""
    yield item // 2


def nested() -> Callable[[int], int]:
    """A function that no other process could import."""

    def inner(item: int) -> int:
        return item

    return inner


at_the_top.__module__ = "__main__"


class Seldom(Actor):
    """Its constructor raises the first time in a process, and each time but one in `every`."""

    starts = 0

    def __init__(self, every: int) -> None:
        Seldom.starts += 1
        if Seldom.starts % every:
            raise LookupError(f"no licence at start {Seldom.starts}")

    @method
    async def square(self, item: int) -> int:
        return item * item


@pytest.mark.parametrize(
    ("function", "error", "says"),
    [
        (nested(), TypeError, "defined inside of a function: define it with `def` at the top"),
        (halves, TypeError, "halves is a generator, which has no one result for an item"),
        (
            at_the_top,
            ActorStartError,
            "a function of the main script is known only to the nodes of its own local cluster",
        ),
    ],
)
async def test_a_function_that_members_cannot_run(
    pair: Pair, function: Callable[[int], int], error: type[Exception], says: str
) -> None:
    pool = await (await pair.here.pool("squares", Squares, size=2)).ready(2)
    members = {member.name for member in pool.members()}
    with pytest.raises(error, match=says):
        await pair.here.pool("functions", function, size=1)
    # The name is free again, and no node goes on trying.
    again: Any = await pair.there.pool("functions", triple, size=1)
    async with again:
        assert [result async for result in again.map(triple, [1, 2])] == [3, 6]
    await unharmed(pair, pool, members)


async def test_a_named_pool_that_could_not_be_opened_leaves_nothing_behind(pair: Pair) -> None:
    for _ in range(2):
        with pytest.raises(ActorStartError, match="LookupError: no licence"):
            await pair.here.pool("jobs", Unstartable, size=2)
        with pytest.raises(ActorNotFoundError):
            await pair.there.lookup_pool("jobs", Unstartable)
    for node in (pair.here, pair.there):
        assert not [name for name in internals_of(node).cells if name.startswith("jobs")]


class Endless(Actor):
    """Its start never ends."""

    async def on_start(self) -> None:
        await trio.sleep_forever()


async def test_a_caller_that_leaves_while_its_pool_opens_leaves_nothing_behind(pair: Pair) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(functools.partial(pair.here.pool, "jobs", Endless, size=1))
        await until(
            lambda: [name for name in internals_of(pair.there).cells if "member" in name],
            "a member starts",
        )
        nursery.cancel_scope.cancel()
    with pytest.raises(ActorNotFoundError):
        await pair.there.lookup_pool("jobs", Endless)
    async with await pair.there.pool("jobs", Squares, size=1) as pool:
        assert [result async for result in pool.map(Squares.square, [3])] == [9]


async def test_a_constructor_that_raises_now_and_then_costs_nothing_but_time(pair: Pair) -> None:
    Seldom.starts = 0
    pool = await (await pair.here.pool("jobs", Seldom, 3, size=3)).ready(3)
    assert Seldom.starts >= 9, "each of them needed three attempts"
    found = [result async for result in pool.map(Seldom.square, range(50))]
    assert found == [item * item for item in range(50)]


async def test_bad_names_sizes_and_calls(pair: Pair) -> None:
    pool = await (await pair.here.pool("squares", Squares, size=2)).ready(2)
    members = {member.name for member in pool.members()}
    lock: Any = threading.Lock()
    nonsense: Any = 3
    with pytest.raises(TypeError, match="name must be a str or None, not 3"):
        await pair.here.pool(nonsense, Squares, size=1)
    with pytest.raises(TypeError, match="looked up by its name, a str, and not by 3"):
        await pair.here.lookup_pool(nonsense, Squares)
    with pytest.raises(EncodeError, match=r"args\[0\] is a _thread.lock"):
        await pair.here.pool("locks", Squares, lock, size=1)
    with pytest.raises(ActorNotFoundError):
        await pair.here.lookup_pool("locks", Squares)
    with pytest.raises(ValueError, match="idle_timeout makes no sense"):
        await pair.here.pool("idle", Squares, size=1, idle_timeout=1.0)
    for size, says in (
        ({"size": 0}, "pool without members"),
        ({}, "a pool has one size"),
        ({"min": 3, "max": 2}, "3 is above 2"),
        ({"min": 0, "max": 0}, "pool without members"),
        ({"size": -1}, "size must be at least 0, not -1"),
        ({"size": 100_001}, "size must be at most 100,000, not 100001"),
        ({"per_node": 0}, "pool without members"),
    ):
        with pytest.raises(ValueError, match=says):
            await pool.resize(**size)
    with pytest.raises(TypeError, match="count must be a whole number, not 'two'"):
        await pool.ready("two")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"routing is \"least-loaded\".* not 'nearest'"):
        pool.choose("nearest")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="needs a key"):
        pool.choose("hash")
    for call in (pool.submit, pool.call_all):
        with pytest.raises(EncodeError, match=r"square was not called: argument item is a _thread"):
            await call(Squares.square, lock)
        with pytest.raises(TypeError, match="and not <class"):
            await call(Squares, 1)
    with pytest.raises(BadArgumentsError, match="too many positional arguments"):
        await pool.submit(Squares.square, 1, 2)  # type: ignore[call-arg]
    for name in ("a/b", ""):
        with pytest.raises(ValueError, match="1 to 200 printable characters"):
            await pool.remove_journal(name)
    await unharmed(pair, pool, members)


@pytest.mark.parametrize("timings", [Timings(lease=0.5)], ids=["short patience"])
async def test_a_journal_that_another_map_uses_at_the_same_time(pair: Pair) -> None:
    pool = await (await pair.here.pool("squares", Squares, size=2)).ready(2)
    members = {member.name for member in pool.members()}
    async with pool.map(Squares.hang, [1], journal="job") as one, trio.open_nursery() as nursery:
        nursery.start_soon(anext, one)
        await until(lambda: one.counts().running, "it runs")
        for use in (
            lambda: anext(pool.map(Squares.hang, [1], journal="job")),
            lambda: pool.remove_journal("job"),
            lambda: pair.there.remove_pool_journal("job"),
        ):
            with pytest.raises(JournalInUseError, match="in use by a map on node here"):
                await use()
        assert one.counts().running == 1, "the first one goes on"
        nursery.cancel_scope.cancel()
    await unharmed(pair, pool, members)
    assert await pool.remove_journal("job")


@pytest.mark.parametrize("source", ["plain", "async"])
async def test_members_are_free_when_a_source_raises_and_when_the_caller_leaves(
    pair: Pair, source: str
) -> None:
    pool = await (await pair.here.pool("squares", Squares, size=2)).ready(2)
    members = {member.name for member in pool.members()}

    def plain() -> Iterator[int]:
        yield from (0, 1)
        raise LookupError("dry")

    async def later() -> AsyncIterator[int]:
        for item in plain():
            yield item

    items: Any = plain if source == "plain" else later
    # The first item would take an hour: the error comes after its result, so the caller leaves.
    with trio.move_on_after(60) as scope:
        async with trio.open_nursery() as nursery:
            results = pool.map(Squares.slow_if, items())
            nursery.start_soon(anext, results)
            await until(lambda: running(pair.there), "one of them works")
            scope.cancel()
    await unharmed(pair, pool, members)
    with pytest.raises(LookupError, match="dry"):
        async for _ in pool.map(Squares.picky, items()):
            pass
    await unharmed(pair, pool, members)
