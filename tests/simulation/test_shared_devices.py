"""A pool, a singleton and supervised children that share all devices, while they crash and others
take some for a while.
"""

from __future__ import annotations

import re

import pytest

from runtime.simulation import simulate_once
from runtime.simulation.shared_devices import SharedDevices

SEEDS = [seed for seed in range(300) if SharedDevices.is_drawn(seed)]


# `.ci/run` runs hundreds of seeds, with all loads.
@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_in_the_calm_all_have_their_devices_and_give_them_back(seed: int) -> None:
    report = simulate_once(seed)
    assert report.holds, report.wrong
    (said,) = [result.text for result in report.check_results if result.name == SharedDevices.check]
    found = re.fullmatch(r"([0-9]+) actors came and went, ([0-9]+) were asked to crash", said)
    assert found is not None
    assert all(int(count) >= 5 for count in found.groups())
