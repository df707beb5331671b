"""What pages show as printed is what is printed: each block of output is compared by a test, here
or elsewhere.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from runtime import open_node
from tests.gateway.conftest import gateway
from tests.house import ROOT

FENCE = re.compile(r"^```([^`\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OUTPUTS = ("", "text", "console", "json", "{code-block} console")
TYPED = re.compile(
    r"^(?:\$ |    |(?:understudy|torchrun|pip|python|make|export|docker|%\w+) ?|#|$)"
)
"""A line that the reader types, or the rest of one."""

HOW_TO = "tests/documentation/test_how_to.py"
HERE = "tests/documentation/test_outputs.py"
COMPARED = {
    "README.md": ["tests/examples/test_examples.py"],
    "docs/coming-from/index.md": ["tests/documentation/test_coming_from.py"],
    "docs/failures/errors.md": ["tests/failures/test_errors_page.py"],
    "docs/how-to/elastic.md": ["tests/elastic/test_agents.py"],
    "docs/how-to/fastapi.md": ["tests/examples/test_web_service.py"],
    "docs/how-to/http.md": [HERE],
    "docs/how-to/notebook.md": ["tests/doors/test_notebook.py"],
    "docs/how-to/references.md": ["tests/examples/test_examples.py", HERE],
    "docs/how-to/simulation.md": ["tests/examples/test_examples.py"],
    "docs/how-to/supervision.md": ["tests/examples/test_examples.py"],
    "docs/how-to/torch.md": ["tests/pytorch/test_example.py"],
    "docs/operate/command_line.md": [HERE, "tests/command_line/test_debug.py"],
    "docs/operate/dashboard.md": ["tests/dashboard/test_command.py"],
    "docs/start/index.md": ["tests/examples/test_examples.py"],
    "docs/start/programs.md": ["tests/command_line/test_shell.py"],
}
"""Pages with outputs, and the tests that compare them. Those of the tutorial and of how-to pages
with a program of their own are compared as a whole.
"""
DRAWN = {
    "docs/design/architecture.md",
    "docs/operate/security.md",
    "docs/reference/formats.md",
}
"""Drawings and a file, and no output of a command."""


def shown(page: str) -> list[str]:
    """The blocks that are no programs."""
    found = FENCE.findall((ROOT / page).read_text())
    return [block for kind, block in found if kind in OUTPUTS]


def has_output(block: str) -> bool:
    return not all(TYPED.match(line) for line in block.splitlines())


def test_each_page_with_outputs_has_a_test_that_compares_them() -> None:
    programs = (ROOT / HOW_TO).read_text()
    found = set()
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/*/*.md"))]:
        page = str(path.relative_to(ROOT))
        if page in DRAWN or page.startswith("docs/tutorial/"):
            continue
        if "{literalinclude} ../../examples/how_to/" in path.read_text():
            assert "def test_a_program_prints_what_its_page_says" in programs
        elif any(has_output(block) for block in shown(page)):
            found.add(page)
    assert found == set(COMPARED)
    for tests in COMPARED.values():
        assert all((ROOT / test).is_file() for test in tests)


# Over HTTP

ASKED = re.compile(r"^\$ curl (.*)$", re.MULTILINE)


def requests(block: str) -> Iterator[tuple[str, bytes, dict[str, str], str]]:
    """The path, the body and the headers of each curl of a block, and its output."""
    _, *rest = ASKED.split(block)
    for words, printed in zip(rest[::2], rest[1::2], strict=True):
        headers = dict(re.findall(r"-H '([\w-]+): ([^']+)'", words))
        body = re.search(r"--json '([^']*)'", words)
        path = re.search(r"http://localhost:8080(\S+)", words)
        assert body is not None
        assert path is not None
        yield path[1], body[1].encode(), headers, printed.removeprefix("\n")


SHOP = """
from collections.abc import AsyncIterator
from actors import Actor, message, method

@message
class SoldOutError(Exception):
    def __init__(self, item, left):
        super().__init__(item, left)
        self.item, self.left = item, left

