"""What is measured: each work done by ours and by the floor in turn, several times, in one run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from statistics import median

import attrs
import trio

from runtime import open_local_cluster
from tests.benchmarks.floor import open_floor
from tests.benchmarks.ours import Bench

CALLERS = 1_000
MEBIBYTE = 1024 * 1024


@attrs.frozen
class Row:
    """One line of the report. `ratio` is ours to the floor; for times, the floor to ours: more is better either way."""

    work: str
    unit: str
    ours: float
    ours_range: tuple[float, float]
    floor: float
    floor_range: tuple[float, float]

    @property
    def ratio(self) -> float:
        """How near to the floor."""
        return self.floor / self.ours if self.unit == "ms" else self.ours / self.floor


async def sequential(call: Callable[[], Awaitable[object]], seconds: float) -> float:
    """Calls per second, one after the other."""
    began, count = trio.current_time(), 0
    while trio.current_time() - began < seconds:
        for _ in range(20):
            await call()
        count += 20
    return count / (trio.current_time() - began)


async def pipelined(call: Callable[[], Awaitable[object]], seconds: float) -> float:
    """Calls per second of `CALLERS` tasks that each call again as soon as they are answered."""
    began = trio.current_time()
    counts: list[int] = []

    async def caller() -> None:
        count = 0
        while trio.current_time() - began < seconds:
            await call()
            count += 1
        counts.append(count)

    async with trio.open_nursery() as nursery:
        for _ in range(CALLERS):
            nursery.start_soon(caller)
    return sum(counts) / (trio.current_time() - began)


async def measure(seconds: float, rounds: int) -> list[Row]:
    """All rows. `seconds` for each figure, `rounds` of each after one that is not counted."""
    data = bytes(MEBIBYTE)
    async with open_local_cluster(nodes=1, cluster="bench") as cluster, open_floor() as floor:
        bench = await cluster.node.options(name="bench", on="worker-1").spawn(Bench)
        placed = cluster.node.options(on="worker-1")

        async def echo_ours() -> float:
            return 2 * await sequential(lambda: bench.echo(data), seconds)

        async def echo_floor() -> float:
            return 2 * await sequential(lambda: floor.echo(data), seconds)

        async def spawn() -> object:
            return await (await placed.spawn(Bench)).read()

        async def milliseconds(call: Callable[[], Awaitable[object]]) -> float:
            return 1000 / await sequential(call, seconds)

        return [
            await _row(
                "one call after the other",
                "calls/s",
                lambda: sequential(bench.read, seconds),
                lambda: sequential(floor.call, seconds),
                rounds,
            ),
            await _row(
                f"{CALLERS:,} callers at once",
                "calls/s",
                lambda: pipelined(bench.read, seconds),
                lambda: pipelined(floor.call, seconds),
                rounds,
            ),
            await _row("echo of 1 MiB", "MiB/s", echo_ours, echo_floor, rounds),
            await _row("new actor and its first answer", "ms", lambda: milliseconds(spawn), lambda: milliseconds(floor.call), rounds),
        ]


async def _row(work: str, unit: str, ours: Callable[[], Awaitable[float]], floor: Callable[[], Awaitable[float]], rounds: int) -> Row:
    """In turn, so that a machine whose speed drifts drifts for both."""
    figures: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + 1):
        figures[0].append(await ours())
        figures[1].append(await floor())
    mine, theirs = figures[0][1:], figures[1][1:]
    return Row(work, unit, median(mine), (min(mine), max(mine)), median(theirs), (min(theirs), max(theirs)))
