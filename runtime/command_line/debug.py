"""`understudy debug`: look at the last failures of an actor, frame by frame, after it has ended."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import click
import trio

from actors.errors import ActorNotFoundError, CallError
from runtime.command_line.asking import NODE_SECONDS, Member, ask_nodes, why
from runtime.command_line.connect import cluster_options, connect
from runtime.logs.formats import iso
from runtime.membership.cluster_client import ClusterClient
from runtime.observation.debug_service import EVALUATION_SECONDS, debug_of
from runtime.observation.tree import plain

HELP = """\
where          the frames, the outermost first; > marks the one that is looked at
up, down       look at the frame that called this one, or that this one called
list           the source around the line
locals         the variables
p NAME         the value of a variable; with --debuggable also p self.stock['bread'] and the like
failures       the failures that are kept; failure NUMBER looks at another one
quit"""

Evaluate = Callable[[str, int, int, str], Awaitable[dict[str, str]]]
"""Evaluates an expression: given the node, the number of the failure, and that of the frame."""


@click.command(epilog="Example:  understudy debug counter")
@click.argument("actor")
@cluster_options
def debug(actor: str, address: str, cluster: str, secret_file: Path | None, as_json: bool) -> None:
    """Look at the last failures of ACTOR: the frames that it failed in, their source and variables.
    Its node keeps them if it was started with --post-mortem, or --debuggable. Reads commands;
    `help` lists them.
    """
    trio.run(_debug, actor, address, cluster, secret_file, as_json)


async def _debug(
    actor: str, address: str, cluster: str, secret_file: Path | None, as_json: bool
) -> None:
    async with connect(address, cluster, secret_file) as client:
        members: dict[str, Member] = {one["name"]: one for one in client.status["members"]}
        failures = await _failures(client, actor)
        if as_json:
            click.echo(json.dumps(failures, indent=2))
            return

        async def evaluate(node: str, number: int, frame: int, expression: str) -> dict[str, str]:
            service = debug_of(client.endpoint, node, members[node]["incarnation"])
            options = service.options(timeout=EVALUATION_SECONDS + NODE_SECONDS)
            found: dict[str, str] = await options.evaluate(actor, number, frame, expression)
            return found

        await DebugSession(failures, evaluate).run()


async def _failures(client: ClusterClient, actor: str) -> list[dict[str, Any]]:
    """The failures of all epochs of an actor that nodes keep, the latest last. Raises
    `ActorNotFoundError` if there are none, which says why.
    """

    def ask(member: Member) -> Awaitable[Any]:
        service = debug_of(client.endpoint, member["name"], member["incarnation"])
        answer: Awaitable[Any] = service.options(timeout=NODE_SECONDS).failures(actor)
        return answer

    answers = await ask_nodes(client, ask)
    answers.warn()
    found = [
        {**failure, "node": node}
        for node, told in answers.by_node.items()
        for failure in told["failures"]
    ]
    if not found:
        text = f"no node keeps a failure of an actor called {actor!r}"
        problems = [
            f"{node}: {told['problem']}"
            for node, told in sorted(answers.by_node.items())
            if told["problem"]
        ]
        raise ActorNotFoundError("; ".join([text, *problems]), actor=actor)
    return sorted(found, key=lambda failure: failure["at"])


@attrs.define
class DebugSession:
    """One session: which failure and which frame is looked at."""

    failures: list[dict[str, Any]]
    evaluate: Evaluate
    failure: dict[str, Any] = attrs.field(init=False)
    frame: int = attrs.field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        self._choose(self.failures[-1])

    async def run(self) -> None:
        """Read commands from the terminal, or from what is piped, until there are no more."""
        click.echo(self._headline(self.failure))
        click.echo("\n".join(self._where()))
        while True:
            line = await trio.to_thread.run_sync(_read_line, abandon_on_cancel=True)
            if line is None:
                return
            words = line.strip().split(maxsplit=1)
            if words and words[0] in ("q", "quit", "exit"):
                return
            if words:
                told = await self.answer(words[0], words[1] if len(words) > 1 else "")
                click.echo("\n".join(told))

    async def answer(self, command: str, rest: str) -> list[str]:
        """The lines that answer a command."""
        if command in ("p", "print"):
            return await self._print(rest)
        if command == "failure":
            return self._other(rest)
        if command in ("up", "u", "down", "d"):
            return self._move(-1 if command in ("up", "u") else 1)
        simple: dict[str, Callable[[], list[str]]] = {
            "where": self._where,
            "w": self._where,
            "list": self._source,
            "l": self._source,
            "locals": self._locals,
            "failures": lambda: [self._headline(one) for one in self.failures],
            "help": HELP.splitlines,
        }
        if command not in simple:
            return [f"there is no command {plain(command)!r}; help lists them"]
        return simple[command]()

    def _choose(self, failure: dict[str, Any]) -> None:
        self.failure = failure
        self.frame = len(failure["frames"]) - 1

    def _frame(self) -> dict[str, Any]:
        found: dict[str, Any] = self.failure["frames"][self.frame]
        return found

    def _headline(self, failure: dict[str, Any]) -> str:
        return (
            f"failure {failure['number']} of {plain(failure['actor'])} (epoch {failure['epoch']}) "
            f"on {failure['node']}, {iso(failure['at'])[:-6]}Z, in {plain(failure['what'])}: "
            f"{plain(failure['error'])}"
        )

    def _where(self) -> list[str]:
        return [
            f"{'>' if place == self.frame else ' '} {_place(frame)}"
            for place, frame in enumerate(self.failure["frames"])
        ]

    def _move(self, step: int) -> list[str]:
        if not 0 <= self.frame + step < len(self.failure["frames"]):
            return ["this is the outermost frame" if step < 0 else "this is the innermost frame"]
        self.frame += step
        return [f"> {_place(self._frame())}"]

    def _source(self) -> list[str]:
        frame = self._frame()
        return [
            f"{number:>5} {'>' if number == frame['line'] else ' '} {plain(text)}"
            for number, text in frame["source"]
        ] or ["its source cannot be read"]

    def _locals(self) -> list[str]:
        frame = self._frame()
        lines = [f"{plain(name)} = {plain(text)}" for name, text in frame["variables"].items()]
        if frame["left_out"]:
            lines.append(f"{frame['left_out']} more are left out")
        return lines or ["it has no variables"]

    def _other(self, number: str) -> list[str]:
        found = [one for one in self.failures if str(one["number"]) == number]
        if not found:
            return [f"there is no failure {plain(number)!r}; failures lists them"]
        self._choose(found[-1])
        return [self._headline(self.failure), *self._where()]

    async def _print(self, expression: str) -> list[str]:
        known = self._frame()["variables"].get(expression)
        if not self.failure["evaluates"]:
            if known is not None:
                return [plain(known)]
            return ["only names of variables: its node was not started with --debuggable"]
        node, number = self.failure["node"], self.failure["number"]
        try:
            found = await self.evaluate(node, number, self.frame, expression)
        except CallError as error:
            return [f"node {node} did not answer: {why(error)}"]
        return [plain(found["text"]) if not found["problem"] else plain(found["problem"])]


def _place(frame: dict[str, Any]) -> str:
    return f"{plain(frame['file'])}:{frame['line']} in {plain(frame['function'])}"


def _read_line() -> str | None:
    """The next line of input; None at its end."""
    try:
        return input("(debug) " if sys.stdin.isatty() else "")
    except EOFError:
        return None
