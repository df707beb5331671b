"""Tasks that race for names: what they find answers, and cancellations do happen."""

from __future__ import annotations

import re

import pytest

from runtime.simulation import simulate_once
from runtime.simulation.name_races import NameRaces

SEEDS = [seed for seed in range(200) if NameRaces.is_drawn(seed)]


# `.ci/run` runs hundreds of seeds, with all loads.
@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS[:4])
def test_what_is_found_answers(seed: int) -> None:
    report = simulate_once(seed)
    assert report.holds, report.wrong
    (said,) = [
        result.text for result in report.check_results if result.name == "what is found answers"
    ]
    found = re.fullmatch(r"([0-9]+) handles answered, ([0-9]+) acts were cancelled", said)
    assert found is not None
    assert all(int(count) >= 10 for count in found.groups())


@pytest.mark.long
def test_a_seed_of_name_races_gives_the_same_run_again() -> None:
    assert simulate_once(SEEDS[2]).trace_hash == simulate_once(SEEDS[2]).trace_hash
