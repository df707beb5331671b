"""The example, run as a reader runs it, and what the docs show of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(200)]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "elastic_training.py"
DOCS = (ROOT / "docs" / "how-to" / "torch.md").read_text()

OUTPUT = r"""step 60, workers: 2
step 120, workers: 2
step 180, workers: 2
step 240, workers: 2
240 steps: loss 0\.0\d\d, 9\d\.\d% of the digits held out are recognised
"""


def run(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-P",
        "-m",
        "runtime.command_line",
        "run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(EXAMPLE),
        *words,
    ]
    return subprocess.run(
        command,
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_example_trains_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    for module in ("torch", "sklearn"):
        pytest.importorskip(
            module, reason=f"{module} is not installed: `make torch` runs this test where it is"
        )
    done = run(tmp_path, "checkpoint.pt")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(OUTPUT, done.stdout), done.stdout
    further = run(tmp_path, "checkpoint.pt", "--steps", "300")
    assert re.match(r"step 300, workers: 2\n300 steps: ", further.stdout), further.stdout


def test_the_docs_show_what_the_example_prints() -> None:
    assert re.search(OUTPUT, DOCS)


@pytest.mark.parametrize("missing", ["torch", "sklearn"])
def test_the_example_says_what_to_install(tmp_path: Path, missing: str) -> None:
    (tmp_path / "torch.py").write_text("")
    (tmp_path / f"{missing}.py").write_text("raise ImportError('as if it were not installed')\n")
    done = subprocess.run(
        [sys.executable, EXAMPLE, "checkpoint.pt"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "this example trains with PyTorch on data of scikit-learn: pip install torch scikit-learn ("
    )
