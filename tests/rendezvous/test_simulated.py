"""Rounds with joins, leaves, deaths and cuts at random: one map each, one leader, and nobody left
in an older one.
"""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.rendezvous.world import World

WORLDS = [(1, 4, 0.0), (2, 3, 0.0), (2, 5, 3.0), (3, 6, 1.0), (4, 4, 5.0)]


def simulate(seed: int, rounds: int) -> World:
    """A world of this seed after so many rounds."""
    world = World(seed, *WORLDS[seed % len(WORLDS)])
    trio.run(world.run, rounds, clock=trio.testing.MockClock(autojump_threshold=0))
    return world


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 5))]
)
def test_some_rounds_have_one_map_each(seed: int) -> None:
    assert simulate(seed, 25).rounds >= 25


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(5, 15))
def test_a_hundred_rounds_have_one_map_each(seed: int) -> None:
    assert simulate(seed, 100).rounds >= 100
