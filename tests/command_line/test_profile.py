"""`profile` as a user meets it: a busy node, an isolated actor that blocks, and wrong names."""

from __future__ import annotations

import json
import os

import pytest

from tests.command_line.shell import Shell, check_mistake
from tests.hosting.test_profiler import check_speedscope

BUSY = """
import trio
from actors import Actor, method

class Busy(Actor):
    @method
    async def spin(self) -> None:
        while True:
            self.compute()
            await trio.lowlevel.checkpoint()

    def compute(self) -> None:
        sum(range(10_000))

    @method
    async def block(self, path: str) -> None:
        open(path).read()
"""

SCRIPT = """
import sys, trio
from busy import Busy
from runtime import open_node

async def main(address: str, path: str) -> None:
    async with open_node("script", join=address) as node, trio.open_nursery() as nursery:
        busy = await node.options(name="busy", on="first").spawn(Busy)
        alone = await node.options(name="alone", on="first", isolation="process").spawn(Busy)
        nursery.start_soon(busy.spin)
        nursery.start_soon(alone.block, path)
        print("ready", flush=True)

if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
"""


@pytest.mark.cluster
def test_a_profile_names_what_a_busy_node_and_a_blocked_process_run(shell: Shell) -> None:
    (shell.place / "busy.py").write_text(BUSY)
    os.mkfifo(shell.place / "gate")
    address = shell.found()
    shell.start_script(SCRIPT, address, str(shell.place / "gate"))
    for name, function in (("busy", "Busy.compute"), ("alone", "block")):
        done = shell.run(
            *("profile", name, "--seconds", "1", "-o", "out.json", "--address", address, "--json")
        )
        assert done.returncode == 0, done
        file = json.loads((shell.place / "out.json").read_text())
        check_speedscope(file)
        assert file["name"] == name
        facts = json.loads(done.stdout)
        assert facts["file"] == "out.json"
        assert any(function in one["function"] for one in facts["functions"]), facts
    check_mistake(
        shell.run("profile", "bisy", "--seconds", "1", "--address", address),
        "no actor called 'bisy'",
        "did you mean 'busy'?",
    )
    where = shell.run(
        *("profile", "first", "--seconds", "0.1", "-o", "no/such/place", "--address", address)
    )
    check_mistake(where, "no/such/place", "No such file or directory")
