"""Open calls: the watermark below which all have ended, at a cost that does not grow with them."""

from __future__ import annotations

import time

from runtime.calls.pending_calls import Confirmations, OpenCalls


def test_the_watermark_is_the_first_open_call_or_the_next_one() -> None:
    calls = OpenCalls()
    assert calls.watermark == 1
    for number in (3, 5, 9):
        calls.begin(number)
    assert calls.watermark == 3
    calls.end(5)
    assert calls.watermark == 3
    calls.end(3)
    calls.check_invariants()
    assert calls.watermark == 9
    calls.end(9)
    assert calls.watermark == 10


def seconds_to_end(count: int, *, confirmed: bool) -> float:
    """Processor time for ending so many open calls in turn, and looking at the watermark each
    time.
    """
    calls, confirmations = OpenCalls(), Confirmations()
    for number in range(1, count + 1):
        calls.begin(number)
        confirmations.begin(number)
    began = time.thread_time()
    for number in range(1, count + 1):
        if confirmed:
            confirmations.end(number)
            confirmations.take()
        else:
            calls.end(number)
            assert calls.watermark == number + 1
    return time.thread_time() - began


def test_many_open_calls_end_in_linear_time() -> None:
    for confirmed in (False, True):
        few = min(seconds_to_end(1_000, confirmed=confirmed) for _ in range(5))
        many = min(seconds_to_end(32_000, confirmed=confirmed) for _ in range(2))
        # 32 times as many take 32 times as long. A walk over those that have ended before would
        # take about 1,000 times as long.
        assert many < 250 * few
