"""`logs` as a user meets it: real node processes, one stopped, one killed, and wrong input."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from typing import Any

import pytest

from tests.command_line.shell import UNDERSTUDY, Cluster, Shell, check_mistake

TALK = """
import logging, os, signal, trio
from actors import Actor, method

log = logging.getLogger("talk")

class Talker(Actor):
    @method
    async def say(self, text: str) -> None:
        log.warning("says %s", text)

    @method
    async def whisper(self, text: str) -> None:
        log.info("whispers %s", text)

    @method
    async def shout(self, size: int) -> None:
        log.error("x" * size)

    @method
    async def fail(self) -> None:
        raise SystemExit("it fails")
"""

SCRIPT = """
import sys, trio
from talk import Talker
from runtime import open_node

async def main() -> None:
    async with open_node("script", join=sys.argv[1]) as node:
        talker = await node.options(name="talker", on="w1").spawn(Talker)
        alone = await node.options(name="alone", on="w1", isolation="process").spawn(Talker)
        for one in (talker, alone):
            await one.say("hello")
        await talker.whisper("psst")
        await talker.shout(10 * 2**20)
        try:
            await (await node.options(name="failing", on="w1").spawn(Talker)).fail()
        except Exception:
            pass
        print("ready", flush=True)
        async for text in trio.wrap_file(sys.stdin):
            await talker.say(text.strip())
            print("said", flush=True)
        await trio.sleep_forever()

if __name__ == "__main__":
    trio.run(main)
"""

WAIT_STORED = """
import click, sys, trio
from runtime.command_line.connect import ChosenCluster, connect
from runtime.logs.archive import archived_lines, archived_nodes

async def main(address, text):
    async with connect(ChosenCluster(address, "understudy", None)) as client:
        while True:
            for one in await archived_nodes(client.store):
                if one.node.name == "w1":
                    lines = await archived_lines(client.store, one.node)
                    if any(text in line.text for line in lines):
                        return
            await trio.sleep(0.1)

# As in a command, which looks up its options there.
with click.Context(click.Command("wait")):
    trio.run(main, *sys.argv[1:])
