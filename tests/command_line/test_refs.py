"""`understudy refs` as a user meets it: values of real processes, whole, of one node, from silent
nodes, and traced to their lines.
"""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

import pytest

from runtime.command_line.units import age, size
from runtime.printable import many
from tests.command_line.shell import LONG_LEASES, Cluster, Shell, check_mistake


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1024 * 1024 - 1, "1.0 MiB"),
        (1536 * 1024, "1.5 MiB"),
        (2**60, "1048576.0 TiB"),
    ],
)
def test_sizes_are_in_the_unit_that_fits(count: int, text: str) -> None:
    assert size(count) == text


def test_ages_and_counts_are_said_as_people_say_them() -> None:
    assert [age(seconds) for seconds in (-3.0, 59.4, 90.0, 7200.0, 200_000.0)] == [
        "0 s",
        "59 s",
        "2 min",
        "2 h",
        "2 d",
    ]
    assert [many(count, "value") for count in (0, 1, 1200)] == [
        "0 values",
        "1 value",
        "1,200 values",
    ]


CREW = """
from actors import Actor, Reference, method

class Worker(Actor):
    def __init__(self) -> None:
        self.kept = []

    @method
    async def scan(self, count: int) -> bytes:
        return bytes(count)

    @method
    async def put(self, text: str) -> Reference[str]:
        return await self.node.put(text)

    @method
    async def keep(self, reference: Reference[bytes]) -> None:
        self.kept.append(reference)
"""

SCRIPT = """
import sys, trio
from crew import Worker
from runtime import open_node

async def main() -> None:
    async with open_node("script", join=sys.argv[1], trace_references="trace" in sys.argv) as node:
        worker = await node.options(name="worker", on="w1").spawn(Worker)
        big = await worker.scan.remote(3 * 1024 * 1024)  # the large one
        await big.ready()
        text = await worker.put("x" * 2000)
        own = await node.put("y")  # the small one
        await (await node.options(on="first").spawn(Worker)).keep(big)
        print("ready", flush=True)
        await node.asked_to_leave.wait()

trio.run(main)
"""


class HoldingCluster(Cluster):
    """A script that is a node too and holds values of w1's."""

    def __init__(self, shell: Shell, *, traces: bool) -> None:
        (shell.place / "crew.py").write_text(CREW)
        super().__init__(
            shell, worker=["--trace-references"] if traces else [], command=LONG_LEASES
        )
        self.script, _ = shell.start_script(SCRIPT, self.address, "trace" if traces else "not")

    def refs(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run("refs", *words)

    def facts(self, *words: str) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(self.refs(*words, "--json").stdout)
        return facts


def check_table(cluster: HoldingCluster) -> None:
    done = cluster.refs("--where")
    assert done.returncode == 0, done
    head, columns, *rows = done.stdout.splitlines()
    assert head.startswith("cluster understudy: 3 values, 3.0 MiB")
    assert " ".join(columns.split()) == "owner reference size age held by made by where"
    first = rows[0].split()
    assert " ".join([first[0], *first[2:4], *first[-3:]]) == "w1 3.0 MiB first,script worker.scan -"
    second = rows[1].split()
    assert [second[0], *second[2:4], *second[-3:-1]] == ["w1", "2.0", "KiB", "script", "put"]
    assert rows[2].split()[0] == "script"
    assert "its owner" in rows[2]
    assert rows[3:6] == [
        "first: 0 values, 0 B",
        f"script: 1 value, {rows[2].split()[2]} B",
        "w1: 2 values, 3.0 MiB",
    ]
    assert "--trace-references" in rows[6]


def check_status(cluster: HoldingCluster) -> None:
    status = cluster.shell.run("status", "--address", cluster.address).stdout
    assert (
        "references: owns 2 values of 3.0 MiB (3.0 MiB of 1.0 GiB in memory), holds 0 of other "
        "nodes, keeps 0 B of fetched values" in status
    )
    node = next(
        node
        for node in json.loads(
            cluster.shell.run("status", "--address", cluster.address, "--json").stdout
        )["nodes"]
        if node["name"] == "w1"
    )
    assert node["references"]["owned"] == 2


@pytest.mark.cluster
def test_values_are_listed_with_owner_holders_size_and_what_made_them(shell: Shell) -> None:
    cluster = HoldingCluster(shell, traces=False)
    while len(cluster.facts()["values"][0]["holders"]) < 2:
        pass  # the founder registers itself a moment later
    check_table(cluster)

    only = cluster.refs("--node", "script").stdout.splitlines()
    assert only[0].startswith("cluster understudy: 1 value,")
    assert len(only) == 4
    assert cluster.facts("--node", "w1")["total"]["values"] == 2
    check_mistake(cluster.refs("--node", "sript"), "sript", "did you mean 'script'?")
    check_mistake(cluster.refs("--node", "xyz"), "xyz", "first, script, w1")

    sums = cluster.refs("--sums").stdout.splitlines()
    assert sums[1].split() == ["owner", "values", "size", "oldest", "held", "by", "made", "by"]
    assert sums[2].split()[:4] == ["w1", "1", "3.0", "MiB"]
    assert len(sums) == 8
    assert [one["values"] for one in cluster.facts("--sums")["sums"]] == [1, 1, 1]

    check_status(cluster)
    cluster.script.send_signal(signal.SIGKILL)
    while (left := cluster.facts())["total"]["values"] > 1:
        pass  # until its death is known
    assert [value["holders"] for value in left["values"]] == [["first"]]


def line_of(source: str, text: str) -> int:
    """The number of the first line with that text in it."""
    return next(number for number, line in enumerate(source.splitlines(), 1) if text in line)


@pytest.mark.cluster
def test_values_are_traced_to_lines_and_a_silent_node_is_named_and_changes_the_exit_status(
    shell: Shell,
) -> None:
    cluster = HoldingCluster(shell, traces=True)
    large, small = (
        f"{shell.place / 'script.py'}:{line_of(SCRIPT, text)}"
        for text in ("# the large one", "# the small one")
    )
    put = f"{shell.place / 'crew.py'}:{line_of(CREW, 'self.node.put')}"
    assert [value["site"] for value in cluster.facts()["values"]] == [large, put, small]
    assert large in cluster.refs("--where").stdout
    assert large not in cluster.refs().stdout

    cluster.worker.send_signal(signal.SIGSTOP)
    try:
        done = cluster.refs("--node", "script")
    finally:
        cluster.worker.send_signal(signal.SIGCONT)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("w1: does not answer: ")
    assert "Traceback" not in done.stderr


@pytest.mark.cluster
def test_a_cluster_without_references_says_so(shell: Shell) -> None:
    address = shell.found()
    done = shell.run("refs", "--address", address)
    assert (done.returncode, done.stdout) == (
        0,
        "cluster understudy: 0 values, 0 B\nfirst: 0 values, 0 B\n",
    )
    check_mistake(shell.run("refs", "--address", "nonsense"), "nonsense", "HOST:PORT")
    check_mistake(shell.run("refs", "--were", "--address", address), "--were", "--where", status=2)
    assert "Example" in shell.run("refs", "--help").stdout
