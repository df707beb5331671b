"""A batch of starts is answered when those have ended that soon do; the others go on, and each is
cancelled or awaited alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

from actors.errors import ActorStartError
from actors.method import Address
from runtime.hosting.start_batches import (
    LONGEST_SECONDS,
    NONE_SECONDS,
    QUIET_SECONDS,
    RUNNERS,
    UNASKED_SECONDS,
    StartBatch,
    UnfinishedStarts,
)

StartOne = Callable[[int], Awaitable[Address]]


def address(number: int) -> Address:
    return Address(f"actor-{number}", "here", 3, 3)


def taking(seconds: Callable[[int], float]) -> StartOne:
    """Starts that take so many seconds each, by their numbers."""

    async def start(number: int) -> Address:
        await trio.sleep(seconds(number))
        return address(number)

    return start


@attrs.define
class Stopped:
    """The actors that were taken back."""

    names: list[str] = attrs.field(factory=list)

    async def take_back(self, one: Address) -> None:
        self.names.append(one.name)


@asynccontextmanager
async def on_node() -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        yield nursery
        nursery.cancel_scope.cancel()


async def run(nursery: trio.Nursery, count: int, start: StartOne) -> tuple[StartBatch, float]:
    """The batch when it is answered, and after how many seconds that was."""
    batch, began = StartBatch(nursery, count, start), trio.current_time()
    await batch.run()
    return batch, trio.current_time() - began


async def test_what_ends_soon_is_in_the_answer(autojump_clock: trio.testing.MockClock) -> None:
    async def start(number: int) -> Address:
        await trio.lowlevel.checkpoint()
        if number % 10 == 7:
            raise ActorStartError("no")
        return address(number)

    async with on_node() as nursery:
        batch, seconds = await run(nursery, 5 * RUNNERS, start)
    assert (seconds, batch.unfinished) == (0.0, {})
    for number, outcome in enumerate(batch.outcomes):
        if number % 10 == 7:
            assert isinstance(outcome, ActorStartError)
        else:
            assert outcome == address(number)


async def test_starts_that_take_their_time_hold_up_no_other(
    autojump_clock: trio.testing.MockClock,
) -> None:
    slow = {2, 3, 3 * RUNNERS}
    async with on_node() as nursery:
        batch, seconds = await run(
            nursery, 4 * RUNNERS, taking(lambda number: 10.0 if number in slow else 0.0)
        )
        assert seconds == pytest.approx(2 * QUIET_SECONDS)
        assert set(batch.unfinished) == slow
        assert all((outcome is None) == (n in slow) for n, outcome in enumerate(batch.outcomes))
        for number, start in batch.unfinished.items():
            await start.ended.wait()
            assert start.outcome == address(number)
        assert trio.current_time() == pytest.approx(10.0)


async def test_starts_behind_slow_ones_begin_when_the_batch_is_answered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with on_node() as nursery:
        batch, seconds = await run(
            nursery, 2 * RUNNERS, taking(lambda number: 10.0 if number < RUNNERS else 0.0)
        )
        assert seconds == pytest.approx(NONE_SECONDS)
        assert len(batch.unfinished) == 2 * RUNNERS
        for number in range(RUNNERS, 2 * RUNNERS):
            await batch.unfinished[number].ended.wait()
        assert trio.current_time() == pytest.approx(NONE_SECONDS)


async def test_the_first_wait_for_a_bounded_time(autojump_clock: trio.testing.MockClock) -> None:
    async with on_node() as nursery:
        batch, seconds = await run(nursery, 100 * RUNNERS, taking(lambda number: 0.002))
    assert seconds <= LONGEST_SECONDS + 2 * QUIET_SECONDS
    ended = sum(outcome is not None for outcome in batch.outcomes)
    assert ended >= RUNNERS * 20
    assert ended + len(batch.unfinished) == 100 * RUNNERS


async def test_one_that_goes_on_is_cancelled_alone(autojump_clock: trio.testing.MockClock) -> None:
    async with on_node() as nursery:
        batch, _ = await run(nursery, 3, taking(lambda number: 1.0))
        assert await batch.unfinished[1].cancel() is None
        assert trio.current_time() == pytest.approx(NONE_SECONDS)
        for number in (0, 2):
            await batch.unfinished[number].ended.wait()
            assert batch.unfinished[number].outcome == address(number)


async def test_the_cancellation_of_the_request_cancels_its_starts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """One that does not heed it has its actor in the outcomes, to be taken back."""
    begun: list[int] = []

    async def start(number: int) -> Address:
        begun.append(number)
        with trio.CancelScope(shield=number == 1):
            await trio.sleep(1.0)
        return address(number)

    async with on_node() as nursery:
        batch = StartBatch(nursery, 2 * RUNNERS, start)
        with trio.move_on_after(NONE_SECONDS / 2):
            await batch.run()
        assert trio.current_time() == pytest.approx(1.0)
    assert [one for one in batch.outcomes if one is not None] == [address(1)]
    assert sorted(begun) == list(range(RUNNERS)), "none begins after the cancellation"


async def test_what_nobody_asks_for_is_taken_back(autojump_clock: trio.testing.MockClock) -> None:
    stopped = Stopped()
    async with on_node() as nursery:
        unfinished = UnfinishedStarts(nursery, stopped.take_back)
        batch, answered = await run(nursery, 4, taking(lambda number: 1.0 if number else 1e6))
        assert unfinished.add("ticket", batch, None) == [0, 1, 2, 3]
        asked_for = unfinished.pop("ticket", 2)
        assert asked_for is batch.unfinished[2]
        assert await unfinished.take_back("ticket", 3)
        assert not await unfinished.take_back("ticket", 3)
        await trio.sleep(UNASKED_SECONDS - 0.1)
        assert (stopped.names, batch.unfinished[0].ended.is_set()) == ([], False)
        await trio.sleep(0.2)
        assert stopped.names == ["actor-1"]
        assert batch.unfinished[0].ended.is_set(), "it has been cancelled"
        assert unfinished.pop("ticket", 0) is None
        assert answered == pytest.approx(NONE_SECONDS)
