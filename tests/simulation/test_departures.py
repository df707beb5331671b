"""Nodes that are asked to leave end in their time, however many actors they have and however long
the store answers nothing. What others ask of them meanwhile is answered.
"""

from __future__ import annotations

import pytest

from runtime.simulation.departures import departures, used_departures


@pytest.mark.parametrize("seed", range(2))
def test_nodes_leave_in_time_while_the_store_is_silent(seed: int) -> None:
    report = departures(seed)
    assert report.holds, report.wrong
    assert report.calls["ok"] > 0


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_no_start_and_no_call_takes_a_node_that_leaves_for_dead(seed: int) -> None:
    report = used_departures(seed)
    assert report.holds, report.wrong
    assert report.calls["ok"] > 0
    assert report.calls["NodeDrainingError"] > 0


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 60))
def test_no_start_and_no_call_takes_a_node_that_leaves_for_dead_under_many_seeds(
    seed: int,
) -> None:
    report = used_departures(seed)
    assert report.holds, report.wrong


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 100))
def test_nodes_leave_in_time_under_many_seeds(seed: int) -> None:
    report = departures(seed)
    assert report.holds, report.wrong
