"""What the parts of a call cost that it does not use: the code that measures, where nothing is
measured, and the code for filters, where there are none. Beside the same code without these lines;
both ends in one process.

By processor time, and by the instructions that the interpreter runs for a call: these are the same
on a busy machine, and show what is too little for a clock.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from statistics import median

import trio

from runtime import Node, open_node
from runtime.calls import call_sender, callback_call, client, local_calls, pending_calls
from runtime.hosting import cell, host, workers
from runtime.node import internals_of
from tests.benchmarks.measuring import Figure, Row, Settings, at_least, in_pairs, spinning
from tests.benchmarks.ours import Bench
from tests.benchmarks.removed_code import InstructionCount, RemovedCode
from tests.benchmarks.rows.metrics import CALLS, per_cpu_second

SECRET = "of the benchmark"

METHOD = sys.modules["actors.method"]
"""Not by its name: `actors.method` is the decorator."""

CALLING = (METHOD, call_sender, callback_call, client, local_calls, pending_calls)
RUNNING = (cell, host, workers)

MEASURING = RemovedCode(
    (*CALLING, *RUNNING),
    frozenset(("statistics", "_statistics", "_token", "counted", "_counted", "timer")),
)
FILTERING = RemovedCode(CALLING, frozenset(("seen", "_seen")))

Nodes = tuple[Node, Node]

PAIRS = 40
"""For each round."""

OF_NOTHING = 0.99
"""What is not used costs nothing: less than 1 % of a call."""

COUNTED = 100
"""Calls whose instructions are counted."""


async def measure(settings: Settings) -> list[Row]:
    """Calls without measurement and filters, beside the same calls by code that has none of it."""
    rows: list[Row] = []
    with spinning("off"):
        async with (
            open_node("here", secret=SECRET) as here,
            open_node("there", join=here.address, secret=SECRET) as there,
        ):
            nodes = (here, there)
            far = await here.options(on=there.name).spawn(Bench)
            near = await here.options(on=here.name).spawn(Bench)
            for what, part in (("not measured", MEASURING), ("no filters", FILTERING)):
                against = "without that code"
                for place, bench in (("another node", far), ("the same node", near)):
                    work = f"calls to {place}, {what}"
                    if bench is far:
                        rows.append(await _rates(settings, work, against, nodes, bench, part))
                    rows.append(await _steps(settings, work, against, nodes, bench, part))
    return rows


async def _rates(
    settings: Settings, work: str, against: str, nodes: Nodes, bench: Bench, part: RemovedCode
) -> Row:
    count = settings.size(CALLS)

    async def rate(removed: RemovedCode | None) -> float:
        await _until_idle(nodes)
        with nullcontext() if removed is None else removed.removed():
            found = await per_cpu_second(bench, count)
            await _until_idle(nodes)
        return found

    pairs = 2 if settings.short else PAIRS * settings.rounds
    ours, without, ratio = await in_pairs(pairs, partial(rate, None), partial(rate, part))
    row = Row(work, "calls/s", ours, without, against, paired=ratio)
    return at_least(row, ratio=OF_NOTHING)


async def _steps(
    settings: Settings, work: str, against: str, nodes: Nodes, bench: Bench, part: RemovedCode
) -> Row:
    """The steps of the median call, one after the other: in some of them the runtime does something
    of its own as well.
    """
    counts: tuple[list[float], list[float]] = ([], [])
    for _ in range(settings.rounds):
        for found, removed in zip(counts, (None, part), strict=True):
            await _until_idle(nodes)
            with nullcontext() if removed is None else removed.removed():
                # The first looks the actor up.
                await bench.read()
                steps: list[int] = []
                for _ in range(settings.size(COUNTED)):
                    with InstructionCount() as counted:
                        await bench.read()
                    steps.append(counted.count)
                await _until_idle(nodes)
            found.append(median(steps))
    ours, without = (Figure.of(one) for one in counts)
    return Row(work, "steps", ours, without, against)


async def _until_idle(nodes: Nodes) -> None:
    """Wait until no run is queued: a call of the runtime's own that one of the codes has made would
    be run by the other, which expects attributes that it has not set.
    """
    # No event says it, and it lasts for a turn or two of the event loop.
    while any(internals_of(node).host.workers.has_work() for node in nodes):  # noqa: ASYNC110
        await trio.lowlevel.checkpoint()
