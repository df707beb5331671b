"""actors/errors.md explains each public error: `understudy explain` prints it, and the page
docs/failures/errors.md includes it.
"""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from typing import Any

import pytest
import trio
from click.testing import CliRunner

import actors
from actors import Actor, ExitReason, errors
from actors.errors import NodeDrainingError, RemoteError, UnderstudyError
from examples import errors as prelude
from runtime import open_node
from runtime.command_line.explain import EXAMPLE, sections
from runtime.command_line.main import main
from runtime.environment import first
from runtime.gateway.problems import OF_SERVERS
from runtime.node import Node
from runtime.testing import VirtualCluster, VirtualFaults
from tests.house import ROOT

SECRET = b"a secret of at least 16 bytes"
SECTIONS = sections()
EXAMPLES = {
    name: found[1] for name, text in SECTIONS.items() if (found := EXAMPLE.search(text)) is not None
}
RAISED_BY = {
    name: found.groups()
    for name, text in SECTIONS.items()
    if (found := re.search(r"<!-- raised by (\S+)::(\w+) -->", text)) is not None
}
ON_ONE_NODE = [
    name for name, text in EXAMPLES.items() if not re.search(r"worker-\d|faults|sleep", text)
]
"""The others need the simulated cluster, or its time."""


def test_each_error_class_has_its_section_and_each_section_its_class() -> None:
    classes = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert sorted(SECTIONS) == sorted(classes | OF_SERVERS)


def test_the_page_shows_what_the_command_prints() -> None:
    page = (ROOT / "docs" / "failures" / "errors.md").read_text()
    shown = re.findall(r"^\$ understudy (explain \w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert shown
    for words, printed in shown:
        assert CliRunner().invoke(main, words.split()).output == printed


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_says_the_cause_what_is_certain_and_what_to_do(name: str) -> None:
    cause, certain, advice = (
        SECTIONS[name].partition("\n\n- Certain: ")[0],
        *re.findall(r"^- (?:Certain|What to do): (\S.+)", SECTIONS[name], re.MULTILINE),
    )
    assert cause
    assert certain
    assert advice
    assert (name in EXAMPLES) != (name in RAISED_BY)


async def check(name: str, node: Node, faults: VirtualFaults | None = None) -> None:
    """Run the example of an error, which raises it at its end."""
    names: dict[str, Any] = {**vars(actors), **vars(prelude)}
    names |= {"trio": trio, "node": node, "faults": faults}
    names["open_node"] = functools.partial(open_node, secret=SECRET)
    exec(f"async def example():\n{textwrap.indent(EXAMPLES[name], '    ')}", names)
    error: BaseException | None = None
    try:
        await names["example"]()
    except (UnderstudyError, ExceptionGroup) as caught:
        error = first(caught)
    if isinstance(error, RemoteError) and not issubclass(RemoteError, getattr(errors, name)):
        # A method got it, in the call that it made itself.
        assert error.remote_type.rpartition(":")[2] in (name, *_subclasses(name))
    else:
        assert isinstance(error, getattr(errors, name)), repr(error)


@pytest.mark.parametrize("name", ON_ONE_NODE)
async def test_an_example_raises_its_error(name: str) -> None:
    async with open_node("here", secret=SECRET) as node:
        await check(name, node)


@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - set(ON_ONE_NODE)))
async def test_an_example_on_several_nodes_raises_its_error(
    name: str, cluster: VirtualCluster, faults: VirtualFaults
) -> None:
    await check(name, cluster.node, faults)


def _subclasses(name: str) -> list[str]:
    return [cls.__name__ for cls in getattr(errors, name).__subclasses__()]


class LastWish(Actor):
    async def on_stop(self, reason: ExitReason) -> None:
        with pytest.raises(NodeDrainingError, match="is leaving the cluster"):
            await self.node.options(on=self.node.name).spawn(prelude.Counter)
        LEFT.append(reason.kind)


LEFT: list[str] = []


async def test_a_node_that_leaves_starts_no_actors() -> None:
    LEFT.clear()
    async with open_node("leaving") as node:
        await node.spawn(LastWish)
    assert LEFT


IN_SCENARIOS = {
    "AnswersUnreadError",
    "AnswerDroppedError",
    "SupervisorGaveUpError",
    "WrongStoreError",
}
"""Their tests know them by their texts, or run a scenario of `runtime.simulation`, which names
them.
"""


@functools.cache
def functions_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@pytest.mark.parametrize("name", RAISED_BY)
def test_an_error_without_an_example_is_raised_by_a_test(name: str) -> None:
    path, test = RAISED_BY[name]
    assert test in functions_in(path)
    assert name in IN_SCENARIOS or re.search(rf"\b{name}\b", (ROOT / path).read_text())
