"""Log lines that others can cause are limited in rate."""

from __future__ import annotations

import logging

import pytest

from runtime.limited_log import MOST_KINDS, LimitedLog


def test_only_the_first_lines_of_a_kind_are_written_and_the_next_period_says_how_many_were_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    log = LimitedLog(logging.getLogger("understudy.tests"), lambda: now, burst=3, period=60.0)
    for number in range(1000):
        log.warning("stranger %d came", number)
    log.warning("something else")
    now = 60.0
    log.warning("stranger %d came", 1000)
    assert [record.getMessage() for record in caplog.records] == [
        "stranger 0 came",
        "stranger 1 came",
        "stranger 2 came",
        "something else",
        "stranger 1000 came (997 more lines like this one were left out)",
    ]


def test_what_is_below_the_level_of_the_logger_counts_for_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = LimitedLog(logging.getLogger("understudy.tests"), lambda: 0.0, burst=1)
    with caplog.at_level(logging.WARNING, "understudy"):
        log.log(logging.DEBUG, "once")
    with caplog.at_level(logging.DEBUG, "understudy"):
        log.log(logging.DEBUG, "once")
    assert [record.getMessage() for record in caplog.records] == ["once"]


def test_lines_about_different_things_do_not_count_for_each_other_up_to_a_bound(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    log = LimitedLog(logging.getLogger("understudy.tests"), lambda: now, burst=2, period=60.0)
    for _ in range(5):
        for actor in ("a", "b"):
            log.log(logging.ERROR, "%s failed", actor, about=actor)
    assert [record.getMessage() for record in caplog.records] == [
        "a failed",
        "b failed",
        "a failed",
        "b failed",
    ]
    caplog.clear()
    for number in range(10 * MOST_KINDS):
        log.log(logging.ERROR, "%s failed", number, about=str(number))
    # Those for which there is no room share the two lines of the text.
    assert len(caplog.records) == MOST_KINDS - 2 + 2
    caplog.clear()
    now = 60.0
    log.log(logging.ERROR, "%s failed", "c", about="c")
    log.log(logging.ERROR, "%s failed", "again")
    # Of "a" and "b" three each, and what found no room.
    left_out = 3 + 3 + 10 * MOST_KINDS - (MOST_KINDS - 2) - 2
    assert [record.getMessage() for record in caplog.records] == [
        "c failed",
        f"again failed ({left_out} more lines like this one were left out)",
    ]
