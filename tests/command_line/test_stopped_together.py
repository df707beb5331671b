"""Nodes that are stopped at the same moment, as a service manager does."""

from __future__ import annotations

import signal

import pytest

from tests.command_line.shell import Shell

pytestmark = pytest.mark.cluster

FILL = """
import sys
from actors import ChildSpec, DynamicSupervisor, Supervisor
from app import Counter
from runtime.blocking import connect

if __name__ == "__main__":
    with connect(sys.argv[1]) as cluster:
        for number, on in enumerate(("first", "second", "third", "second", "third", "first")):
            children = [ChildSpec(id=f"child-{other}", actor=Counter) for other in range(3)]
            cluster.options(name=f"top-{number}", on=on).spawn(Supervisor, children)
        dynamic = cluster.options(name="dynamic", on="second").spawn(DynamicSupervisor)
        for number in range(6):
            dynamic.start_child(ChildSpec(id=f"added-{number}", actor=Counter))
        cluster.pool("counters", Counter, per_node=1)
"""


def test_nodes_that_are_stopped_together_end_in_order_and_say_no_more(shell: Shell) -> None:
    """The one that keeps the store may be gone first: that is nothing to look into."""
    first, facts = shell.start_node("--name", "first", "--listen", "127.0.0.1:0")
    address: str = facts["address"]
    others = [
        shell.start_node("--name", name, "--join", address)[0] for name in ("second", "third")
    ]
    shell.run_program(FILL, address)
    nodes = [first, *others]
    for node in nodes:
        node.send_signal(signal.SIGTERM)
    for node in nodes:
        _, stderr = node.communicate(timeout=60)
        assert node.returncode == 0, stderr
        assert "WARNING" not in stderr, stderr
        assert "ERROR" not in stderr, stderr
