"""A real cluster of three nodes with 100,000 actors, as an operator meets it: each command and each
page answers, says how many actors it leaves out, and what it says does not grow with them.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.command_line.shell import LONG_LEASES, UNDERSTUDY, Shell
from tests.growth.resident import resident

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

CROWD = """
import trio
from actors import Actor, method

class Idle(Actor):
    @method
    async def touch(self) -> int:
        return 1

    @method
    async def stay(self) -> None:
        await trio.sleep_forever()
"""

PLACES = {"w1": 60_000, "w2": 25_000, "first": 15_000}
NAMED = 500
"""Of those of each node. The others have names that were made up for them."""

SCRIPT = f"""
import sys, trio
from crowd import Idle
from runtime import open_node

async def main(address: str) -> None:
    async with open_node("script", join=address) as node, trio.open_nursery() as nursery:
        for place, count in {PLACES}.items():
            at = node.options(on=place)
            names = [f"{{place}}-{{number}}" for number in range({NAMED})]
            named = await at.spawn_many(Idle, [()] * {NAMED}, names=names)
            for start in range({NAMED}, count, 5000):
                await at.spawn_many(Idle, [()] * min(5000, count - start))
            for _ in range(3):
                nursery.start_soon(named[-1].stay)
        print("ready", flush=True)
        # Calls go on while the commands ask: one that is not answered within a minute ends this.
        while True:
            with trio.fail_after(60):
                await named[0].touch()

if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
"""

MOST_OUTPUT = 1_000_000
"""Characters that a command prints. All actors would be 28 million with --json."""

MOST_GROWTH = 64 * 1024 * 1024
"""By which a node may grow while it is asked: its 60,000 actors take more than that."""


class Crowd:
    """Three nodes with 100,000 actors, and the program that has started them."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        (shell.place / "crowd.py").write_text(CROWD)
        # On a busy machine a start may take longer than a usual lease.
        first, founder = shell.start_node(
            "--name", "first", "--listen", "127.0.0.1:0", command=LONG_LEASES
        )
        self.address: str = founder["address"]
        self.nodes = {"first": first}
        for name in ("w1", "w2"):
            self.nodes[name], _ = shell.start_node(
                "--name", name, "--join", self.address, command=LONG_LEASES
            )
        self.script, _ = shell.start_script(SCRIPT, self.address)

    def ask(self, *words: str) -> str:
        done = self.shell.run(*words, "--address", self.address)
        assert done.returncode == 0, done
        assert len(done.stdout) < MOST_OUTPUT, words
        return done.stdout

    def facts(self, *words: str) -> Any:
        return json.loads(self.ask(*words, "--json"))


@pytest.fixture
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    shell = Shell(tmp_path_factory.mktemp("crowd"))
    try:
        yield Crowd(shell)
    finally:
        shell.close()


def check_commands(crowd: Crowd) -> None:
    total = sum(PLACES.values())
    listed = crowd.facts("list", "actors", "--sort", "-waiting")
    first = {row["name"] for row in listed["actors"][:3]}
    assert first == {f"{place}-{NAMED - 1}" for place in PLACES}
    assert listed["left_out"] == total - 50
    assert f"{total - 50} more are left out" in crowd.ask("list", "actors")
    named = crowd.facts("list", "actors", "--filter", f"name=w1-{NAMED - 1}*", "--limit", "1000")
    assert [row["name"] for row in named["actors"]] == [f"w1-{NAMED - 1}"]
    of_one = crowd.facts("list", "actors", "--filter", "node=w1", "--limit", "100000")
    # A node tells no more of them than this.
    assert (len(of_one["actors"]), of_one["left_out"]) == (2000, PLACES["w1"] - 2000)
    busy = crowd.facts("top", "--seconds", "0.2", "--limit", "3")
    assert {row["name"] for row in busy["actors"]} == {f"{one}-{NAMED - 1}" for one in PLACES}
    assert busy["left_out"] == total - 3
    one = crowd.facts("inspect", f"w1-{NAMED - 1}")
    assert (one["node"], one["waiting"]) == ("w1", 2)
    assert len(crowd.facts("list", "calls")["calls"]) <= 50
    nodes = {row["name"]: row["actors"] for row in crowd.facts("list", "nodes")["nodes"]}
    assert {place: nodes[place] for place in PLACES} == PLACES
    assert f"and {PLACES['w1'] - 200:,} more actors" in crowd.ask("status")
    for words in (("tree",), ("list", "methods", "--seconds", "0.2"), ("refs",), ("why",)):
        crowd.ask(*words)
    misspelt = crowd.shell.run("inspect", f"w1x{NAMED - 1}", "--address", crowd.address)
    assert f"did you mean 'w1-{NAMED - 1}'?" in misspelt.stderr


def check_dashboard(crowd: Crowd) -> None:
    process = crowd.shell.start([*UNDERSTUDY, "dashboard", "--json", "--address", crowd.address])
    assert process.stdout is not None
    url = urlsplit(json.loads(process.stdout.readline())["url"])
    token = url.fragment.removeprefix("token=")
    before = resident(process.pid)
    for topic in ("cluster", "tree", "calls", "actor/w1-0", "references", "pools", "logs"):
        request = urllib.request.Request(
            f"http://{url.netloc}/api/snapshot?topic={topic}",
            headers={"Authorization": f"Bearer {token}"},
        )
        with urllib.request.urlopen(request, timeout=50) as answer:
            body = answer.read()
        assert len(body) < MOST_OUTPUT, topic
        sections = json.loads(body)[topic]["sections"]
        if topic == "cluster":
            counts = {name: one["actors"] for name, one in sections["nodes"].items()}
            assert {place: counts[place] for place in PLACES} == PLACES
            assert len(sections["actors"]) <= 4 * 200
    assert resident(process.pid) - before < MOST_GROWTH


def test_commands_and_pages_answer_on_a_cluster_with_100_000_actors(crowd: Crowd) -> None:
    before = {name: resident(node.pid) for name, node in crowd.nodes.items()}
    check_commands(crowd)
    check_dashboard(crowd)
    for name, node in crowd.nodes.items():
        assert resident(node.pid) - before[name] < MOST_GROWTH, name
    assert crowd.script.poll() is None, "its calls went on"
