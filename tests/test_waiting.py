"""The helper that waits for what sets no event."""

from __future__ import annotations

import itertools

import pytest
import trio
from trio.testing import MockClock

from tests.waiting import until


@pytest.fixture
def autojump_clock() -> MockClock:
    return MockClock(autojump_threshold=0)


async def test_it_asks_until_it_is_so_and_returns_the_answer(autojump_clock: MockClock) -> None:
    numbers = itertools.count()

    async def ask() -> int:
        return next(numbers)

    assert await until(lambda: next(numbers) > 2, "three were asked for") is True
    assert await until(ask, "seven", lambda number: number >= 7, every=1.0) == 7
    assert trio.current_time() >= 3.0
    assert await until(ask, "it is truthy", every=0) == 8


async def test_what_never_comes_is_named_with_the_last_answer(autojump_clock: MockClock) -> None:
    with pytest.raises(AssertionError, match=r"after 5 s.*: all are there; the last answer: \[\]"):
        await until(list, "all are there", seconds=5)

    async def silent() -> None:
        await trio.sleep_forever()

    with pytest.raises(AssertionError, match="there is an answer; the last answer: 'none'"):
        await until(silent, "there is an answer", seconds=5)
