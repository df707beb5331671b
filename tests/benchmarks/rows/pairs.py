"""Two busy pairs of processes, which compete for the cores of a small machine."""

from __future__ import annotations

from contextlib import AsyncExitStack

from tests.benchmarks.measuring import Row, Settings, at_least, in_turn, spinning
from tests.benchmarks.pair import open_pairs

NOTHING_LOST = 0.95
"""What counts as the same: the rates of two runs of one program differ by more than this now and
then.
"""


async def measure(settings: Settings) -> list[Row]:
    """Calls one after the other with the spin beside those without, and pipelined ones beside the
    floor.
    """
    seconds = settings.seconds
    async with AsyncExitStack() as stack:
        with spinning("off"):
            asleep = await stack.enter_async_context(open_pairs("ours", "sequential"))
        with spinning("auto"):
            awake = await stack.enter_async_context(open_pairs("ours", "sequential"))
        on, off = await in_turn(
            settings.rounds, lambda: awake.rate(seconds), lambda: asleep.rate(seconds)
        )
    async with AsyncExitStack() as stack:
        ours = await stack.enter_async_context(open_pairs("ours", "pipelined"))
        floor = await stack.enter_async_context(open_pairs("floor", "pipelined"))
        many, bare = await in_turn(
            settings.rounds, lambda: ours.rate(seconds), lambda: floor.rate(seconds)
        )
    return [
        at_least(
            Row("two pairs, one call after the other", "calls/s", on, off, against="no spin"),
            ratio=NOTHING_LOST,
        ),
        Row("two pairs, 1,000 callers each", "calls/s", many, bare),
    ]
