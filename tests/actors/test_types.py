"""What the types of methods, streams, groups and the node API promise, held by both checkers of
`make lint`; skipped where they are not installed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

FILES = (
    "actors/types_of_streams.py",
    "actors/types_of_groups.py",
    "actors/types_of_pools.py",
    "actors/types_of_references.py",
    "doors/types_of_doors.py",
    "testing/types_of_fixtures.py",
    "isolation/types_of_node_api.py",
)
"""Together: a checker needs most of its time for what they import."""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "checker",
    [
        # `make lint`, the step of `.ci/run` before the tests, gives these files to mypy as well,
        # with the same settings; to basedpyright it gives no tests.
        pytest.param(["mypy", "--strict"], marks=pytest.mark.long, id="mypy"),
        pytest.param(["basedpyright", "--pythonpath", sys.executable], id="basedpyright"),
    ],
)
def test_right_uses_are_accepted_and_wrong_ones_refused(checker: list[str]) -> None:
    pytest.importorskip(checker[0])
    files = [ROOT / "tests" / each for each in FILES]
    command = [sys.executable, "-m", *checker, *map(str, files)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
