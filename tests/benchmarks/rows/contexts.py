"""What a trace costs each call that carries one, where no SDK records it: both ends in one process,
and rates by its processor time, which the rest of the machine hardly disturbs. Without spinning,
whose processor time is no cost of a call.
"""

from __future__ import annotations

import time
from statistics import median

from actors import CallContext, call_context
from runtime import open_node
from tests.benchmarks.measuring import Figure, Row, Settings, at_least, spinning
from tests.benchmarks.ours import Bench

SECRET = "of the benchmark"
TRACE = CallContext.of(traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
EMPTY = CallContext()
OF_PLAIN = 0.97
"""A trace costs less than 3 % of a call."""

STEP = 100
"""Calls of one kind before those of the next: a machine whose speed drifts drifts for all."""


async def measure(settings: Settings) -> list[Row]:
    """Calls with a `traceparent`, and calls with a context that is empty, beside calls without."""
    steps = settings.size(100)
    with spinning("off"):
        async with (
            open_node("here", secret=SECRET) as here,
            open_node("there", join=here.address, secret=SECRET),
        ):
            await here.wait_for(2)
            bench = await here.options(on="there").spawn(Bench)
            rounds = [await _round(bench, steps) for _ in range(settings.rounds + 1)]
    # The first warms up.
    traced, empty, plain = (Figure.of([rates[place] for rates in rounds[1:]]) for place in range(3))
    return [
        at_least(
            Row("calls with a traceparent, by processor time", "calls/s", traced, plain, "without"),
            ratio=OF_PLAIN,
        ),
        Row("calls with an empty context, by processor time", "calls/s", empty, plain, "without"),
    ]


async def _round(bench: Bench, steps: int) -> list[float]:
    """Calls for each second of processor time: traced, with an empty context, and without one. The
    median of the steps, for what interrupts one of them is no cost of its calls.
    """
    spent: list[list[float]] = [[], [], []]
    for _ in range(steps):
        for seconds, context in zip(spent, (TRACE, EMPTY, None), strict=True):
            token = None if context is None else call_context.set(context)
            try:
                began = time.process_time()
                for _ in range(STEP):
                    await bench.read()
                seconds.append(time.process_time() - began)
            finally:
                if token is not None:
                    call_context.reset(token)
    return [STEP / median(seconds) for seconds in spent]
