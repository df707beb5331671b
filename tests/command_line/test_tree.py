"""`understudy tree` as a user meets it: live trees of real processes, whole, in part, wrong,
silent, and drawn again and again.
"""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.command_line.shell import LONG_LEASES, UNDERSTUDY, Cluster, Shell, check_mistake

pytestmark = pytest.mark.cluster

CREW = """
import trio
from actors import Actor, Supervisor, method

class Liar(Supervisor):
    @method
    async def status(self) -> str:
        return "fine"

class Worker(Actor):
    @method
    async def crash(self) -> None:
        self.nursery.start_soon(self.fail)
        await trio.sleep_forever()

    async def fail(self) -> None:
        raise RuntimeError("first line\\nsecond line")
"""

SCRIPT = """
import sys, trio
from actors import ChildSpec, DynamicSupervisor, Supervisor
from crew import Worker
from runtime import open_node

async def main() -> None:
    inner = ChildSpec.of("inner", Supervisor, [ChildSpec.of("x", Worker).changed(on="script")], strategy="rest-for-one").changed(on="w1")
    pool = ChildSpec.of("pool", DynamicSupervisor, ChildSpec.of("task", Worker)).changed(on="script")
    specs = [ChildSpec.of("single", Worker).changed(on="script"), inner, pool]
    async with open_node("script", join=sys.argv[1]) as node:
        await node.options(name="top").singleton(Supervisor, specs, intensity=5)
        await node.options(name="loner").spawn(Worker)
        await (await node.lookup("top/pool", DynamicSupervisor)).spawn()
        print("ready", flush=True)
        await node.asked_to_leave.wait()

trio.run(main)
"""

LIAR = """
import sys, trio
from crew import Liar
from runtime import open_node

async def main() -> None:
    async with open_node("liar", join=sys.argv[1]) as node:
        await node.options(name="liar", on="w1").spawn(Liar)

trio.run(main)
"""


