"""Reports of blocked loops: bounded, fresh, and whatever a peer tells."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from actors.identifiers import NodeId
from runtime.hosting.stacks import blocked_report
from runtime.observation.blocked_loops import REPORT_SECONDS, REPORTS_KEPT, BlockedLoops

NODE = NodeId("w1", 5)


class HandSetClock:
    """As much of an environment as is needed here."""

    time = 100.0

    def now(self) -> float:
        return self.time


@pytest.fixture
def environment() -> Any:
    return HandSetClock()


def report(seconds: float = 3.0) -> dict[str, Any]:
    return blocked_report(sys._getframe(), seconds)


def test_a_report_is_given_while_it_is_fresh_and_ends_with_the_block(environment: Any) -> None:
    loops = BlockedLoops(environment)
    assert loops.of(NODE) is None
    loops.tell(NODE, report())
    environment.time += 2.0
    told = loops.of(NODE)
    assert told is not None
    assert told["age"] == 2.0
    assert told["stack"][-1][2] == "report"
    assert loops.of(NodeId("w1", 6)) is None
    environment.time += REPORT_SECONDS
    assert loops.of(NODE) is None
    loops.tell(NODE, report())
    loops.tell(NODE, {"seconds": 0})
    assert loops.of(NODE) is None


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"seconds": "long"},
        {"seconds": 3, "who": 5},
        {"seconds": 3, "stack": [5]},
        {"seconds": 3, "stack": [["file", "line", "function", "source"]]},
    ],
)
def test_what_is_no_report_is_not_kept(environment: Any, facts: dict[str, Any]) -> None:
    loops = BlockedLoops(environment)
    loops.tell(NODE, facts)
    assert loops.of(NODE) is None


def test_reports_are_bounded_in_size_and_number(environment: Any) -> None:
    loops = BlockedLoops(environment)
    huge = {"seconds": 3, "who": "x" * 10**6, "stack": [["y" * 10**6, 1, "f", "s"]] * 10**4}
    for number in range(2 * REPORTS_KEPT):
        loops.tell(NodeId("w1", number), huge)
    assert loops.of(NodeId("w1", 0)) is None
    told = loops.of(NodeId("w1", 2 * REPORTS_KEPT - 1))
    assert told is not None
    assert len(str(told)) < 100_000
