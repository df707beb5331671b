"""A node that joins is a member or ends in its time, whatever happens to the node that keeps the
store at any step of the join.
"""

from __future__ import annotations

import pytest

from runtime.simulation.joins import joins


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 100))]
)
def test_a_join_ends_in_time_whatever_happens_at_any_of_its_steps(seed: int) -> None:
    report = joins(seed)
    assert report.holds, report.wrong
    # Some faults came in time to end a join, and some did not matter.
    assert report.calls["ok"] > 0
    assert set(report.calls) - {"ok"}


@pytest.mark.long
def test_one_seed_is_one_run() -> None:
    assert joins(3).trace_hash == joins(3).trace_hash
