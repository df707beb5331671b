"""The simulator finds bugs: each of these is planted into the runtime, and must be found by some of the first 500 seeds."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tests.simulation.planted import PLANTS, first_found


@pytest.mark.slow
@pytest.mark.timeout(540)
def test_every_planted_bug_is_found_within_500_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(PLANTS) >= 12
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        found = list(pool.map(first_found, PLANTS))
    with capsys.disabled():
        sys.stdout.write("\n" + "".join(f"  {name}: seed {seed}: {', '.join(checks)}\n" for name, seed, checks in found))
    assert [name for name, seed, _ in found if seed is None] == []
