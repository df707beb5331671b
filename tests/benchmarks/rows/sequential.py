"""One call after the other, asleep while it waits and with the receive spin."""

from __future__ import annotations

from contextlib import AsyncExitStack

import attrs

from tests.benchmarks.floor import open_floor
from tests.benchmarks.measuring import Row, Settings, at_least, in_turn, sequential
from tests.benchmarks.ours import open_bench

FLOOR_ROUNDS = 10
OF_THE_FLOOR = 0.85


async def measure(settings: Settings) -> list[Row]:
    """Both ways, each beside a floor that does the same."""
    seconds = settings.seconds
    async with AsyncExitStack() as stack:
        asleep, _ = await stack.enter_async_context(open_bench("off"))
        awake, _ = await stack.enter_async_context(open_bench("auto"))
        floor_asleep = await stack.enter_async_context(open_floor())
        floor_awake = await stack.enter_async_context(open_floor(FLOOR_ROUNDS))
        figures = await in_turn(
            settings.rounds,
            lambda: sequential(asleep.read, seconds),
            lambda: sequential(floor_asleep.call, seconds),
            lambda: sequential(awake.read, seconds),
            lambda: sequential(floor_awake.call, seconds),
        )
    first = Row("one call after the other, no spin", "calls/s", figures[0], figures[1])
    second = Row(
        "one call after the other, spin",
        "calls/s",
        figures[2],
        figures[3],
        against=f"floor, {FLOOR_ROUNDS} rounds of spin",
    )
    twice = 2 * OF_THE_FLOOR * first.floor.value
    goal = f"2 x {OF_THE_FLOOR:.0%} of the floor without spin"
    return [
        at_least(first, ratio=OF_THE_FLOOR),
        attrs.evolve(second, goal=goal, met=second.ours.value >= twice),
    ]
