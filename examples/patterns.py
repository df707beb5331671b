"""Measure patterns and anti-patterns: `python -m examples.patterns` prints the table of the docs.

Each pair does the same work twice on a cluster of this machine: first as it is often written, then
as it should be. A number is the median of three rounds; the two sides take turns.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Awaitable, Callable

import attrs
import trio

from actors import Actor, method
from runtime import LocalCluster, open_local_cluster

ROUNDS = 3

Work = Callable[[LocalCluster], Awaitable[None]]


class Table(Actor):
    """Keeps rows, and does small things with them."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}

    @method
    async def insert(self, key: int, value: int) -> None:
        self.rows[key] = value

    @method
    async def insert_many(self, rows: dict[int, int]) -> None:
        self.rows.update(rows)

    @method
    async def size(self) -> int:
        return len(self.rows)

    @method
    async def wait(self, seconds: float) -> None:
        await trio.sleep(seconds)

    @method(concurrent=True)
    async def wait_beside(self, seconds: float) -> None:
        await trio.sleep(seconds)

    @method
    async def sleep_on_the_loop(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  what not to do

    @method
    def sleep_in_a_thread(self, seconds: float) -> None:
        time.sleep(seconds)

    @method
    async def numbers(self, count: int) -> list[float]:
        return [float(number) for number in range(count)]

    @method
    async def packed(self, count: int) -> bytes:
        return bytes(8 * count)

    @method
    async def total(self, numbers: bytes) -> int:
        return len(numbers)

    @method
    async def save_row(self, key: int, value: int) -> None:
        self.rows[key] = value
        await self.save(self.rows)

    @method
    async def save_rows(self, rows: dict[int, int]) -> None:
        self.rows.update(rows)
        await self.save(self.rows)


@attrs.frozen
class Pair:
    """One work in two ways."""

    name: str
    unwise: Work
    wise: Work


async def table_of(cluster: LocalCluster, name: str | None = None) -> Table:
    """A table on the other node."""
    return await cluster.node.options(on="worker-1", name=name).spawn(Table)


async def one_after_the_other(cluster: LocalCluster) -> None:
    table = await table_of(cluster)
    for key in range(500):
        await table.insert(key, key)


async def all_at_once(cluster: LocalCluster) -> None:
    table = await table_of(cluster)
    async with trio.open_nursery() as nursery:
        for key in range(500):
            nursery.start_soon(table.insert, key, key)


async def in_one_call(cluster: LocalCluster) -> None:
    table = await table_of(cluster)
    await table.insert_many({key: key for key in range(500)})


async def wait_in_turn(cluster: LocalCluster) -> None:
    table = await table_of(cluster)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(table.wait, 0.01)


async def wait_concurrently(cluster: LocalCluster) -> None:
    table = await table_of(cluster)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(table.wait_beside, 0.01)


async def ten_blocked(cluster: LocalCluster, name: str) -> None:
    tables = [await table_of(cluster) for _ in range(10)]
    async with trio.open_nursery() as nursery:
        for table in tables:
            nursery.start_soon(getattr(table, name), 0.02)


async def block_the_loop(cluster: LocalCluster) -> None:
    await ten_blocked(cluster, "sleep_on_the_loop")


async def block_a_thread(cluster: LocalCluster) -> None:
    await ten_blocked(cluster, "sleep_in_a_thread")


async def list_of_floats(cluster: LocalCluster) -> None:
    table = await table_of(cluster)
    for _ in range(3):
        await table.numbers(200_000)


async def bytes_beside_the_message(cluster: LocalCluster) -> None:
    table = await table_of(cluster)
    for _ in range(3):
        await table.packed(200_000)


async def through_the_caller(cluster: LocalCluster) -> None:
    source, sink = await table_of(cluster), await table_of(cluster)
    for _ in range(10):
        await sink.total(await source.packed(1_000_000))


async def by_reference(cluster: LocalCluster) -> None:
    source, sink = await table_of(cluster), await table_of(cluster)
    for _ in range(10):
        await sink.total((await source.packed.remote(1_000_000)).as_value())


async def save_each_row(cluster: LocalCluster) -> None:
    table = await table_of(cluster, "saved")
    for key in range(100):
        await table.save_row(key, key)
    await cluster.node.stop(table)


async def save_all_rows(cluster: LocalCluster) -> None:
    table = await table_of(cluster, "saved")
    await table.save_rows({key: key for key in range(100)})
    await cluster.node.stop(table)


async def wait_for_answers(cluster: LocalCluster) -> None:
    table = await table_of(cluster)
    for key in range(500):
        await table.insert(key, key)


async def one_way(cluster: LocalCluster) -> None:
    table = await table_of(cluster)
    for key in range(500):
        await table.insert.send(key, key)
    while await table.size() < 500:  # noqa: ASYNC110  the last has arrived
        pass


async def spawn_one_by_one(cluster: LocalCluster) -> None:
    for _ in range(300):
        await cluster.node.options(on="worker-1").spawn(Table)


async def spawn_many(cluster: LocalCluster) -> None:
    await cluster.node.options(on="worker-1").spawn_many(Table, [()] * 300)


async def process_for_each(cluster: LocalCluster) -> None:
    for _ in range(5):
        actor = await cluster.node.options(isolation="process").spawn(Table)
        await actor.insert(1, 1)
        await cluster.node.stop(actor)


async def processes_shared(cluster: LocalCluster) -> None:
    for _ in range(5):
        actor = await table_of(cluster)
        await actor.insert(1, 1)
        await cluster.node.stop(actor)


async def one_actor(cluster: LocalCluster) -> None:
    table = await table_of(cluster)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(table.wait, 0.01)


async def an_actor_for_each_key(cluster: LocalCluster) -> None:
    tables = await cluster.node.options(on="worker-1").spawn_many(Table, [()] * 20)
    async with trio.open_nursery() as nursery:
        for table in tables:
            nursery.start_soon(table.wait, 0.01)


PAIRS = (
    Pair("one call after the other, or all at once", one_after_the_other, all_at_once),
    Pair("a call for each row, or one for all", one_after_the_other, in_one_call),
    Pair("wait for each answer, or send one way", wait_for_answers, one_way),
    Pair("wait in turn, or in concurrent methods", wait_in_turn, wait_concurrently),
    Pair("one actor for all keys, or one for each", one_actor, an_actor_for_each_key),
    Pair("block the loop, or a thread", block_the_loop, block_a_thread),
    Pair("a list of floats, or bytes", list_of_floats, bytes_beside_the_message),
    Pair("large results through the caller, or by reference", through_the_caller, by_reference),
    Pair("save after each row, or once", save_each_row, save_all_rows),
    Pair("spawn one by one, or many", spawn_one_by_one, spawn_many),
    Pair("a process for each actor, or a shared one", process_for_each, processes_shared),
)


async def seconds(work: Work, cluster: LocalCluster) -> float:
    """How long it takes."""
    began = time.perf_counter()
    await work(cluster)
    return time.perf_counter() - began


async def measured(pairs: tuple[Pair, ...], rounds: int = ROUNDS) -> list[tuple[str, float, float]]:
    """The name of each pair, and the medians of its two sides, in seconds."""
    rows = []
    async with open_local_cluster(nodes=1) as cluster:
        for pair in pairs:
            times: tuple[list[float], list[float]] = ([], [])
            for _ in range(rounds):
                for side, work in zip(times, (pair.unwise, pair.wise), strict=True):
                    side.append(await seconds(work, cluster))
            unwise, wise = times
            rows.append((pair.name, statistics.median(unwise), statistics.median(wise)))
    return rows


def table(rows: list[tuple[str, float, float]]) -> str:
    """The rows as the docs show them."""
    lines = ["| what | before | after | times |", "|---|---|---|---|"]
    for name, before, after in rows:
        lines.append(
            f"| {name} | {before * 1e3:,.0f} ms | {after * 1e3:,.0f} ms | {before / after:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure all pairs, or those whose names contain the words given."""
    wanted = [pair for pair in PAIRS if all(word in pair.name for word in sys.argv[1:])]
    print(table(trio.run(measured, tuple(wanted))))


if __name__ == "__main__":
    main()
