"""Commands as process 1 of a container: the kernel gives that one no default action for signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from actors import Actor
from runtime import open_node

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("unshare") is None,
        reason="makes a pid namespace, which takes root and unshare",
    ),
]

SECRET = "a secret of the tests with a first process"

SLOW_IMPORT = """
print("importing", flush=True)
import time
time.sleep(100)
"""


class Held(Actor):
    """Keeps the node that leaves."""

    async def on_stop(self, reason: object) -> None:
        sys.stdout.write("stopping\n")
        sys.stdout.flush()
        with trio.CancelScope(shield=True):
            await trio.sleep(100)


@contextmanager
def contained(place: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """Run a command as process 1 of a namespace. Gives the process that waits for it, the id that
    it has outside, and its first line.
    """
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    with subprocess.Popen(
        [*command, sys.executable, "-P", "-m", "runtime.command_line", *words],
        cwd=place,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{place}",
            "UNDERSTUDY_SECRET": SECRET,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as outer:
        try:
            children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
            assert outer.stdout is not None
            line = outer.stdout.readline()
            assert line, outer.wait()
            yield outer, int(children.read_text()), line
        finally:
            outer.kill()


def test_sigterm_ends_a_command_that_has_not_begun(tmp_path: Path) -> None:
    (tmp_path / "slow_import.py").write_text(SLOW_IMPORT)
    with contained(tmp_path, "node", "--import", "slow_import") as (outer, inner, _):
        os.kill(inner, signal.SIGTERM)
        assert outer.wait(30) == 128 + signal.SIGTERM


async def test_a_second_sigterm_ends_a_node_that_drains(tmp_path: Path) -> None:
    words = ("node", "--name", "first", "--listen", "127.0.0.1:0", "--json")
    with contained(tmp_path, *words) as (outer, inner, line):
        async with open_node("outside", join=json.loads(line)["address"], secret=SECRET) as node:
            await node.options(on="first").spawn(Held)
            os.kill(inner, signal.SIGTERM)
            assert outer.stdout is not None
            with trio.fail_after(60):
                while await trio.to_thread.run_sync(outer.stdout.readline) != "stopping\n":
                    pass
                os.kill(inner, signal.SIGTERM)
                status = await trio.to_thread.run_sync(outer.wait)
    assert status == 128 + signal.SIGTERM
