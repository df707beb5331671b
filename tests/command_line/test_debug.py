"""`understudy debug` as its user meets it: in a terminal, against the node of another process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line.test_commands import UNDERSTUDY, Shell, check_mistake, shell
from tests.command_line.typing_terminal import TypingTerminal

__all__ = ["shell"]

pytestmark = pytest.mark.cluster

BAKERY = """
from actors import Actor, method

class Bakery(Actor):
    @method
    async def sell(self, what: str) -> int:
        stock = {"bread": 3}
        return price_of(stock, what)

def price_of(stock, what):
    return 2 * stock[what]
"""

SCRIPT = """
import sys, trio
from bakery import Bakery
from runtime import open_node

async def main() -> None:
    async with open_node("first", debuggable=True) as node:
        shop = await node.options(name="shop").spawn(Bakery)
        try:
            await shop.sell("cake")
        except Exception:
            pass
        print(node.address, flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


def open_shop(shell: Shell) -> str:
    """The address of a node on which an actor has failed once."""
    (shell.place / "bakery.py").write_text(BAKERY)
    (shell.place / "script.py").write_text(SCRIPT)
    script = subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=shell.place,
        env=shell.environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    shell.running.append(script)
    assert script.stdout is not None
    address = script.stdout.readline().strip()
    assert address, script.communicate()[1]
    return address


def test_a_failure_is_looked_at_in_a_terminal(shell: Shell) -> None:
    address = open_shop(shell)
    file: Path = shell.place / "bakery.py"
    words = [*UNDERSTUDY, "debug", "shop", "--address", address]
    with TypingTerminal(words, shell.place, shell.environment) as terminal:
        opening = terminal.read_to(r"\(debug\) ")
        assert "in sell: KeyError: 'cake'" in opening
        assert f"  {file}:8 in Bakery.sell" in opening
        assert f"> {file}:11 in price_of" in opening
        for typed, shown in (
            ("list", r"11 >     return 2 \* stock\[what\]"),
            ("locals", r"stock = \{'bread': 3\}"),
            ("p stock['bread']", "3"),
            ("p 7 * 3", "only names, their attributes and items"),
            ("down", "this is the innermost frame"),
            ("up", "> .*:8 in Bakery.sell"),
            ("p self.name", "'shop'"),
            ("p nope", "NameError: name 'nope' is not defined"),
            ("failures", r"failure 1 of shop \(epoch"),
            ("failure 9", "there is no failure '9'"),
            ("failure 1", "> .*:11 in price_of"),
            ("help", "p NAME"),
            ("nope", "there is no command 'nope'"),
        ):
            terminal.type(f"{typed}\r")
            terminal.read_to(shown)
            terminal.read_to(r"\(debug\) ")
        terminal.type("\x04")
        assert terminal.wait() == 0
    facts = json.loads(shell.run("debug", "shop", "--address", address, "--json").stdout)
    assert [failure["error"] for failure in facts] == ["KeyError: 'cake'"]
    check_mistake(shell.run("debug", "nobody", "--address", address), "'nobody'")


def test_a_node_that_keeps_nothing_says_how_it_would(shell: Shell) -> None:
    _, node = shell.start_node("--name", "first", "--listen", "127.0.0.1:0")
    done = shell.run("debug", "shop", "--address", node["address"])
    check_mistake(done, "first: it was not started with --post-mortem")
