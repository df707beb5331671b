"""Maps with `keep=True`: results stay where they were made, and each item has its one outcome."""

from __future__ import annotations

from typing import cast

import pytest
import trio

from actors import Reference
from actors.errors import OutcomeUnknownError, OwnerDiedError
from actors.supervision import ExitReason
from runtime import open_local_cluster
from runtime.node import Node, internals_of
from runtime.pools.pool import Pool
from tests.live_pair import Pair
from tests.pools.actors_used import NoSuchShapeError, Squares
from tests.waiting import until


async def kept_of(pool: Pool[Squares], count: int) -> list[Reference[int]]:
    """References to the squares of so many numbers."""
    results = pool.map(Squares.square, range(count), keep=True)
    return cast("list[Reference[int]]", [result async for result in results])


def kill_members(node: Node) -> int:
    """Kill the members on a node; the node goes on."""
    host = internals_of(node).host
    members = [cell for cell in host.cells.values() if isinstance(cell.instance, Squares)]
    for cell in members:
        host.end_at_once(cell, ExitReason("killed", "by the test"))
    return len(members)


async def test_what_is_kept_is_fetched_after_its_member_has_died_and_its_pool_has_closed(
    pair: Pair,
) -> None:
    async with await pair.here.pool("squares", Squares, size=2) as pool:
        kept = await kept_of(pool, 20)
        assert {reference.owner for reference in kept} == {"there"}
        assert not any(reference.has_failed for reference in kept)
        assert await kept[3].fetch() == 9
        assert kill_members(pair.there) == 2
        assert await kept[4].fetch() == 16
        # The new members take items whose values those before them have kept.
        pairs = pool.map(Squares.pair, cast("list[int]", kept[:2]))
        assert [result async for result in pairs] == [[0, 0], [1, 1]]
    assert [await reference.fetch() for reference in kept] == [n * n for n in range(20)]


async def test_an_item_that_raises_has_its_error_and_no_reference(pair: Pair) -> None:
    pool = await pair.here.pool("squares", Squares, size=2)
    found = [
        result async for result in pool.map(Squares.picky, range(5), keep=True, on_error="return")
    ]
    assert isinstance(found[3], NoSuchShapeError)
    assert any("in item 3" in note for note in found[3].__notes__)
    others = cast("list[Reference[int]]", found[:3] + found[4:])
    assert [await reference.fetch() for reference in others] == [0, 1, 2, 4]
    with pytest.raises(NoSuchShapeError):
        async for _ in pool.map(Squares.picky, [3], keep=True):
            pass


@pytest.mark.parametrize("repeated", [True, False])
async def test_a_member_that_dies_before_its_result_is_there(pair: Pair, repeated: bool) -> None:
    pool = await pair.here.pool("squares", Squares, size=1)
    Squares.hangs = trio.Event()
    bound = Squares.hang_once_idempotently if repeated else Squares.hang_once
    found: list[object] = []
    async with trio.open_nursery() as nursery:

        async def read() -> None:
            results = pool.map(bound, [7], keep=True, on_error="return")
            found.extend([result async for result in results])

        nursery.start_soon(read)
        await Squares.hangs.wait()
        assert kill_members(pair.there) == 1
        await until(lambda: found, "the item has ended")
    if repeated:
        assert await cast("Reference[int]", found[0]).fetch() == 7
    else:
        assert isinstance(found[0], OutcomeUnknownError)


@pytest.mark.slow
@pytest.mark.cluster
async def test_what_is_kept_is_lost_with_its_node_and_nothing_else_is() -> None:
    async with open_local_cluster(nodes=2) as cluster:
        pool = await (await cluster.node.pool("squares", Squares, size=2)).ready(2)
        kept = await kept_of(pool, 20)
        owners = {reference.owner for reference in kept}
        assert owners == {"worker-1", "worker-2"}
        process = cluster.process("worker-1")
        process.kill()
        await process.wait()
        for number, reference in enumerate(kept):
            if reference.owner == "worker-1":
                with pytest.raises(OwnerDiedError):
                    await reference.fetch()
            else:
                assert await reference.fetch() == number * number
