"""`stack` names the line that blocks an event loop: of a node, told by another node; of the founder;
and of the process of an isolated actor. Real processes.
"""

from __future__ import annotations

import json
import os

import pytest

from tests.command_line.shell import Cluster, Shell

BLOCKER = """
from actors import Actor, method

class Blocker(Actor):
    @method
    async def block(self, path: str) -> None:
        open(path).read()  # the line that blocks
"""

SCRIPT = """
import sys, trio
from blocker import Blocker
from runtime import open_node

async def main(address: str, path: str, on: str, isolation: str) -> None:
    async with open_node("script", join=address) as node:
        options = node.options(name="blocker", on=on, isolation=isolation)
        blocker = await options.spawn(Blocker)
        print("ready", flush=True)
        await blocker.block(path)

if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
"""


LINE = BLOCKER.splitlines().index("        open(path).read()  # the line that blocks") + 1


@pytest.mark.cluster
@pytest.mark.parametrize("place", ["founder", "node", "process"])
def test_stack_names_the_line_that_blocks(shell: Shell, place: str) -> None:
    (shell.place / "blocker.py").write_text(BLOCKER)
    os.mkfifo(shell.place / "gate")
    cluster = Cluster(shell)
    on, asked = ("first", cluster.worker_address) if place == "founder" else ("w1", cluster.address)
    gate = str(shell.place / "gate")
    isolation = "process" if place == "process" else "none"
    script, _ = shell.start_script(SCRIPT, asked, gate, on, isolation)
    wanted = f"{shell.place / 'blocker.py'}:{LINE} in Blocker.block"
    # Where the founder is blocked, no store says which node an actor is on.
    name = on if place == "founder" else "blocker"
    # It is told once the loop has been blocked for half a lease.
    done = None
    for _ in range(10):
        done = shell.run("stack", name, "--address", asked)
        if wanted in done.stdout:
            break
        assert done.returncode in (0, 1), done
        assert "Traceback" not in done.stderr
    assert done is not None
    assert wanted in done.stdout, done
    if place == "process":
        assert "in the process of blocker, whose event loop does not answer" in done.stdout
    else:
        assert "its event loop has been blocked for" in done.stdout
        assert "by blocker.block" in done.stdout
        told = json.loads(shell.run("stack", on, "--json", "--address", asked).stdout)["blocked"]
        assert told["told"] != on
        assert told["stack"][-1][1] == LINE
    # Opened and closed: the method reads the end of the file, and returns.
    with open(gate, "w"):
        pass
    _, errors = script.communicate(timeout=30)
    assert script.returncode == 0, errors
