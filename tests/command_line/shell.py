"""The commands as a user starts them: real processes in a directory with an application; or in a
thread of the test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trio
from click.testing import CliRunner, Result

from runtime.command_line.main import main
from tests import forked_python

UNDERSTUDY = [sys.executable, "-P", "-m", "runtime.command_line"]
LONG_LEASES = [sys.executable, "-P", "-m", "tests.command_line.long_leases"]
FIRST = ("--name", "first", "--listen", "127.0.0.1:0")
ROOT = Path(__file__).resolve().parents[2]

APPLICATION = """
import trio

from actors import Actor, method

class Counter(Actor):
    def __init__(self, start: int = 0) -> None:
        self.value = start

    @method
    async def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    @method
    async def nothing(self) -> None:
        pass

    @method
    async def wait(self) -> None:
        await trio.sleep_forever()

    @method
    async def wait_for(self, other: str) -> None:
        await (await self.node.lookup(other, Counter)).wait()

    @method
    async def fail(self) -> None:
        raise ValueError("on purpose")

    @method
    async def count(self, *, most: int):
        for number in range(most):
            yield number
"""


class Shell:
    """A directory with an application in it, and a state directory of its own."""

    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "app.py").write_text(APPLICATION)
        self.environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{place}",
            "XDG_STATE_HOME": str(place / "state"),
        }
        self.running: list[subprocess.Popen[str]] = []

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run_python(*UNDERSTUDY[1:], *words, **environment)

    def run_python(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run Python with these words, such as the name of a file in the directory."""
        return forked_python.run(
            [sys.executable, *words],
            cwd=self.place,
            env={**self.environment, **environment},
            capture_output=True,
            timeout=50,
        )

    def run_program(self, text: str, *words: str) -> None:
        """Run a program that must end well."""
        (self.place / "program.py").write_text(text)
        done = self.run_python("program.py", *words)
        assert done.returncode == 0, done.stderr

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        stdin: int | None = None,
        stdout: int = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a process, which ends with the shell."""
        process = forked_python.Popen(
            list(command),
            cwd=self.place,
            env={**self.environment, **(environment or {})},
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
        )
        self.running.append(process)
        return process

    def start_node(
        self, *words: str, command: Sequence[str] = UNDERSTUDY, **environment: str
    ) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        process = self.start([*command, "node", "--json", *words], environment)
        return process, json.loads(_first_line(process))

    def found(self, *options: str, **environment: str) -> str:
        """Start a founder called first, and return its address."""
        address: str = self.start_node(*FIRST, *options, **environment)[1]["address"]
        return address

    def start_script(self, text: str, *arguments: str) -> tuple[subprocess.Popen[str], str]:
        """Run a program; returns its process and, once it is there, the first line that it prints."""
        (self.place / "script.py").write_text(text)
        process = self.start([sys.executable, "script.py", *arguments], stdin=subprocess.PIPE)
        return process, _first_line(process).strip()

    def close(self) -> None:
        for process in self.running:
            process.kill()
            process.communicate()


def _first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return line


class Cluster:
    """A founder called first, and a node w1. `command` starts both, with `options`, and w1 with
    those in `worker` as well.
    """

    def __init__(
        self,
        shell: Shell,
        *options: str,
        worker: Sequence[str] = (),
        command: Sequence[str] = UNDERSTUDY,
    ) -> None:
        self.shell = shell
        self.founder, first = shell.start_node(*FIRST, *options, command=command)
        self.address: str = first["address"]
        self.worker, joined = shell.start_node(
            "--name", "w1", "--join", self.address, *options, *worker, command=command
        )
        self.worker_address: str = joined["address"]

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.shell.run(*words, "--address", self.address, **environment)

    def facts(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json").stdout)


def check_mistake(done: subprocess.CompletedProcess[str], *words: str, status: int = 1) -> None:
    """One line, no traceback, and the words that the user needs."""
    assert done.returncode == status, done
    assert "Traceback" not in done.stderr
    # On a busy machine the log may say that a connection takes long; that is no mistake's text.
    lines = [
        line for line in done.stderr.strip().splitlines() if "has not been reached" not in line
    ]
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0]


async def command_in_thread(*words: str) -> Result:
    """Run a command in a thread, on a loop of its own."""
    result: Result = await trio.to_thread.run_sync(
        lambda: CliRunner().invoke(main, list(words)), abandon_on_cancel=True
    )
    assert "Traceback" not in result.output
    return result
