"""The short programs on the pages run: with `node`, with handles and with actors that they take for
granted.

Programs of files of their own are run by other tests, and so are those of the tutorial.
"""

from __future__ import annotations
import __future__

import ast
import asyncio
import functools
import inspect
import logging
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import attrs
import pytest
import trio

import actors
import runtime
import runtime.aio
import runtime.blocking
from actors import errors
from examples.recovery import Ledger
from runtime import open_local_cluster as open_trio_cluster
from runtime import open_node
from runtime.blocking import BlockingLocalCluster, open_local_cluster
from runtime.node import Node
from tests.documentation import snippet_actors
from tests.house import ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*/*.md"))]
SNIPPETS = {
    f"{page.relative_to(ROOT)} {number}": found[1]
    for page in PAGES
    for number, found in enumerate(BLOCK.finditer(page.read_text()), 1)
}
ELSEWHERE = {
    "README.md 1": "examples/first.py, compared below",
    "README.md 4": "run below, on a cluster of its own",
    "docs/how-to/http.md 2": "tests/gateway: an application wants a server",
    "docs/how-to/elastic.md 1": "tests/elastic: only a worker of an agent may expire",
    "docs/how-to/rendezvous.md 1": "tests/rendezvous: a round needs two agents",
    "docs/how-to/simulation.md 1": "tests/testing: the fixture `simulated`",
    "docs/how-to/testing.md 1": "tests/testing: faults of the simulated cluster",
    "docs/start/programs.md 5": "tests/doors: actors on asyncio; aiohttp is not installed",
}
"""Not run here, and where what they show is tested."""

RUN = [name for name in SNIPPETS if name not in ELSEWHERE]
DOOR = re.compile(r"\bconnect\(|\bcluster\.handle\(")
BLOCKING = [name for name in RUN if DOOR.search(SNIPPETS[name]) and "await" not in SNIPPETS[name]]
ASYNCIO = [
    name
    for name in RUN
    if "runtime.aio" in SNIPPETS[name] or "await cluster.pool" in SNIPPETS[name]
]
ON_TRIO = [name for name in RUN if name not in {*BLOCKING, *ASYNCIO}]
SECONDS = 60.0
SECRET = b"a secret of at least 16 bytes"
ENDLESS = ".watch()"
"""What goes on until the program ends."""


def names() -> dict[str, Any]:
    """What a program finds without importing it."""
    found = {**vars(actors), **vars(errors), **vars(snippet_actors), **vars(runtime)}
    found |= {"trio": trio, "attrs": attrs, "asyncio": asyncio, "logging": logging}
    found |= {"runtime": runtime, "open_node": open_node, "Record": int}
    found["specs"] = [actors.ChildSpec.of("index", snippet_actors.Index)]
    found["open_node"] = functools.partial(open_node, secret=SECRET)
    return {**found, "images": [1, 200], "image": 200, "paths": [1, 200], "rows": [(3, "alan")]}


def compiled(name: str, given: dict[str, Any]) -> Callable[[], Any]:
    """The program as a function. It is in a module's place, so that its classes can refer to each
    other.
    """
    flags = __future__.annotations.compiler_flag | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code = compile(SNIPPETS[name], name, "exec", flags=flags)

    def run() -> Any:
        found = eval(code, given)
        assert inspect.iscoroutine(found) or found is None
        return found

    return run


def test_what_is_not_run_is_on_a_page() -> None:
    assert set(ELSEWHERE) <= set(SNIPPETS)
    assert len(RUN) > 25


@pytest.mark.parametrize("name", SNIPPETS)
def test_a_program_compiles_and_imports_what_there_is(name: str) -> None:
    tree = ast.parse(SNIPPETS[name])
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in (
            "actors",
            "runtime",
        ):
            exec(ast.unparse(node), {})
    compile(SNIPPETS[name], name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_the_readme_begins_with_an_example_that_is_run() -> None:
    text = (ROOT / "examples" / "first.py").read_text()
    assert text.endswith(SNIPPETS["README.md 1"])


@pytest.mark.cluster
async def test_the_recovery_in_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    async with open_trio_cluster(nodes=0) as cluster:
        for name in ("left", "right"):
            await cluster.start_node(name, labels={"keeps": "ledgers"})
        await compiled("README.md 4", {**names(), "Ledger": Ledger, "cluster": cluster})()
    assert capsys.readouterr().out == "added: 100\nkilled its process; added: 101\n"


@pytest.mark.parametrize("name", ON_TRIO)
async def test_a_program_runs(name: str) -> None:
    async with open_node("here", secret=SECRET) as node:
        given = {**names(), "node": node, "address": node.address, **await handles(node)}
        with trio.move_on_after(SECONDS if ENDLESS not in SNIPPETS[name] else 0.5) as scope:
            program = compiled(name, given)()
            if program is not None:
                await program
        assert scope.cancelled_caught == (ENDLESS in SNIPPETS[name])


async def handles(node: Node) -> dict[str, Any]:
    """The actors that the programs call."""
    spawned = {
        "counter": snippet_actors.Counter,
        "cart": snippet_actors.Cart,
        "account": snippet_actors.Account,
        "library": snippet_actors.Library,
        "adder": snippet_actors.Adder,
        "reader": snippet_actors.TextReader,
        "stage": snippet_actors.Stage,
    }
    found: dict[str, Any] = {}
    for name, cls in spawned.items():
        found[name] = await node.options(name=name).spawn(cls)
    await node.spawn(snippet_actors.Reader)
    found["pool"] = await node.pool("thumbnails", snippet_actors.Resizer, size=1)
    return {**found, "reference": await node.put(1)}


@pytest.fixture(scope="module")
def local() -> Iterator[BlockingLocalCluster]:
    with open_local_cluster(nodes=1) as cluster:
        cluster.options(name="counter").spawn(snippet_actors.Counter)
        yield cluster


@pytest.mark.cluster
@pytest.mark.parametrize("name", BLOCKING)
def test_a_blocking_program_runs(
    name: str, local: BlockingLocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "counter", snippet_actors)
    real = runtime.blocking.connect
    monkeypatch.setattr(runtime.blocking, "connect", lambda address: real(local.address))
    given = {**names(), "connect": runtime.blocking.connect, "cluster": local}
    given["directory"] = local.spawn(snippet_actors.Directory)
    compiled(name, given)()
    if (opened := given["cluster"]) is not local:
        opened.close()


@pytest.mark.cluster
@pytest.mark.parametrize("name", ASYNCIO)
def test_a_program_on_asyncio_runs(
    name: str, local: BlockingLocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = runtime.aio.connect
    monkeypatch.setattr(runtime.aio, "connect", lambda address: real(local.address))

    async def main() -> None:
        async with real(local.address) as cluster:
            given = {**names(), "cluster": cluster, "paths": lambda: [1, 200]}
            program: Awaitable[None] = compiled(name, given)()
            async with asyncio.timeout(SECONDS):
                await program

    asyncio.run(main())
