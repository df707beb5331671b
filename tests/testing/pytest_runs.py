"""Runs pytest on a file of tests as a user does, in a process of its own, and reads what it
says.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parents[2]

ACTOR = """
import pytest
import trio
from actors import Actor, errors, method

class Counter(Actor):
    def __init__(self) -> None:
        self.value = 0

    @method
    async def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    @method
    async def where(self) -> str:
        return self.node.name

    @method
    async def wait(self, seconds: float) -> float:
        before = trio.current_time()
        await trio.sleep(seconds)
        return trio.current_time() - before
"""


@attrs.frozen
class PytestRun:
    """How a run of pytest ended, and what it printed."""

    code: int
    output: str

    @property
    def outcomes(self) -> dict[str, str]:
        """PASSED, FAILED, ERROR or SKIPPED of each test, by its name; what was said last."""
        found = re.findall(
            r"^(PASSED|FAILED|ERROR|SKIPPED) \S*?::(\S+)", self.output, flags=re.MULTILINE
        )
        return {name: outcome for outcome, name in found}

    def section(self, name: str) -> str:
        """What was printed of the failure of one test."""
        found = re.search(
            rf"^_+ (?:ERROR at \w+ of )?{re.escape(name)} _+$\n(.*?)(?=^_{{5,}} |^={{5,}} )",
            self.output,
            flags=re.MULTILINE | re.DOTALL,
        )
        assert found is not None, f"nothing about {name} in:\n{self.output}"
        return found[1]


def run_pytest(
    directory: Path,
    source: str,
    *arguments: str,
    plugins: tuple[str, ...] | None = (),
    **files: str,
) -> PytestRun:
    """Run pytest on `source`, after the actor above, with our plug-in and `plugins`, by the names
    of their entry points: loading all that are installed, as None does, takes longer than most
    runs. `files` are others beside it, by their names without `.py`.
    """
    (directory / "pytest.ini").write_text("[pytest]\n")
    for name, text in {"test_it": ACTOR + source, **files}.items():
        (directory / f"{name}.py").write_text(text)
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path])
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider"]
    if plugins is not None:
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        for plugin in ("runtime.pytest_plugin", *plugins):
            command += ["-p", plugin]
    done = subprocess.run(
        [*command, *arguments, "test_it.py"],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    return PytestRun(done.returncode, done.stdout + done.stderr)
