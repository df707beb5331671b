"""`python -m tests.benchmarks.overload`: what an actor still does when far more is asked of it than
it can do.

Open loop: calls start at their times whether or not earlier ones have been answered, as those of
independent clients do; a closed loop slows down with its server and shows nothing. Each call has a
deadline; what is answered later is worth nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal

import attrs
import trio

from actors.errors import CallError
from runtime import open_local_cluster
from tests.benchmarks.ours import Laborer

Kind = Literal["computing", "waiting"]

WORK = 0.002
"""Seconds that one call takes."""

PATIENCE = 0.5
"""Seconds after which an answer is worth nothing."""

NORMAL = 0.5
"""Of the peak: the load before and after."""


@attrs.frozen
class Phase:
    """What came of one load. Rates are per second, latencies in seconds."""

    load: float
    offered: float
    answered: float
    refused: int
    late: int
    median: float
    worst_in_100: float


async def offer(
    call: Callable[[], Awaitable[object]], load: float, rate: float, seconds: float
) -> Phase:
    """Start calls at `rate` for `seconds`."""
    latencies: list[float] = []
    refused = late = started = 0

    async def one() -> None:
        nonlocal refused, late
        began = trio.current_time()
        try:
            await call()
        except CallError as error:
            if error.outcome == "not executed":
                refused += 1
            else:
                late += 1
        else:
            latencies.append(trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        begin = trio.current_time()
        while (passed := trio.current_time() - begin) < seconds:
            due = int(passed * rate)
            for _ in range(due - started):
                nursery.start_soon(one)
            started = max(due, started)
            await trio.sleep(0.002)
    latencies.sort()
    return Phase(
        load,
        started / seconds,
        len(latencies) / seconds,
        refused,
        late,
        latencies[len(latencies) // 2] if latencies else float("inf"),
        latencies[len(latencies) * 99 // 100] if latencies else float("inf"),
    )


async def peak_of(call: Callable[[], Awaitable[object]], seconds: float) -> float:
    """Answers per second to as many callers as keep it busy, and no more. Where the processors are
    shared, some calls have less time left at their turn than they need: those are refused, as under
    any load, and are no answers.
    """
    count = 0
    begin = trio.current_time()

    async def caller() -> None:
        nonlocal count
        while trio.current_time() - begin < seconds:
            with suppress(CallError):
                await call()
                count += 1

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(caller)
    return count / (trio.current_time() - begin)


async def measure(
    kind: Kind, seconds: float, loads: tuple[float, ...] = (2.0, 10.0)
) -> tuple[float, list[Phase]]:
    """The peak, and a phase for each load, each followed by one of normal load that begins
    at once.
    """
    async with open_local_cluster(nodes=1, cluster="overload") as cluster:
        laborer = await cluster.node.options(name="laborer", on="worker-1").spawn(Laborer)
        bound = (laborer.compute if kind == "computing" else laborer.wait).options(timeout=PATIENCE)

        async def call() -> object:
            return await bound(WORK)

        await peak_of(call, seconds / 4)
        peak = await peak_of(call, seconds)
        phases = [await offer(call, NORMAL, NORMAL * peak, seconds)]
        for load in loads:
            phases.append(await offer(call, load, load * peak, seconds))
            phases.append(await offer(call, NORMAL, NORMAL * peak, seconds))
        return peak, phases


def main() -> None:
    """Measure both kinds of work and print a line for each phase."""
    parser = argparse.ArgumentParser(prog="tests.benchmarks.overload", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="for each phase (default: %(default)s)"
    )
    options = parser.parse_args()
    kinds: tuple[Kind, ...] = ("computing", "waiting")
    for kind in kinds:
        peak, phases = trio.run(measure, kind, options.seconds)
        print(
            f"{kind}, {WORK * 1000:g} ms a call, worth nothing after {PATIENCE:g} s: at most "
            f"{peak:,.0f} calls/s"
        )
        for phase in phases:
            goodput = phase.answered / min(phase.offered, peak)
            verdict = (
                "" if phase.load < 1 else "  goal 0.80 " + ("met" if goodput >= 0.8 else "MISSED")
            )
            times = f"latency {phase.median * 1000:.1f} ms, p99 {phase.worst_in_100 * 1000:.1f} ms"
            rates = (
                f"offered {phase.offered:>8,.0f}/s, answered {phase.answered:>6,.0f}/s "
                f"({goodput:.2f})"
            )
            print(
                f"  load {phase.load:>4g}: {rates}, refused {phase.refused:,}, too late "
                f"{phase.late:,}; {times}{verdict}"
            )


if __name__ == "__main__":
    main()
