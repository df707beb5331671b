"""The simulator finds bugs: each of these is planted into the runtime, and must be found by some of
the first seeds.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tests.simulation.long_silence import silence
from tests.simulation.planted import (
    COSTLY,
    MANY_SEEDS,
    PLANTS,
    RUNS,
    SEEDS,
    SELDOM,
    first_found,
)

POINTS = {
    1: ("late offer ends the link", "late offer is accepted"),
    5: ("death of a node counts a restart for each child", "restart counted twice"),
    6: (
        "blocked node is kept for ever",
        "blocked loop is not stood in for",
        "lease is not looked at on waking",
    ),
    7: ("a death is a failure of each call",),
    8: ("errors of the store come out of lookups", "silent store is waited for"),
    10: (
        "calls that wait are made as each finds the actor",
        "calls on their way to the last life are overtaken",
    ),
    11: ("first attempt is the outcome for others",),
    16: (
        "answers to a peer that does not read are kept",
        "what ran and was dropped is called unexecuted",
    ),
}
"""Promises that users saw broken, by their number in the issue that told of them, and what is
planted for each.
"""


def test_there_are_bugs_to_find() -> None:
    assert len(PLANTS) >= 12
    assert {name for names in POINTS.values() for name in names} <= set(PLANTS)
    assert SELDOM | COSTLY | set(RUNS) <= set(PLANTS)
    assert not SELDOM & COSTLY
    for names in POINTS.values():
        assert set(names) - SELDOM - COSTLY, f"none of {names} is found in `make test`"


@pytest.mark.parametrize("name", PLANTS)
def test_a_bug_is_planted_where_the_runtime_still_has_that_part(name: str) -> None:
    with PLANTS[name]():
        pass


def found(name: str, seeds: int) -> None:
    # In a process of its own: no test that comes later in this one meets what a bug has left
    # behind. It is forked from a process that has only imported what it needs, and runs nothing.
    forks = get_context("forkserver")
    forks.set_forkserver_preload(["tests.simulation.planted"])
    with ProcessPoolExecutor(1, mp_context=forks) as pool:
        seed, checks = pool.submit(first_found, name, seeds).result()
    sys.stdout.write(f"seed {seed}: {', '.join(checks)}\n")
    assert seed is not None


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] if name in COSTLY else [])
        for name in PLANTS
        if name not in SELDOM
    ],
)
def test_a_planted_bug_is_found_within_100_seeds(name: str) -> None:
    found(name, SEEDS)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", sorted(SELDOM))
def test_a_planted_bug_that_seldom_shows_is_found_within_600_seeds(name: str) -> None:
    found(name, MANY_SEEDS)


@pytest.mark.parametrize("seed", range(5))
def test_a_caller_of_a_store_that_is_silent_for_long_gets_an_error_in_time(seed: int) -> None:
    report = silence(seed)
    assert report.holds, report.wrong
