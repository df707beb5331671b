"""Maps over pools of real processes, which are killed, join and leave meanwhile."""

from __future__ import annotations

from collections import Counter

import pytest
import trio

from actors import Actor, method
from actors.errors import OutcomeUnknownError
from runtime import LocalCluster, open_local_cluster
from runtime.environment import SystemEnvironment
from runtime.pools.pool import Pool
from tests.waiting import until

pytestmark = pytest.mark.cluster


class Adder(Actor):
    """Adds a bit of work."""

    @method(idempotent=True)
    def often(self, item: int) -> int:
        return sum(range(200)) + item

    @method
    def once(self, item: int) -> int:
        return sum(range(200)) + item

    @method
    def home(self) -> str:
        return self.node.name


def expected(count: int) -> list[int]:
    return [sum(range(200)) + item for item in range(count)]


async def disturb(cluster: LocalCluster, times: int) -> None:
    """Kill nodes, start others, and ask some to leave."""
    environment = SystemEnvironment()
    for turn in range(times):
        await trio.sleep(0.3 + 0.5 * environment.random())
        alive = [one for one in cluster.processes.values() if one.running]
        if turn % 3 == 2:
            await alive[0].leave()
        else:
            alive[0].kill()
        await cluster.start_node()


async def map_while_disturbed(items: int, times: int) -> None:
    async with open_local_cluster(nodes=3) as cluster:
        pool = await cluster.node.pool("adders", Adder, size=3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(disturb, cluster, times)
            found = [result async for result in pool.map(Adder.often, range(items))]
            assert found == expected(items)
            nursery.cancel_scope.cancel()
        unknown = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(disturb, cluster, times)
            index = 0
            async for result in pool.map(Adder.once, range(items), on_error="return"):
                if isinstance(result, OutcomeUnknownError):
                    unknown += 1
                else:
                    assert result == sum(range(200)) + index
                index += 1
            assert index == items
            nursery.cancel_scope.cancel()
        # Two batches at most for each death.
        assert unknown <= times * 2 * 1024


@pytest.mark.slow
async def test_no_item_is_lost_while_nodes_are_killed_join_and_leave() -> None:
    await map_while_disturbed(20_000, 2)


@pytest.mark.long
async def test_no_item_of_a_hundred_thousand_is_lost() -> None:
    await map_while_disturbed(100_000, 8)


@pytest.mark.slow
async def test_a_named_pool_survives_the_node_that_opened_it() -> None:
    async with open_local_cluster(nodes=3) as cluster:
        opener = await cluster.node.options(on="worker-1").spawn(Opener)
        await opener.open()
        pool = await cluster.node.lookup_pool("adders", Adder)
        await pool.ready(2)
        with trio.fail_after(60):
            results = pool.map(Adder.often, range(30_000))
            found = [await anext(results)]
            process = cluster.process("worker-1")
            process.kill()
            await process.wait()
            found += [result async for result in results]
            assert found == expected(30_000)
            await pool.resize(3)
            await pool.ready(3)
            again = await cluster.node.lookup_pool("adders", Adder)
            assert [result async for result in again.map(Adder.often, range(10))] == expected(10)
        await pool.stop()


async def test_a_pool_has_one_member_on_each_node_that_joins_and_none_on_one_that_left() -> None:
    async with open_local_cluster(nodes=1) as cluster:
        pool = await cluster.node.pool("adders", Adder, per_node=1)
        await pool.ready(1)
        await cluster.start_node()
        await pool.ready(2)
        assert await homes(pool) == {"worker-1": 1, "worker-2": 1}
        await cluster.process("worker-1").leave()
        await until(lambda: len(pool.members()) == 1, "the member of the node that left has ended")
        assert await homes(pool) == {"worker-2": 1}
        assert [result async for result in pool.map(Adder.often, range(100))] == expected(100)
        await cluster.start_node()
        await pool.ready(2)
        assert await homes(pool) == {"worker-2": 1, "worker-3": 1}


async def homes(pool: Pool[Adder]) -> Counter[str | None]:
    """How many members each node has."""
    return Counter([answer.value for answer in await pool.call_all(Adder.home)])


class Opener(Actor):
    """Opens a pool on its node."""

    @method
    async def open(self) -> None:
        self.pool = await self.node.pool("adders", Adder, size=2)
