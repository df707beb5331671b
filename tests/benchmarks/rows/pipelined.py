"""A thousand callers at once, and what a deadline costs them."""

from __future__ import annotations

from contextlib import AsyncExitStack

from tests.benchmarks.floor import open_floor
from tests.benchmarks.measuring import CALLERS, Row, Settings, at_least, in_turn, pipelined
from tests.benchmarks.ours import open_bench


async def measure(settings: Settings) -> list[Row]:
    """Without a timeout and with one."""
    seconds = settings.seconds
    async with AsyncExitStack() as stack:
        bench, _ = await stack.enter_async_context(open_bench())
        floor = await stack.enter_async_context(open_floor())
        hurried = bench.read.options(timeout=5)
        plain, bare, timed = await in_turn(
            settings.rounds,
            lambda: pipelined(bench.read, seconds),
            lambda: pipelined(floor.call, seconds),
            lambda: pipelined(hurried, seconds),
        )
    return [
        at_least(Row(f"{CALLERS:,} callers at once", "calls/s", plain, bare), ratio=0.6),
        Row(
            f"{CALLERS:,} callers with a timeout",
            "calls/s",
            timed,
            plain,
            against="without a timeout",
        ),
    ]
