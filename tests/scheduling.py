"""Scheduler seeds: a test repeated under many orders in which trio could have run its tasks, each
of them the same whenever it is replayed.

    @under_seeds(50)
    async def test_something() -> None: ...

makes fifty tests `test_something[0]` to `test_something[49]`, those after the first twenty marked
`long`, on a virtual clock that jumps whenever all tasks wait. What they use must not be outside of
trio: no sockets, no threads, no processes; `MemoryNetwork` stands in for the former. The
simulator's scheduler has the order.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
import trio
from trio.testing import MockClock

from runtime.environment import SystemEnvironment
from runtime.simulation.scheduler import ordered_by

SEEDS = 50

QUICK_SEEDS = 20
"""So many of them are in `make test`; the others are for `make long`."""

T = TypeVar("T")


def under_seeds(
    count: int = SEEDS, *, seconds: float = 300.0
) -> Callable[[Callable[..., Awaitable[None]]], Callable[[int], None]]:
    """Repeat an async test under `count` seeds. It may take a `random.Random` of its own, and
    `seconds` of virtual time.
    """

    def repeat(test: Callable[..., Awaitable[None]]) -> Callable[[int], None]:
        async def main(arguments: list[random.Random]) -> None:
            with trio.fail_after(seconds):
                await test(*arguments)

        quick = min(count, QUICK_SEEDS)
        more = (pytest.param(seed, marks=pytest.mark.long) for seed in range(quick, count))

        @pytest.mark.parametrize("seed", [*range(quick), *more])
        def seeded(seed: int) -> None:
            wants = test.__code__.co_argcount
            with ordered_by(seed):
                trio.run(main, [random.Random(seed)][:wants], clock=MockClock(autojump_threshold=0))

        seeded.__name__ = test.__name__
        seeded.__doc__ = test.__doc__
        seeded.__module__ = test.__module__
        return seeded

    return repeat


class SeededEnvironment(SystemEnvironment):
    """An `Environment` of nothing but trio's clock and one seed."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self._draw = draw

    def now(self) -> float:
        return trio.current_time()

    def wall_time(self) -> float:
        return 0.0

    def random(self) -> float:
        return self._draw.random()

    def token(self, size: int) -> bytes:
        return self._draw.randbytes(size)

    async def in_thread(
        self,
        function: Callable[[], T],
        limiter: trio.CapacityLimiter | None = None,
        *,
        abandon: bool = False,
    ) -> T:
        # At once: a real thread ends when it likes, and a jumping clock does not wait for it.
        await trio.lowlevel.checkpoint()
        return function()
