"""States that are saved in parts, several at once, while saves are cancelled and nodes end."""

from __future__ import annotations

import re

import pytest

from runtime.simulation import simulate_once
from runtime.simulation.large_states import LargeStates

SEEDS = [seed for seed in range(300) if LargeStates.is_drawn(seed)]


# `.ci/run` runs hundreds of seeds, with all loads.
@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_states_are_loaded_as_they_were_saved_and_no_other_parts_are_left(seed: int) -> None:
    report = simulate_once(seed)
    assert report.holds, report.wrong
    (said,) = [result.text for result in report.check_results if result.name == LargeStates.check]
    found = re.fullmatch(r"([0-9]+) of ([0-9]+) saves succeeded, ([0-9]+) states were loaded", said)
    assert found is not None
    succeeded, saves, loaded = map(int, found.groups())
    assert 5 <= succeeded < saves
    assert loaded >= 2


@pytest.mark.long
def test_a_seed_of_large_states_gives_the_same_run_again() -> None:
    assert simulate_once(SEEDS[0]).trace_hash == simulate_once(SEEDS[0]).trace_hash
