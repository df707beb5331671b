"""actors/errors.md explains each public error: `understudy explain` prints it, and the site has a
page for each of its sections.
"""

from __future__ import annotations

import ast
import functools
import re
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

from actors import ExitReason, errors
from actors.errors import RemoteError, explained
from runtime import open_node
from runtime.command_line.explain import BLOCK, ELSEWHERE, class_of, groups, page_of
from runtime.command_line.main import main
from runtime.environment import SystemEnvironment
from runtime.gateway.problems import OF_SERVERS
from runtime.pools import journal
from runtime.references.memory import spill
from runtime.rendezvous import parameters
from runtime.testing import Platform, VirtualCluster, VirtualFaults
from runtime.timings import Timings
from tests.documentation.test_made_files import command
from tests.failures.error_examples import EXAMPLES, SECRET, SECTIONS, check_shown, run, said, shown
from tests.house import ROOT

RAISED_BY = {
    name: found.groups()
    for name, text in SECTIONS.items()
    if (found := re.search(r"<!-- raised by (\S+)::(\w+) -->", text)) is not None
}
IN_PROCESS = [name for name in EXAMPLES if name not in RAISED_BY]
SIMULATED = [
    name
    for name in IN_PROCESS
    if re.search(r"worker-\d|faults\.|sleep|Fragile|crash|spawn\(Supervisor", EXAMPLES[name])
]
"""These need the simulated cluster, or its time."""


def test_each_error_class_has_its_section_and_each_section_its_class() -> None:
    classes = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert sorted(SECTIONS) == sorted(classes | OF_SERVERS | ELSEWHERE.keys())
    assert [name for names in groups().values() for name in names] == list(SECTIONS)


@pytest.mark.parametrize("name", [name for name in SECTIONS if name not in OF_SERVERS])
def test_an_error_with_a_section_names_the_command_that_shows_it(name: str) -> None:
    cls = class_of(name)
    assert cls is not None
    assert explained(cls) == f"More: understudy explain {name}"
    assert cls.__new__(cls).__notes__ == [explained(cls)]


def test_each_error_of_a_rendezvous_has_a_section() -> None:
    assert {
        name
        for name, value in vars(parameters).items()
        if isinstance(value, type) and issubclass(value, parameters.RendezvousError)
    } <= ELSEWHERE.keys()


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
    # What provokes it, and what is seen then.
    assert BLOCK.search(SECTIONS[name]) is not None
    assert shown(name)


def test_the_site_has_a_page_for_each_error_and_a_line_in_the_index(tmp_path: Path) -> None:
    pages = command("error_pages")
    pages.write(tmp_path)
    (tmp_path / "GoneError.md").touch()
    pages.write(tmp_path)
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted(SECTIONS)
    index = pages.expanded((ROOT / "docs" / pages.INDEX).with_suffix(".md").read_text())
    for name in SECTIONS:
        text = (tmp_path / f"{name}.md").read_text()
        assert text.startswith(f"# {name}\n")
        assert "- What to do: " in text
        for link in re.findall(r"\]\(([^)#]+)", text):
            place = ROOT / "docs" / "failures" / "errors" / link
            assert place.resolve().exists() or place.stem in SECTIONS
        assert f"| [{name}](errors/{name}.md) | " in index
        assert page_of(name) in CliRunner().invoke(main, ["explain", name]).output


def check(name: str, error: object) -> None:
    """Compare what an example has raised with what it is the example of, and with its page."""
    if name == "SupervisorGaveUpError":
        # It ends the supervisor, and is seen in the reason of that.
        assert isinstance(error, ExitReason)
        assert error.kind == "shutdown"
    elif isinstance(error, RemoteError) and not issubclass(RemoteError, class_of(name) or ()):
        # A method got it, in the call that it made itself.
        assert error.remote_type.rpartition(":")[2] in (name, *_subclasses(name))
    else:
        assert isinstance(error, class_of(name) or ()), repr(error)
    check_shown(name, said(error))


@pytest.mark.parametrize("name", [name for name in IN_PROCESS if name not in SIMULATED])
async def test_an_example_raises_its_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {}
    if name == "JournalError":
        monkeypatch.setattr(journal, "MOST_BYTES", 100)
    elif name == "ReferenceMemoryError":
        monkeypatch.setattr(spill, "_nameless", full)
    elif name == "HandshakeTimeoutError":
        soon = Platform(environment=SystemEnvironment(Timings(handshake=0.05)))
        more["open_node"] = functools.partial(open_node, secret=SECRET, platform=soon)
    elif name == "DecodeError":
        module = import_module("examples.errors")
        # It takes a class away.
        monkeypatch.setattr(module, "Order", module.Order)
    async with open_node("here", secret=SECRET) as node:
        check(name, await run(name, node, tmp_path, more))


def full(*_: object) -> int:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("name", sorted(SIMULATED))
async def test_an_example_on_several_nodes_raises_its_error(
    name: str, cluster: VirtualCluster, faults: VirtualFaults, tmp_path: Path
) -> None:
    more = {"cluster": cluster, "faults": faults}
    check(name, await run(name, cluster.node, tmp_path, more))


def _subclasses(name: str) -> list[str]:
    cls = class_of(name)
    return [] if cls is None else [one.__name__ for one in cls.__subclasses__()]


@functools.cache
def functions_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@pytest.mark.parametrize("name", RAISED_BY)
def test_what_is_no_example_of_this_file_is_compared_by_the_test_that_it_names(name: str) -> None:
    path, test = RAISED_BY[name]
    assert test in functions_in(path)
    assert re.search(r"\bcheck_(shown|answer)\(", (ROOT / path).read_text())