"""


class TalkingCluster(Cluster):
    """A script whose actors log on w1."""

    def __init__(self, shell: Shell) -> None:
        (shell.place / "talk.py").write_text(TALK)
        super().__init__(shell, worker=("--log-format", "json"))
        # Read all the time: a node whose stderr is full drops lines.
        self.written: list[str] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.script, _ = shell.start_script(SCRIPT, self.address)

    def _read(self) -> None:
        assert self.worker.stderr is not None
        self.written.extend(self.worker.stderr)

    def say(self, text: str) -> None:
        assert self.script.stdin is not None
        assert self.script.stdout is not None
        self.script.stdin.write(f"{text}\n")
        self.script.stdin.flush()
        assert self.script.stdout.readline() == "said\n"

    def logs(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run("logs", *words)

    def facts(self, *words: str) -> Any:
        return json.loads(self.logs(*words, "--json").stdout)

    def wait_stored(self, text: str) -> None:
        """Wait until w1 has written a line with this text to the store."""
        self.shell.run_program(WAIT_STORED, self.address, text)

    def wait_for(self, text: str, *words: str) -> list[str]:
        """The lines, as soon as one has the text: those of a process of its own come later."""
        lines: list[str] = []
        for _ in range(20):
            lines = self.logs(*words).stdout.splitlines()
            if any(text in line for line in lines):
                return lines
        raise AssertionError(f"no {text!r} in {lines}")


@pytest.fixture
def cluster(shell: Shell) -> TalkingCluster:
    return TalkingCluster(shell)


def check_other_commands(cluster: TalkingCluster) -> None:
    """They say so, too, once the death of w1 is known."""
    where = ("--address", cluster.address)
    while "node w1 has ended: " not in (gone := cluster.shell.run("stack", "w1", *where)).stderr:
        pass
    check_mistake(gone, "no node has that name", "`understudy logs w1` shows them")
    gone = cluster.shell.run("inspect", "talker", *where)
    check_mistake(gone, "node w1, on which it ran, has ended: `understudy logs talker`")
    # One that has logged nothing may have been there all the same.
    gone = cluster.shell.run("inspect", "quiet", *where)
    check_mistake(
        gone, "node w1 (incarnation ", "may have been there", "`understudy logs w1` shows"
    )
    status = cluster.shell.run("status", *where)
    assert "ended: node w1, incarnation " in status.stdout
    assert status.returncode == 0
    facts = json.loads(cluster.shell.run("status", "--json", *where).stdout)
    assert [one["name"] for one in facts["ended"]] == ["w1"]


@pytest.mark.cluster
def test_logs_of_actors_and_nodes_and_of_nodes_that_are_stopped_or_killed(
    cluster: TalkingCluster,
) -> None:
    lines = cluster.wait_for("says hello", "alone")
    assert all(line.endswith(("[alone.say]", "[alone.on_start]")) for line in lines)
    of_talker = cluster.logs("talker").stdout
    assert "w1 WARNING talk: says hello [talker.say]" in of_talker
    assert "w1 INFO talk: whispers psst [talker.whisper]" in of_talker
    assert "more characters are left out]" in of_talker
    assert len(of_talker) < 40_000
    assert "whispers" not in cluster.logs("talker", "--level", "warning").stdout
    assert cluster.logs("talker", "--since", "2099-01-01").stdout == ""
    of_node = cluster.facts("w1", "--limit", "2")
    assert len(of_node["lines"]) == 2
    assert of_node["left_out"] > 0
    failed = next(line for line in cluster.facts("w1")["lines"] if "SystemExit" in line["text"])
    assert failed["actor"] == "failing"
    assert failed["level"] == "ERROR"
    check_mistake(cluster.logs("tolker"), "no actor called 'tolker'", "did you mean 'talker'?")

    cluster.wait_stored("SystemExit")
    cluster.worker.send_signal(signal.SIGSTOP)
    stopped = cluster.logs("w1")
    if stopped.returncode:
        assert "node w1 did not answer: " in stopped.stderr
        assert "does not answer: its lines are those that it wrote to the" in stopped.stderr
    else:
        # On a busy machine the command may come after the end of the lease.
        assert ": its lines are those that it wrote to the store" in stopped.stderr
    assert "failing ended: raised: SystemExit: it fails" in stopped.stdout
    cluster.worker.kill()
    cluster.worker.wait()
    killed = cluster.logs("w1")
    if killed.returncode:
        # Not yet known to have ended: its lease lasts five seconds.
        assert "w1 did not answer" in killed.stderr
    assert "says hello [talker.say]" in killed.stdout
    assert "says hello [alone.say]" in killed.stdout
    assert "whispers psst" in killed.stdout
    assert "failing ended: raised: SystemExit: it fails" in killed.stdout
    assert "its lines are those that it wrote to the store until 20" in killed.stderr
    assert "says hello [talker.say]" in cluster.logs("talker").stdout
    # The deaths of its actors have outlived it, too.
    deaths = cluster.shell.run("list", "deaths", "--address", cluster.address)
    assert "failing" in deaths.stdout
    assert "SystemExit: it fails" in deaths.stdout

    check_other_commands(cluster)

    cluster.reader.join()
    written = [json.loads(line) for line in cluster.written]
    assert {line["actor"] for line in written if line["message"] == "says hello"} == {
        "talker",
        "alone",
    }


@pytest.mark.cluster
def test_follow_goes_on_with_new_lines_until_the_node_has_ended(cluster: TalkingCluster) -> None:
    follower = cluster.shell.start(
        [*UNDERSTUDY, "logs", "talker", "-f", "--json", "--address", cluster.address]
    )
    assert follower.stdout is not None
    assert json.loads(follower.stdout.readline())["text"] == "says hello"
    for count in range(3):
        cluster.say(str(count))
    found: list[str] = []
    while "says 2" not in found:
        found.append(json.loads(follower.stdout.readline())["text"])
    assert [text for text in found if text.startswith("says")] == ["says 0", "says 1", "says 2"]
    follower.send_signal(signal.SIGINT)
    follower.communicate()
    assert follower.returncode == 130
