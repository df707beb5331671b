"""An actor that does not stop in time: the command says so, and not that its node is silent."""

from __future__ import annotations

import pytest

from tests.command_line.shell import FIRST, Shell, check_mistake

pytestmark = pytest.mark.cluster

SLOW = """
import sys, time, trio
from actors import Actor, method
from runtime import open_node

class Slow(Actor):
    async def on_stop(self, reason) -> None:
        await trio.sleep(20)

class Busy(Actor):
    @method
    def block(self) -> None:
        time.sleep(20)

async def main(address):
    async with open_node("slow-node", join=address) as node:
        await node.options(name="slow").spawn(Slow)
        await (await node.options(name="busy").spawn(Busy)).block.send()
        print("up", flush=True)
        await trio.sleep_forever()

if __name__ == "__main__":
    trio.run(main, sys.argv[1])
"""


def test_an_actor_that_has_not_stopped_in_time_is_said_to_be_at_work(shell: Shell) -> None:
    where = ("--address", shell.start_node(*FIRST)[1]["address"])
    shell.start_script(SLOW, where[1])
    asked = "was asked to stop, and has not stopped within 1 s"
    for name, doing in (("slow", "its on_stop has not returned"), ("busy", "it runs block for ")):
        check_mistake(
            shell.run("stop", "--actor", name, "--timeout", "1", *where),
            f"actor {name} {asked}: ",
            doing,
            f"`understudy stack {name}` shows",
            "another --timeout",
        )
    check_mistake(
        shell.run("stop", "--actor", "first", *where),
        "no actor called 'first' in the cluster, but a node",
        "leave out --actor",
    )
