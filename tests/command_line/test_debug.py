"""`understudy debug` as its user meets it: in a terminal, against the node of another process."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command_line.shell import UNDERSTUDY, Shell, check_mistake
from tests.command_line.typing_terminal import TypingTerminal
from tests.waiting import until_blocking

pytestmark = pytest.mark.cluster

BAKERY = """
import trio
from actors import Actor, method

class Bakery(Actor):
    @method
    async def sell(self, what: str) -> int:
        stock = {"bread": 3}
        return price_of(stock, what)

    @method
    async def bake(self, loaves: int) -> int:
        breakpoint()
        loaves += 1
        await trio.sleep(0)
        return loaves

def price_of(stock, what):
    return 2 * stock[what]
"""

STOPS_AT = "breakpoint()" if sys.version_info >= (3, 13) else "loaves += 1"
"""Since Python 3.13 pdb stops in the line that has called it, before that in the next one."""

SCRIPT = """
import sys, trio
from bakery import Bakery
from runtime import open_node

async def main() -> None:
    async with open_node("first", **OPTION) as node:
        shop = await node.options(name="shop").spawn(Bakery)
        try:
            await shop.sell("cake")
        except Exception:
            pass
        print(node.address, flush=True)
        if len(sys.argv) > 1:
            print(await shop.bake(3), flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


SPAWN = """
import sys, trio
from bakery import Bakery
from runtime import open_node

async def main() -> None:
    async with open_node("script", join=sys.argv[1]) as node:
        for name, isolation in (("shop", "none"), ("isolated", "process")):
            await node.options(name=name, on="first", isolation=isolation).spawn(Bakery)

trio.run(main)
"""


def open_shop(shell: Shell, option: str, *arguments: str) -> tuple[str, subprocess.Popen[str]]:
    """The address of a node on which an actor has failed once, and its process."""
    (shell.place / "bakery.py").write_text(BAKERY)
    text = SCRIPT.replace("OPTION", f"{{'{option}': True}}")
    script, address = shell.start_script(text, *arguments)
    return address, script


def test_a_failure_is_looked_at_in_a_terminal(shell: Shell) -> None:
    address, _ = open_shop(shell, "post_mortem")
    file: Path = shell.place / "bakery.py"
    words = [*UNDERSTUDY, "debug", "shop", "--address", address]
    with TypingTerminal(words, shell.place, shell.environment) as terminal:
        opening = terminal.read_to(r"\(debug\) ")
        assert "in sell: KeyError: 'cake'" in opening
        assert f"  {file}:9 in Bakery.sell" in opening
        assert f"> {file}:19 in price_of" in opening
        for typed, shown in (
            ("list", r"19 >     return 2 \* stock\[what\]"),
            ("locals", r"stock = \{'bread': 3\}"),
            ("p what", "'cake'"),
            ("p 7 * 3", "only names of variables"),
            ("down", "this is the innermost frame"),
            ("up", "> .*:9 in Bakery.sell"),
            ("failures", r"failure 1 of shop \(epoch"),
            ("failure 9", "there is no failure '9'"),
            ("failure 1", "> .*:19 in price_of"),
            ("help", "p NAME"),
            ("nope", "there is no command 'nope'"),
        ):
            terminal.type(f"{typed}\r")
            terminal.read_to(shown)
            terminal.read_to(r"\(debug\) ")
        terminal.type("\x04")
        assert terminal.wait() == 0
    facts = json.loads(shell.run("debug", "shop", "--address", address, "--json").stdout)
    assert [failure["error"] for failure in facts["failures"]] == ["KeyError: 'cake'"]
    check_mistake(shell.run("debug", "nobody", "--address", address), "'nobody'")


def interrupt_piped(words: list[str], shell: Shell) -> None:
    """Press Ctrl-C while a debugger waits for the next line of a pipe."""
    debugger = shell.start(words, stdin=subprocess.PIPE)
    assert debugger.stdout is not None
    seen = ""
    while f"-> {STOPS_AT}\n" not in seen:
        assert select.select([debugger.stdout], [], [], 30)[0], seen
        part = os.read(debugger.stdout.fileno(), 65536).decode()
        assert part, f"ended after {seen!r}"
        seen += part
    debugger.send_signal(signal.SIGINT)
    # The pipe stays open until it has ended.
    status = debugger.wait(30)
    assert (status, debugger.communicate()[1]) == (130, "")


def test_a_method_waits_at_a_breakpoint_while_its_node_goes_on(shell: Shell) -> None:
    address, script = open_shop(shell, "debuggable", "bake")
    words = [*UNDERSTUDY, "debug", "shop", "--address", address]
    until_blocking(
        lambda: json.loads(shell.run(*words[len(UNDERSTUDY) :], "--json").stdout)["breakpoints"],
        "the method waits at its breakpoint()",
    )
    interrupt_piped(words, shell)
    with TypingTerminal(words, shell.place, shell.environment) as terminal:
        opening = terminal.read_to(r"\(Pdb\) ")
        assert "bake of shop on first waits at a breakpoint()" in opening
        assert "another `understudy debug` was here before" in opening
        for typed, shown in (
            ("p loaves", "3"),
            *([("next", r"-> loaves \+= 1")] if STOPS_AT == "breakpoint()" else []),
            ("next", "await trio.sleep"),
            ("!loaves = 40", ""),
            ("next", "return loaves"),
            ("break 3", "not available here"),
            ("p self.name", "'shop'"),
        ):
            terminal.type(f"{typed}\r")
            terminal.read_to(shown)
            terminal.read_to(r"\(Pdb\) ")
        # Lookups, and so the node's loop, go on meanwhile.
        assert "first" in shell.run("status", "--address", address).stdout
        terminal.type("c\r")
        terminal.read_to("the debugger has ended")
        assert terminal.wait() == 0
    assert script.stdout is not None
    assert select.select([script.stdout], [], [], 30)[0], "the method has gone on"
    assert script.stdout.readline().strip() == "40", "what was set in the debugger holds"
    # The failure before it is debugged as well, and what is piped is read.
    done = subprocess.run(
        [*words, "--failure", "1"],
        input="p stock['bread'] + 1\n",
        cwd=shell.place,
        env=shell.environment,
        text=True,
        capture_output=True,
        timeout=30,
        check=True,
    )
    assert "\n4\n" in done.stdout
    check_mistake(shell.run("debug", "shop", "--failure", "9", "--address", address), "not kept")


def test_a_node_that_keeps_nothing_says_how_it_would(shell: Shell) -> None:
    done = shell.run("debug", "shop", "--address", shell.found())
    check_mistake(done, "first: started without --post-mortem")


def test_a_node_that_is_not_debuggable_passes_a_breakpoint_over(shell: Shell) -> None:
    (shell.place / "bakery.py").write_text(BAKERY)
    address = shell.found()
    (shell.place / "spawn.py").write_text(SPAWN)
    subprocess.run(
        [sys.executable, "spawn.py", address],
        cwd=shell.place,
        env=shell.environment,
        check=True,
        timeout=30,
    )
    mistyped = shell.run("debug", "shpo", "--address", address)
    check_mistake(mistyped, "no node keeps a failure of it; did you mean 'shop'?")
    unfailing = shell.run("debug", "shop", "--address", address)
    assert "did you mean" not in unfailing.stderr
    for name in ("shop", "isolated"):
        for _ in range(2):
            done = shell.run("call", name, "bake", "3", "--address", address)
            assert (done.stdout, done.returncode) == ("4\n", 0), done.stderr

    def passed_over() -> list[dict[str, Any]]:
        logged = json.loads(shell.run("logs", "first", "--address", address, "--json").stdout)
        return [one for one in logged["lines"] if "is passed over" in one["text"]]

    # The process of the isolated actor sends its line to the node soon after.
    lines = until_blocking(passed_over, "both are told", lambda found: len(found) >= 2, every=0.2)
    assert [one["actor"] for one in lines] == ["shop", "isolated"], "each place once"
    assert all(f"{shell.place / 'bakery.py'}:13" in one["text"] for one in lines)
