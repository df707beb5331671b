"""Sums of waits, also of those that go on."""

from __future__ import annotations

from runtime.statistics.waits import WaitedSeconds


def test_waits_that_go_on_count_so_far() -> None:
    waits = WaitedSeconds()
    assert waits.seconds(1000.0) == 0
    waits.begin(1000.0)
    waits.begin(1002.0)
    assert waits.seconds(1003.0) == 4
    waits.end(1003.0)
    assert (waits.waiting, waits.seconds(1005.0)) == (1, 6)
    waits.end(1005.0)
    assert (waits.waiting, waits.seconds(2000.0)) == (0, 6)
