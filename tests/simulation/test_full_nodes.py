"""More actors than there is room for, started by all nodes at the same moments: some find room, and
many do not.
"""

from __future__ import annotations

import re

import pytest

from runtime.simulation import simulate_once
from runtime.simulation.full_nodes import FullNodes

SEEDS = [seed for seed in range(200) if FullNodes.is_drawn(seed)]


# `.ci/run` runs hundreds of seeds, with all loads.
@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_no_more_is_taken_than_there_is(seed: int) -> None:
    report = simulate_once(seed)
    assert report.holds, report.wrong
    (said,) = [result.text for result in report.check_results if result.name == FullNodes.check]
    found = re.fullmatch(r"([0-9]+) actors found room, ([0-9]+) did not", said)
    assert found is not None
    assert all(int(count) >= 10 for count in found.groups())


@pytest.mark.parametrize("seed", [1919, 2159])
def test_a_node_that_has_not_joined_yet_is_not_one_that_has_no_room(seed: int) -> None:
    """Within the first fifth of a second, the others are full."""
    report = simulate_once(seed, seconds=3.0)
    assert report.holds, report.wrong


@pytest.mark.long
def test_a_seed_of_full_nodes_gives_the_same_run_again() -> None:
    assert simulate_once(SEEDS[1]).trace_hash == simulate_once(SEEDS[1]).trace_hash
