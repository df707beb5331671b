"""Callers that stop reading cost the node that they call a bounded amount of memory, and others
nothing.
"""

from __future__ import annotations

import pytest

from runtime.simulation.unread_answers import unread_answers


@pytest.mark.parametrize("seed", range(5))
def test_a_caller_that_stops_reading_is_kept_within_bounds_and_gets_true_outcomes(
    seed: int,
) -> None:
    report = unread_answers(seed)
    assert report.holds, report.wrong
    assert report.calls["ok"] > 0
    assert report.calls["refused"] > 0
