"""Calls whose method raises, beside the same calls whose method returns."""

from __future__ import annotations

from tests.benchmarks.measuring import Row, Settings, at_least, in_turn, pipelined
from tests.benchmarks.ours import open_bench

AT_ONCE = 200


async def measure(settings: Settings) -> list[Row]:
    """Many at once; each caller catches the error as what was raised."""
    seconds = settings.seconds
    async with open_bench() as (bench, _):

        async def failing() -> None:
            try:
                await bench.fail(16)
            except ValueError:
                return
            raise AssertionError("it did not raise")

        raised, returned = await in_turn(
            settings.rounds,
            lambda: pipelined(failing, seconds, AT_ONCE),
            lambda: pipelined(bench.read, seconds, AT_ONCE),
        )
    row = Row(
        f"calls that raise, {AT_ONCE} callers",
        "calls/s",
        raised,
        returned,
        against="the same calls when they return",
    )
    return [at_least(row, value=30_000)]
