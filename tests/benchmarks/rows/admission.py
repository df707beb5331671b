"""What it costs a node to admit calls of a client, and to ask an `authorize` function: both ends
in one process, and rates by its processor time, which the rest of the machine hardly disturbs.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from statistics import median

from actors.filters import Call
from runtime import open_node
from tests.benchmarks.measuring import Figure, Row, Settings, at_least, spinning
from tests.benchmarks.ours import Bench

SECRET = "of the benchmark"
OF_A_NODE = 0.9
"""Admission is a small part of what a call costs at both ends."""

STEP = 100
"""Calls of one kind before those of the next: a machine whose speed drifts drifts for all."""


def allow(call: Call) -> bool:
    """The shortest function of an application."""
    return True


async def measure(settings: Settings) -> list[Row]:
    """Calls of a client, and calls of it where `authorize` is asked, beside calls of a node."""
    steps = settings.size(100)
    with spinning("off"):
        async with AsyncExitStack() as stack:
            here = await stack.enter_async_context(open_node("here", secret=SECRET))
            asked = await stack.enter_async_context(
                open_node("asked", join=here.address, secret=SECRET, authorize=allow)
            )
            node = await stack.enter_async_context(
                open_node("there", join=here.address, secret=SECRET)
            )
            client = await stack.enter_async_context(
                open_node(join=here.address, secret=SECRET, role="client")
            )
            await here.options(name="plain").spawn(Bench)
            await asked.options(name="asked").spawn(Bench)
            benches = [
                await client.lookup("plain", Bench),
                await client.lookup("asked", Bench),
                await node.lookup("plain", Bench),
            ]
            rounds = [await _round(benches, steps) for _ in range(settings.rounds + 1)]
    # The first warms up.
    admitted, authorized, free = (
        Figure.of([rates[place] for rates in rounds[1:]]) for place in range(3)
    )
    return [
        at_least(
            Row(
                "calls of a client, by processor time", "calls/s", admitted, free, "those of a node"
            ),
            ratio=OF_A_NODE,
        ),
        Row(
            "the same with authorize, by processor time",
            "calls/s",
            authorized,
            free,
            "those of a node",
        ),
    ]


async def _round(benches: list[Bench], steps: int) -> list[float]:
    """Calls for each second of processor time, of each kind: the median of the steps, for what
    interrupts one of them is no cost of its calls.
    """
    spent: list[list[float]] = [[] for _ in benches]
    for _ in range(steps):
        for seconds, bench in zip(spent, benches, strict=True):
            began = time.process_time()
            for _ in range(STEP):
                await bench.read()
            seconds.append(time.process_time() - began)
    return [STEP / median(seconds) for seconds in spent]
