"""The simulator finds bugs: each of these is planted into the runtime, and must be found by some of the first 500 seeds."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tests.simulation.planted import PLANTS, first_found


def test_there_are_bugs_to_find() -> None:
    assert len(PLANTS) >= 12


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PLANTS)
def test_every_planted_bug_is_found_within_500_seeds(name: str) -> None:
    # In a process of its own: no test that comes later in this one meets what a bug has left behind.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        _, seed, checks = pool.submit(first_found, name).result()
    sys.stdout.write(f"seed {seed}: {', '.join(checks)}\n")
    assert seed is not None
