"""Compiles what the tests import, once: `python -m tests.byte_code`, before pytest.

In a fresh clone nothing is compiled, and pytest compiles its tests, and the modules of its
plug-ins, in a way of its own, which takes longer. The processes of `make test` start at the same
moment and import the same files, so that each of them would compile all: 20 seconds of processor
time in each of five processes. What is compiled already is left as it is.
"""

from __future__ import annotations

import compileall
import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _pytest.assertion import rewrite

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("actors", "runtime", "understudy", "tests")
IN_A_WAY_OF_PYTEST = ("runtime/**/*.py", "tests/**/conftest.py", "tests/**/test_*.py")
"""The runtime too, since the package is one of a plug-in."""
PLUGINS = ("tests/etcd.py", "tests/hangs.py", "tests/live_pair.py")
TOGETHER = 10


class _Silent:
    """Stands in for pytest's own state, which `_write_pyc` tells what went wrong: the file is
    compiled again then when it is imported.
    """

    def trace(self, text: str) -> None:
        """Nothing."""


def rewritten_files() -> Iterator[Path]:
    """The files whose assertions pytest rewrites."""
    for pattern in (*IN_A_WAY_OF_PYTEST, *PLUGINS):
        yield from ROOT.glob(pattern)


def compile_for_pytest(path: Path) -> None:
    """Write the file from which pytest imports this one, unless it is there and current."""
    # Of pytest's own modules, since it offers no other way that does not import the file as well.
    pytest_part: Any = rewrite
    place = path.parent / "__pycache__"
    place.mkdir(exist_ok=True)
    compiled = place / (path.stem + rewrite.PYC_TAIL)
    if pytest_part._read_pyc(path, compiled) is None:
        try:
            state, code = pytest_part._rewrite_test(path, None)
        except SyntaxError:
            # Pytest shows it, with its place.
            return
        pytest_part._write_pyc(_Silent(), code, state, compiled)


def main() -> None:
    """Compile, with a process for each processor."""
    workers = os.cpu_count() or 1
    for package in PACKAGES:
        compileall.compile_dir(ROOT / package, quiet=2, workers=workers)
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for _ in pool.imap_unordered(compile_for_pytest, rewritten_files(), TOGETHER):
            pass


if __name__ == "__main__":
    # As tests/conftest.py has it: some environments forbid what this is for.
    sys.dont_write_bytecode = False
    main()