class Counter(Actor):
    value = 0

    @method(http=True)
    async def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    @method(http=True)
    async def sell(self) -> None:
        raise SoldOutError("hat", 0)

    @method(http=True)
    async def count(self, to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number
"""


async def test_the_page_on_http_shows_what_the_gateway_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop: Any = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", shop)
    exec(SHOP, vars(shop))
    answered = 0
    async with open_node("one", secret="a secret of the pages") as node, gateway(node) as http:
        for block in shown("docs/how-to/http.md"):
            counter = await node.options(name="counter").spawn(shop.Counter)
            for path, body, headers, printed in requests(block):
                answer = (await http.ask("POST", path, body, headers)).body.decode()
                if '"status"' in answer:
                    said, expected = json.loads(answer), json.loads(printed)
                    assert said.pop("next").startswith(expected.pop("next").removesuffix("..."))
                    assert said == expected
                else:
                    assert answer.strip() == printed.strip()
                answered += 1
            await node.stop(counter)
    assert answered == 6


# In a terminal

DRIVER = """
import sys
import trio
from shop import Counter, Crawler, Index
from actors import ChildSpec, SpawnOptions, Supervisor
from runtime import open_local_cluster

async def main():
    async with open_local_cluster(nodes=2) as cluster:
        print("open", flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)
        node = cluster.node
        index = await node.options(name="index", on="worker-2").spawn(Index)
        crawler = await node.options(name="crawler", on="worker-1").spawn(Crawler, index)
        counter = await node.options(name="counter", on="worker-2").spawn(Counter)
        await node.options(name="pipeline").spawn(Supervisor, [])
        kept = await node.put(1)
        await counter.take()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(index.flush)
            nursery.start_soon(crawler.fetch)
            await index.began()
            print("at work", flush=True)
            await trio.to_thread.run_sync(sys.stdin.readline)
            nursery.cancel_scope.cancel()

if __name__ == "__main__":
    trio.run(main)
"""

ACTORS = """
import logging
import trio
from actors import Actor, method

class Index(Actor):
    def __init__(self):
        self.disk, self.there = trio.open_memory_channel(0)
        self.flushing = trio.Event()

    @method
    async def flush(self):
        page = b""
        self.flushing.set()
        await self.disk.send(page)

    @method(concurrent=True)
    async def began(self):
        await self.flushing.wait()

    @method
    async def add(self):
        pass

class Crawler(Actor):
    def __init__(self, index):
        self.index = index

    @method
    async def fetch(self):
        await self.index.add()

class Counter(Actor):
    @method
    async def take(self):
        logging.getLogger("shop").warning("3 items are left")
        logging.getLogger("shop").error("no more items")
"""


def lines(text: str) -> list[str]:
    """Lines whose numbers, places and widths may differ."""
    text = re.sub(r"\S*/shop\.py", "shop.py", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    text = re.sub(r"\d+(?:\.\d+)*", "N", text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def commands(page: str) -> Mapping[str, str]:
    """What a page shows of each command."""
    parts = [part for block in shown(page) for part in re.split(r"^\$ ", block, flags=re.M)[1:]]
    return {part.partition("\n")[0]: part.partition("\n")[2] for part in parts}


@pytest.mark.long
@pytest.mark.cluster
def test_the_page_on_commands_shows_what_they_print(tmp_path: Path) -> None:
    """Whole, where the page shows the state of a cluster; the heads of tables otherwise."""
    (tmp_path / "shop.py").write_text(ACTORS)
    (tmp_path / "driver.py").write_text(DRIVER)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    environment["XDG_STATE_HOME"] = str(tmp_path / "state")
    environment.pop("UNDERSTUDY_ADDRESS", None)
    page = commands("docs/operate/command_line.md")

    def printed(*words: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-m", "runtime.command_line", *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
        return lines(done.stdout)

    with subprocess.Popen(
        [sys.executable, tmp_path / "driver.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        assert driver.stdout.readline() == "open\n"
        assert printed("status") == lines(page["understudy status"])
        driver.stdin.write("\n")
        driver.stdin.flush()
        assert driver.stdout.readline() == "at work\n"
        for command in ("why crawler", "stack index", "logs counter --since 10m"):
            shown_lines = lines(page[f"understudy {command}"])
            assert printed(*command.split())[: len(shown_lines)] == shown_lines, command
        top = lines(page["understudy top"])
        assert {top[0], top[1], top[2]} <= set(printed("top", "--seconds", "0.1"))
        assert printed("tree")[0] == lines(page["understudy tree"])[0]
        references = commands("docs/how-to/references.md")["understudy refs --where"]
        assert printed("refs", "--where")[1] == lines(references)[1]
        driver.stdin.write("\n")
        driver.stdin.flush()
        driver.wait(30)
