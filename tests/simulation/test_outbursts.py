"""Actors that raise anything end no more than a call, or themselves."""

from __future__ import annotations

import re

import pytest

from runtime.simulation import simulate_once
from runtime.simulation.outbursts import KEPT, OUTBURSTS, WAYS, Outbursts

SEEDS = [seed for seed in range(200) if Outbursts.is_drawn(seed)]


def test_a_quarter_of_the_seeds_has_outbursts() -> None:
    assert 0.2 < sum(map(Outbursts.is_drawn, range(2000))) / 2000 < 0.3


# `.ci/run` runs hundreds of seeds, with all loads.
@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS[:6])
def test_whatever_is_raised_ends_its_call_and_nothing_else(seed: int) -> None:
    report = simulate_once(seed)
    assert report.holds, report.wrong
    (said,) = [
        result.text
        for result in report.check_results
        if result.name == "what is raised ends its call"
    ]
    raised = re.match(r"([0-9]+) callers got the error", said)
    assert raised is not None
    assert int(raised[1]) >= 5


@pytest.mark.long
def test_without_faults_everything_is_raised_everywhere_and_reaches_the_callers() -> None:
    seen: set[tuple[str, str]] = set()
    for seed in SEEDS[:2]:
        report = simulate_once(seed, seconds=45.0, faults=())
        assert report.holds, report.wrong
        for event in report.events:
            if event.kind == "outburst":
                what, where, *_ = event.text.split(", ")
                seen.add((what, where))
    assert {where.replace(" ", "_") for _, where in seen} == set(WAYS)
    assert {what for what, _ in seen} == {*OUTBURSTS, KEPT}


def test_a_seed_without_outbursts_says_nothing_of_them() -> None:
    seed = next(seed for seed in range(200) if not Outbursts.is_drawn(seed))
    assert all(
        result.name != "what is raised ends its call"
        for result in simulate_once(seed, seconds=5.0).check_results
    )
