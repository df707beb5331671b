"""How long children are waited for when many are started or stopped at once."""

from __future__ import annotations

import pytest
import trio

from runtime.supervision.shared_deadlines import EACH, SharedDeadlines

MARGIN = 1.0


async def test_the_time_of_one_is_its_own_and_a_margin(
    autojump_clock: trio.testing.MockClock,
) -> None:
    deadlines = SharedDeadlines(MARGIN)
    began = trio.current_time()
    with deadlines.given(5.0) as scope:
        await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.current_time() - began == pytest.approx(5.0 + MARGIN)


async def test_the_first_of_many_has_time_for_all_and_the_next_one_alone_does_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    deadlines, count = SharedDeadlines(MARGIN), 1000
    over: list[float] = []

    async def stop() -> None:
        with deadlines.given(0.0):
            await trio.sleep_forever()
        over.append(trio.current_time())

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(stop)
    assert len(over) == count
    assert (
        MARGIN + EACH * (count - 1)
        <= min(over) - began
        <= max(over) - began
        <= MARGIN + 2.1 * EACH * count
    )
    began = trio.current_time()
    with deadlines.given(0.0):
        await trio.sleep_forever()
    assert trio.current_time() - began <= MARGIN + 2 * EACH


async def test_one_that_is_given_all_the_time_there_is_has_that_among_many() -> None:
    deadlines = SharedDeadlines(MARGIN)
    with deadlines.given(float("inf")) as scope, deadlines.given(1.0), deadlines.given(1.0):
        assert scope.deadline == float("inf")
        await trio.lowlevel.checkpoint()