class CrewCluster(Cluster):
    """A script that is a node too and the root of a tree."""

    def __init__(self, shell: Shell) -> None:
        super().__init__(shell, command=LONG_LEASES)
        (shell.place / "crew.py").write_text(CREW)
        self.script, _ = shell.start_script(SCRIPT, self.address)

    def tree(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run("tree", *words, **environment)

    def facts(self, *words: str) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(self.tree(*words, "--json").stdout)
        return facts

    def watch(self, *words: str, output: int = subprocess.PIPE) -> subprocess.Popen[str]:
        command = [*UNDERSTUDY, "tree", "--watch", "--interval", "0.1", *words]
        return self.shell.start(
            [*command, "--address", self.address], {"TERM": "xterm"}, stdout=output
        )


@pytest.fixture
def cluster(shell: Shell) -> CrewCluster:
    return CrewCluster(shell)


def walk(branches: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for branch in branches:
        yield branch
        yield from walk(branch["children"])


def test_the_tree_shows_who_supervises_whom_and_how_they_fare(cluster: CrewCluster) -> None:
    done = cluster.tree(PYTHONIOENCODING="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    heading = "name state strategy restarts recent age node waiting"
    assert " ".join(lines[0].split()) == heading
    assert [line[:12].rstrip() for line in lines[1:6]] == [
        "top",
        "├─ single",
        "├─ inner",
        "│  └─ x",
        "└─ pool",
    ]
    assert lines[3].split()[2:5] == ["running", "rest-for-one", "0"]
    assert "w1" in lines[3].split()
    assert lines[6].startswith("   └─ task-")
    assert "\x1b" not in done.stdout
    assert "├" not in cluster.tree(PYTHONIOENCODING="ascii").stdout
    assert "|- single" in cluster.tree(PYTHONIOENCODING="ascii").stdout

    facts = cluster.facts()
    (top,) = facts["roots"]
    assert (top["name"], top["singleton"], top["strategy"], top["intensity"], top["node"]) == (
        "top",
        True,
        "one-for-one",
        5,
        "script",
    )
    assert top["age"] > 0
    assert [child["id"] for child in top["children"]] == ["single", "inner", "pool"]
    assert [child["strategy"] for child in top["children"]] == [None, "rest-for-one", "dynamic"]


def test_a_crash_is_counted_and_reported_with_its_traceback_when_asked_for(
    cluster: CrewCluster,
) -> None:
    assert cluster.tree("--deaths").stdout.endswith("\n\nno deaths are kept\n")
    assert (
        cluster.shell.run("call", "top/single", "crash", "--address", cluster.address).returncode
        == 1
    )
    while (single := cluster.facts()["roots"][0]["children"][0])["restarts"] != 1:
        pass
    assert (single["last_exit"]["kind"], single["last_exit"]["text"]) == (
        "raised",
        "RuntimeError: first line\nsecond line",
    )
    assert "Traceback" in single["last_exit"]["traceback"]
    text = cluster.tree("--deaths").stdout
    assert "top/single on script (epoch " in text
    assert 'raise RuntimeError("first line' in text
    assert "Traceback" not in cluster.tree().stdout


def test_one_supervisor_is_shown_alone_and_wrong_words_are_answered_in_one_line(
    cluster: CrewCluster,
) -> None:
    (pool,) = cluster.facts("top/pool")["roots"]
    assert (pool["name"], len(pool["children"])) == ("top/pool", 1)
    check_mistake(cluster.tree("top/pol"), "'top/pol'", "did you mean 'top/pool'")
    check_mistake(cluster.tree("loner"), "'loner'", "neither a supervisor")
    check_mistake(cluster.tree("zzzzzz", "--watch"), "'zzzzzz'", "its trees are: top")
    assert cluster.tree("--interval", "0").returncode == 2
    assert cluster.tree("--watch", "--interval", "nonsense").returncode == 2


def test_a_supervisor_on_a_node_that_is_stopped_is_said_not_to_answer_and_holds_nobody_up(
    cluster: CrewCluster,
) -> None:
    # Watched, for the command may take as long to start on a busy machine as the lease of the node
    # lasts.
    watching = cluster.watch("--json")
    assert watching.stdout is not None
    watching.stdout.readline()
    cluster.worker.send_signal(signal.SIGSTOP)
    while not (facts := json.loads(watching.stdout.readline()))["problems"]:
        pass
    states = {branch["name"]: branch["state"] for branch in walk(facts["roots"])}
    (problem,) = facts["problems"]
    # Why depends on whether the connection was given up before the time was over.
    assert problem.startswith("node w1 does not answer: ")
    assert (states["top"], states["top/single"], states["top/inner"]) == (
        "running",
        "running",
        "does not answer",
    )
    assert states["top/inner/x"] == "running"
    cluster.worker.send_signal(signal.SIGCONT)
    while (facts := json.loads(watching.stdout.readline()))["problems"]:
        pass
    assert "does not answer" not in [branch["state"] for branch in walk(facts["roots"])]


def test_a_supervisor_that_hides_its_own_status_is_shown_by_its_node(cluster: CrewCluster) -> None:
    cluster.shell.run_program(LIAR, cluster.address)
    done = cluster.tree()
    assert (done.returncode, done.stderr) == (0, "")
    assert "liar" in done.stdout
    assert "fine" not in done.stdout


def test_the_exit_status_says_that_a_node_has_not_answered(cluster: CrewCluster) -> None:
    cluster.worker.send_signal(signal.SIGSTOP)
    try:
        done = cluster.tree()
    finally:
        cluster.worker.send_signal(signal.SIGCONT)
    assert done.returncode == 1
    assert "does not answer" in done.stdout


def test_watching_prints_one_tree_after_another_and_ends_by_ctrl_c_without_a_traceback(
    cluster: CrewCluster,
) -> None:
    watching = cluster.watch("--json")
    assert watching.stdout is not None
    first, second = (json.loads(watching.stdout.readline()) for _ in range(2))
    assert second["time"] > first["time"]
    assert [root["name"] for root in second["roots"]] == ["top"]
    # A node that joins, and what it runs, is seen without starting anew; one that dies too.
    cluster.script.kill()
    while json.loads(watching.stdout.readline()).get("roots") != []:
        pass
    watching.send_signal(signal.SIGINT)
    _, errors = watching.communicate(timeout=60)
    # On a busy machine the death may be seen so late that the log says what is not reached.
    others = [line for line in errors.splitlines() if " WARNING understudy.links: " not in line]
    assert (watching.returncode, others) == (130, [])


def test_watching_goes_on_when_the_cluster_cannot_be_asked_for_a_while(
    cluster: CrewCluster,
) -> None:
    watching = cluster.watch()
    assert watching.stdout is not None
    assert watching.stdout.readline().startswith("cluster understudy at ")
    for process in (cluster.shell.running[0], cluster.worker, cluster.script):
        process.kill()
    while "trying again" not in (line := watching.stdout.readline()):
        assert line
    watching.send_signal(signal.SIGINT)
    _, errors = watching.communicate(timeout=60)
    assert watching.returncode == 130
    assert "Traceback" not in errors


def test_watching_ends_quietly_when_nobody_reads_any_more(cluster: CrewCluster) -> None:
    watching = cluster.watch()
    assert watching.stdout is not None
    watching.stdout.readline()
    watching.stdout.close()
    assert watching.stderr is not None
    assert watching.stderr.read() == ""
    assert watching.wait(timeout=60) == 0


@pytest.mark.parametrize("no_colour", [False, True])
def test_on_a_terminal_the_tree_is_drawn_in_place_and_in_colour_unless_these_are_not_wanted(
    cluster: CrewCluster, no_colour: bool
) -> None:
    if no_colour:
        cluster.shell.environment["NO_COLOR"] = "1"
    outer, inner = pty.openpty()
    try:
        watching = cluster.watch(output=inner)
        seen = b""
        while seen.count(b"\x1b[H\x1b[J") < 2 or not seen.endswith(b"\n"):
            seen += os.read(outer, 4096)
        watching.send_signal(signal.SIGINT)
        while watching.poll() is None:
            # A terminal that nobody reads takes some kilobytes, and then holds up who writes.
            if select.select([outer], [], [], 0.05)[0]:
                os.read(outer, 4096)
        assert watching.returncode == 130
    finally:
        os.close(outer)
        os.close(inner)
    assert (b"\x1b[32m" in seen) is not no_colour
    assert b"single" in seen
