"""What it costs to measure calls: both ends in one process, whose CPU time is all there is."""

from __future__ import annotations

import time
from functools import partial

import trio

from runtime import open_node
from runtime.node import internals_of
from runtime.statistics.call_statistics import CallStatistics
from tests.benchmarks.measuring import Row, Settings, at_least, in_pairs, spinning
from tests.benchmarks.ours import Bench

CALLERS = 50
CALLS = 500
"""Of one work: short enough that most of them are not interrupted by other processes."""
PAIRS = 60
"""For each round."""
OF_UNMEASURED = 0.97
"""Measuring takes less than 3 % of a call."""


async def measure(settings: Settings) -> list[Row]:
    """Calls for each second of CPU time, measured and not, to an actor on another node and on the
    same one.
    """
    rows: list[Row] = []
    count = settings.size(CALLS)
    with spinning("off"):
        async with (
            open_node("here") as here,
            open_node("there", join=here.address) as there,
        ):
            for on, place in ((there, "another node"), (here, "the same node")):
                bench = await here.options(on=on.name).spawn(Bench)
                # One for all pairs: a node counts for days, and what a method's first calls cost
                # is nothing of that.
                kept = CallStatistics()

                async def work(statistics: CallStatistics | None, bench: Bench = bench) -> float:
                    for node in (here, there):
                        internals_of(node).endpoint.measure(statistics)
                    return await per_cpu_second(bench, count)

                measured, unmeasured, ratio = await in_pairs(
                    PAIRS * settings.rounds, partial(work, kept), partial(work, None)
                )
                row = Row(
                    f"calls to {place}, measured",
                    "calls/s",
                    measured,
                    unmeasured,
                    "not measured",
                    paired=ratio,
                )
                rows.append(at_least(row, ratio=OF_UNMEASURED))
    return rows


async def per_cpu_second(bench: Bench, count: int) -> float:
    """How many calls a second of CPU time is enough for."""

    async def caller() -> None:
        for _ in range(max(1, count // CALLERS)):
            await bench.read()

    began = time.process_time()
    async with trio.open_nursery() as nursery:
        for _ in range(CALLERS):
            nursery.start_soon(caller)
    return count / (time.process_time() - began)
