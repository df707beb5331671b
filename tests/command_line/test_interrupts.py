"""Ctrl-C in the first moments of a command, when it has not begun yet: exit status 130, and no
traceback.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

INTERRUPTED = """
import atexit, os, signal, sys
from importlib.abc import MetaPathFinder

signal.signal(signal.SIGINT, {handler})

class Interrupt(MetaPathFinder):
    # Sends SIGINT when the module is looked for, in the middle of the imports.
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
atexit.register(print, "closed")
sys.argv = ["understudy", *{words!r}]
from {entry}
"""
"""What the script `understudy` does, with a signal at a certain point."""


def interrupted(
    module: str,
    *,
    words: tuple[str, ...] = ("status", "--help"),
    entry: str = "runtime.command_line.entry import run; run()",
    handler: str = "signal.default_int_handler",
) -> subprocess.CompletedProcess[str]:
    program = INTERRUPTED.format(module=module, words=words, entry=entry, handler=handler)
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "module",
    [
        # The first is looked for by `runtime` itself.
        "outcome",
        "runtime.command_line.interrupts",
        "runtime.command_line.main",
        "click.utils",
        "runtime.command_line.status",
        "trio._core._run",
    ],
)
def test_ctrl_c_while_a_command_is_loaded_ends_it_without_a_word(module: str) -> None:
    done = interrupted(module)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_is_ignored_where_the_process_was_started_so() -> None:
    # As in the background jobs of a shell script.
    done = interrupted("click", handler="signal.SIG_IGN")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: understudy status" in done.stdout


def test_a_command_that_has_begun_ends_in_order() -> None:
    """It gets KeyboardInterrupt, so that its blocks are left; here where it begins to log."""
    done = interrupted("runtime.logs.formats", words=("explain", "NodeDiedError"))
    assert (done.returncode, done.stdout, done.stderr) == (130, "closed\n", "")
