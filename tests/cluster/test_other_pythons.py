"""Nodes that run different versions of Python are one cluster, whichever of them founds it.

`make versions` runs this with OTHER_PYTHON, the interpreter of the virtual environment that
`make test` uses.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runtime import open_node
from runtime.node import Node
from tests.cluster.polyglot_actors import VALUES, Speaker
from tests.started_programs import started

OTHER_PYTHON = os.environ.get("OTHER_PYTHON", "")
ROOT = Path(__file__).resolve().parents[2]
SECRET = "a secret of the tests with two versions of Python"

# Not marked as a test of the cluster, which `make versions` leaves out.
pytestmark = pytest.mark.skipif(
    not OTHER_PYTHON,
    reason="OTHER_PYTHON names no interpreter of another version: `make versions` does",
)


@asynccontextmanager
async def other_node(*words: str) -> AsyncIterator[str]:
    """A node of the other Python; gives its address, and kills it at the end."""
    words += ("--import", "tests.cluster.polyglot_actors")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "UNDERSTUDY_SECRET": SECRET}
    command = [OTHER_PYTHON, "-m", "runtime.command_line", "node", "--json", "--name", "other"]
    async with started([*command, *words], env=environment, cwd=ROOT) as (_, line):
        yield json.loads(line)["address"]


async def check(node: Node) -> None:
    """Both sides start actors on each other, and call them."""
    there = await node.options(on="other").spawn(Speaker)
    here = await node.options(on=node.name).spawn(Speaker)
    others = await there.version()
    assert others != sys.version_info[:2]
    assert await here.ask(there) == others
    assert await there.ask(here) == sys.version_info[:2]
    for value in VALUES:
        assert await there.echo(value) == value
    assert [number async for number in there.count(1000)] == list(range(1000))
    with pytest.RaisesGroup(ValueError, FileNotFoundError, match="two") as caught:
        await there.fail()
    assert "written where it was raised" in caught.value.exceptions[0].__notes__


async def test_a_node_of_this_python_joins_one_of_the_other() -> None:
    async with (
        other_node("--listen", "127.0.0.1:0") as address,
        open_node("this", join=address, secret=SECRET) as node,
    ):
        await check(node)


async def test_a_node_of_the_other_python_joins_one_of_this() -> None:
    async with (
        open_node("this", listen="127.0.0.1:0", secret=SECRET) as node,
        other_node("--join", node.address),
    ):
        await node.wait_for(2)
        await check(node)
