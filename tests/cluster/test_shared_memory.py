"""Arrays between processes of one host: in shared memory, by value, and nothing is left behind."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import trio

from actors import Actor, UnderstudyError, method
from runtime import LocalCluster, open_local_cluster
from runtime.links.loans import Lending
from runtime.node import internals_of
from tests.waiting import until

numpy = pytest.importorskip("numpy")

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memfd_create (Linux)"),
]

SIZE = 2 * 1024 * 1024


class Keeper(Actor):
    """Keeps and changes what it gets."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    @method
    async def keep(self, array: Any) -> int:
        self.kept.append(array)
        return len(self.kept)

    @method
    async def add_one(self, array: Any) -> Any:
        array += 1
        return array

    @method
    async def same(self, values: Any) -> Any:
        return values

    @method
    async def firsts(self) -> list[float]:
        return [float(array[0]) for array in self.kept]

    @method
    async def drop(self) -> None:
        self.kept.clear()

    @method(concurrent=True)
    async def hold(self, array: Any) -> None:
        await trio.sleep_forever()


def lending(cluster: LocalCluster, name: str = "worker-1") -> Lending:
    """What this process lends to a worker, and borrows from it."""
    (link,) = (link for link in internals_of(cluster.node).links.values() if link.peer.name == name)
    assert link.lending is not None
    return link.lending


def memory_files() -> int:
    """How many arenas this process has open or mapped, its own and others'."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:understudy")


async def test_arrays_travel_in_shared_memory_by_value() -> None:
    async with open_local_cluster(nodes=1) as cluster:
        keeper = await cluster.node.options(on="worker-1").spawn(Keeper)
        array = numpy.zeros(SIZE // 8)
        for _ in range(5):
            result = await keeper.add_one(array)
            assert result[0] == result[-1] == 1
            result[0] = 7
        assert array[0] == array[-1] == 0, "the method has changed its own copy"
        lent = lending(cluster).lender.loaned_bytes
        assert lent >= 3 * SIZE
        # One-way calls leave before anything is awaited: their arrays may change at once.
        for number in range(5):
            array[:] = number
            await keeper.keep.send(array)
        array[:] = -1
        assert await keeper.firsts() == [0, 1, 2, 3, 4]
        assert lending(cluster).lender.loaned_bytes == lent + 5 * SIZE
        await keeper.drop()
        await until(
            lambda: lending(cluster).lender.open_loans, "the memory is returned", lambda n: not n
        )


async def test_segments_of_all_sizes_arrive_in_one_call() -> None:
    """Some are lent. Those that are too small for it are together so many that they travel in
    parts, and so are those that are too large for it.
    """
    async with open_local_cluster(nodes=1) as cluster:
        keeper = await cluster.node.options(on="worker-1").spawn(Keeper)
        sizes = [SIZE, *[100_000] * 20, 3 * SIZE, 66 * 1024 * 1024, 10, SIZE]
        values = [bytes([index]) * size for index, size in enumerate(sizes)]
        for _ in range(10):
            assert await keeper.same(values) == values
            # What is sent before both sides have said that they lend is copied.
            if lending(cluster).lender.loaned_bytes >= 2 * 5 * SIZE:
                break
        else:
            pytest.fail("the segments were copied again and again")


async def test_who_keeps_all_that_it_gets_starves_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.links.loans.LINK_BYTES", 8 * SIZE)
    async with open_local_cluster(nodes=2) as cluster:
        greedy = await cluster.node.options(on="worker-1").spawn(Keeper)
        other = await cluster.node.options(on="worker-2").spawn(Keeper)
        array = numpy.ones(SIZE // 8)
        for number in range(20):
            array[:] = number
            assert await greedy.keep(array) == number + 1
        assert await greedy.firsts() == list(range(20))
        assert lending(cluster).lender.open_loans == 8
        await other.add_one(array)
        before = lending(cluster, "worker-2").lender.loaned_bytes
        await other.add_one(array)
        assert lending(cluster, "worker-2").lender.loaned_bytes == before + SIZE


@pytest.mark.parametrize("round_", range(3))
async def test_a_process_that_is_killed_while_it_reads_leaves_nothing_behind(round_: int) -> None:
    before = memory_files()
    async with open_local_cluster(nodes=1) as cluster:
        keeper = await cluster.node.options(on="worker-1").spawn(Keeper)
        array = numpy.ones(SIZE // 8)
        got = await keeper.add_one(array)
        got = await keeper.add_one(array)
        await keeper.keep(array)

        async def hold() -> None:
            with pytest.raises(UnderstudyError):
                await keeper.hold(array)

        async with trio.open_nursery() as nursery:
            for _ in range(round_ + 1):
                nursery.start_soon(hold)
            await until(lambda: lending(cluster).lender.open_loans, "all are lent",
                        lambda n: n >= round_ + 1)  # fmt: skip
            cluster.process("worker-1").kill()
        # What the killed process lent stays as it was for as long as it is read here.
        assert got[0] == got[-1] == 2
        del got
        await until(memory_files, "no memory is left", lambda count: count <= before)


async def test_without_shared_memory_everything_goes_over_the_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UNDERSTUDY_SHARED_MEMORY", "off")
    async with open_local_cluster(nodes=1) as cluster:
        keeper = await cluster.node.options(on="worker-1").spawn(Keeper)
        for _ in range(3):
            assert (await keeper.add_one(numpy.zeros(SIZE // 8)))[-1] == 1
        links = internals_of(cluster.node).links.values()
        assert [link.lending for link in links] == [None]


async def test_what_the_variable_may_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDERSTUDY_SHARED_MEMORY", "maybe")
    with pytest.raises(ValueError, match="UNDERSTUDY_SHARED_MEMORY is on or off, not 'maybe'"):
        async with open_local_cluster(nodes=0):
            pass
