"""The pairs of programs on the page for those who come from elsewhere: each prints what the page
says, theirs as ours.

Erlang runs where it is installed. Ray, Dask, Celery and PyTorch run in environments of their own,
in the folder that the variable PEERS names: `make pairs` makes the first three, and `make peers`
PyTorch's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import ROOT

FOLDER = ROOT / "examples" / "coming_from"
PAGE = (ROOT / "docs" / "coming-from" / "index.md").read_text()
PEERS = Path(os.environ.get("PEERS", ROOT / ".venv-peers"))
INSTALLED = {"dask": "distributed", "celery": "celery", "ray": "ray", "torch": "torch"}
PRINTED = {
    shown[1]: shown[2]
    for shown in re.finditer(
        r"coming_from/(\w+)_ours\.py.*?Both print:\n\n```text\n(.*?)```", PAGE, re.DOTALL
    )
}


def printed(*words: str | Path) -> str:
    """What a program prints. Raises AssertionError if it fails."""
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_page_shows_each_program() -> None:
    files = {path.name for path in FOLDER.iterdir() if path.is_file()}
    assert set(re.findall(r"literalinclude\} \S+coming_from/(\S+)", PAGE)) == files
    assert set(PRINTED) == {name.partition("_")[0] for name in files}


@pytest.mark.cluster
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] * (name in INSTALLED)) for name in PRINTED],
)
def test_ours_prints_what_the_page_says(name: str) -> None:
    assert printed(sys.executable, FOLDER / f"{name}_ours.py") == PRINTED[name]


def test_the_program_for_asyncio_prints_the_same() -> None:
    assert printed(sys.executable, FOLDER / "asyncio_theirs.py") == PRINTED["asyncio"]


@pytest.mark.skipif(shutil.which("escript") is None, reason="Debian: apt-get install erlang-base")
def test_the_program_for_erlang_prints_the_same() -> None:
    assert printed("escript", FOLDER / "erlang_theirs.escript") == PRINTED["erlang"]


@pytest.mark.long
@pytest.mark.parametrize("name", INSTALLED)
def test_the_program_for_another_library_prints_the_same(name: str) -> None:
    python = PEERS / name / "bin" / "python"
    if not python.exists():
        where = "`make peers`" if name == "torch" else "`make pairs`"
        pytest.skip(f"{INSTALLED[name]} is not in {python.parent.parent}; {where} installs it")
    assert printed(python, FOLDER / f"{name}_theirs.py") == PRINTED[name]
