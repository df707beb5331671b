"""`understudy debug`: a debugger at a `breakpoint()` of an actor's method, or of its last failures,
also after it has ended.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import attrs
import click
import trio

from actors.errors import ActorNotFoundError, CallError
from runtime.command_line.actor_places import names_alike
from runtime.command_line.connect import ChosenCluster, cluster_options, connect
from runtime.command_line.node_answers import NODE_SECONDS, Answers, Member, ask_nodes
from runtime.command_line.units import Text
from runtime.hosting.debug_conversation import UNATTENDED_SECONDS
from runtime.logs.formats import iso
from runtime.membership.cluster_client import ClusterClient
from runtime.near_names import nearest
from runtime.observation.debug_service import debug_of
from runtime.printable import plain
from runtime.service_calls import LONG_POLL

HELP = """\
where          the frames, the outermost first; > marks the one that is looked at
up, down       look at the frame that called this one, or that this one called
list           the source around the line
locals         the variables
p NAME         the value of a variable
failures       the failures that are kept; failure NUMBER looks at another one
quit"""

RUNNING_SECONDS = 2.0
"""How long a node is given to answer that the code still runs."""

MOST_NAMED = 5
"""Nodes that one reason names."""

Command = Callable[[str | None], Awaitable[dict[str, str]]]
"""Sends a line to a debugger, or none: what it has printed, its state, and what is wrong."""


@click.command(epilog="Example:  understudy debug counter")
@click.argument("actor", type=Text())
@click.option(
    "--failure", type=int, metavar="NUMBER", help="A failure of it, instead of the latest."
)
@cluster_options
def debug(actor: str, failure: int | None, chosen: ChosenCluster, as_json: bool) -> None:
    """Debug a method of ACTOR that waits at a breakpoint(), or else its last failure: the frames,
    their source and variables. In nodes that were started with --debuggable this is pdb. Nodes with
    --post-mortem keep failures as text. Reads commands; `help` lists them.
    """
    trio.run(_debug, actor, failure, chosen, as_json)


async def _debug(actor: str, number: int | None, chosen: ChosenCluster, as_json: bool) -> None:
    async with connect(chosen, "operator") as client:
        failures, breakpoints = await _known(client, actor)
        if as_json:
            click.echo(json.dumps({"failures": failures, "breakpoints": breakpoints}, indent=2))
            return
        if breakpoints and number is None:
            await _at_breakpoint(client, breakpoints)
            return
        kept = [one for one in failures if number is None or one["number"] == number]
        if not kept:
            numbers = ", ".join(str(one["number"]) for one in failures) or "none"
            raise click.ClickException(
                f"failure {number} of {actor} is not kept; there are: {numbers}"
            )
        if kept[-1]["debuggable"]:
            problem = await _after_failure(client, kept[-1])
            if not problem:
                return
            click.echo(f"node {kept[-1]['node']} opens no debugger: {problem}", err=True)
        await DebugSession(failures, kept[-1]).run(CommandLines())


def _service(client: ClusterClient, node: str) -> Any:
    incarnation = next(
        one["incarnation"] for one in client.status["members"] if one["name"] == node
    )
    return debug_of(client.endpoint, node, incarnation).options(
        timeout=RUNNING_SECONDS + NODE_SECONDS, retry=LONG_POLL
    )


def _command(client: ClusterClient, opened: dict[str, Any]) -> Command:
    service = _service(client, opened["node"])
    # Nodes of earlier versions have no debuggers in the processes of isolated actors.
    isolated = (opened["isolated"],) if opened.get("isolated") else ()

    async def command(line: str | None) -> dict[str, str]:
        answer: dict[str, str] = await service.command(
            opened["number"], line, RUNNING_SECONDS, *isolated
        )
        return answer

    return command


async def _at_breakpoint(client: ClusterClient, breakpoints: list[dict[str, Any]]) -> None:
    first = breakpoints[0]
    click.echo(
        f"{plain(first['what'])} of {plain(first['actor'])} on {first['node']} waits at a "
        f"breakpoint(), {plain(first['place'])}, since {iso(first['since'])[:-6]}Z"
    )
    if len(breakpoints) > 1:
        click.echo(f"{len(breakpoints) - 1} more wait; they come after this one")
    if not await converse(_command(client, first), CommandLines()):
        click.echo(
            f"it waits on for {UNATTENDED_SECONDS:g} s, then goes on by itself; `c` lets it go on",
            err=True,
        )


async def _after_failure(client: ClusterClient, failure: dict[str, Any]) -> str:
    """Debug a failure. Returns why there is no debugger of it; "" if there was one."""
    opened = await _service(client, failure["node"]).debug(failure["actor"], failure["number"])
    if opened["problem"]:
        return str(opened["problem"])
    click.echo(headline(failure))
    command = _command(client, {**opened, "node": failure["node"]})
    if not await converse(command, CommandLines()):
        with suppress(CallError):
            await command("quit")
    return ""


async def converse(command: Command, lines: CommandLines) -> bool:
    """Pass lines to a debugger until it has let the code go on: True; or there are no more: False.
    Raises `CallError` when its node does not answer.
    """
    answer = await command(None)
    if answer["state"] == "waiting" and not answer["text"]:
        click.echo(
            "another `understudy debug` was here before, and may still be; `where` shows the line"
        )
    while True:
        click.echo(_safe(answer["text"]), nl=False)
        if answer["problem"]:
            click.echo(plain(answer["problem"]), err=True)
        if answer["state"] == "ended":
            click.echo("the debugger has ended")
            return True
        if answer["state"] == "running":
            # Asked again each `RUNNING_SECONDS`: no call is open for as long as the code runs.
            answer = await command(None)
            continue
        line = await lines.next("(Pdb) ")
        if line is None:
            return False
        answer = await command(line)


def _safe(text: str) -> str:
    """What a debugger has printed, line by line without what would control the terminal."""
    return "".join(f"{plain(line.expandtabs())}\n" for line in text.splitlines())


async def _known(
    client: ClusterClient, actor: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The failures of all epochs of an actor that nodes keep, the latest last, and the breakpoints
    at which its methods wait. Raises `ActorNotFoundError` if there are none, which says why.
    """

    def ask(member: Member) -> Awaitable[Any]:
        service = debug_of(client.endpoint, member["name"], member["incarnation"])
        answer: Awaitable[Any] = service.options(timeout=NODE_SECONDS).failures(actor)
        return answer

    answers = await ask_nodes(client, ask)
    failures, breakpoints = (
        [
            {**one, "node": node}
            for node, report in answers.by_node.items()
            for one in report.get(kind, ())
        ]
        for kind in ("failures", "breakpoints")
    )
    if not failures and not breakpoints:
        text = f"no actor called {actor!r} waits at a breakpoint(), and no node keeps a failure"
        near = nearest(actor, sorted(await names_alike(client, actor)))
        # There may be an actor of that name, which has just not failed.
        if near and near != [actor]:
            text = f"{text} of it; did you mean {near[0]!r}?"
        raise ActorNotFoundError("; ".join([text, *obstacles(answers)]), actor=actor)
    answers.warn()
    return (
        sorted(failures, key=lambda failure: failure["at"]),
        sorted(breakpoints, key=lambda one: one["since"]),
    )


def obstacles(answers: Answers) -> list[str]:
    """Why there may be something to debug that no node has reported: each reason once, with its
    nodes.
    """
    nodes: dict[str, list[str]] = {}
    for node, report in sorted(answers.by_node.items()):
        if report["problem"]:
            nodes.setdefault(report["problem"], []).append(node)
    for node, reason in sorted(answers.silent.items()):
        nodes.setdefault(f"did not answer: {reason}", []).append(node)
    return [
        f"{', '.join(names[:MOST_NAMED])}"
        + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
        + f": {reason}"
        for reason, names in nodes.items()
    ]


@attrs.define
class DebugSession:
    """A look at failures that are kept as text: which one, and which of its frames."""

    failures: list[dict[str, Any]]
    failure: dict[str, Any]
    frame: int = attrs.field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        self._choose(self.failure)

    async def run(self, lines: CommandLines) -> None:
        """Read commands from the terminal, or from what is piped, until there are no more."""
        click.echo(headline(self.failure))
        click.echo("\n".join(self._where()))
        while True:
            line = await lines.next("(debug) ")
            if line is None:
                return
            words = line.strip().split(maxsplit=1)
            if words and words[0] in ("q", "quit", "exit"):
                return
            if words:
                answered = self.answer(words[0], words[1] if len(words) > 1 else "")
                click.echo("\n".join(answered))

    def answer(self, command: str, rest: str) -> list[str]:
        """The lines that answer a command."""
        if command in ("p", "print"):
            return self._print(rest)
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
            "failures": lambda: [headline(one) for one in self.failures],
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
        return [headline(self.failure), *self._where()]

    def _print(self, name: str) -> list[str]:
        known = self._frame()["variables"].get(name)
        if known is not None:
            return [plain(known)]
        return [
            "only names of variables: there is no debugger of this failure, because its node was "
            "not started with --debuggable, or its process has ended"
        ]


def headline(failure: dict[str, Any]) -> str:
    """What failed, where and when, in one line."""
    return (
        f"failure {failure['number']} of {plain(failure['actor'])} (epoch {failure['epoch']}) "
        f"on {failure['node']}, {iso(failure['at'])[:-6]}Z, in {plain(failure['what'])}: "
        f"{plain(failure['error'])}"
    )


def _place(frame: dict[str, Any]) -> str:
    return f"{plain(frame['file'])}:{frame['line']} in {plain(frame['function'])}"


class CommandLines:
    """The lines that are typed at a prompt, or piped. Nothing can end the reading of a line in its
    thread, so Ctrl-C abandons it, and the process ends meanwhile.
    """

    def __init__(self) -> None:
        self._typed = sys.stdin.isatty() and sys.stdout.isatty()
        self._unread = b""

    async def next(self, prompt: str) -> str | None:
        """The next line; None at the end of the input."""
        return await trio.to_thread.run_sync(self._read, prompt, abandon_on_cancel=True)

    def _read(self, prompt: str) -> str | None:
        if self._typed:
            try:
                return input(prompt)
            except EOFError:
                return None
        while b"\n" not in self._unread:
            # Not by `sys.stdin`: an abandoned thread would hold its lock, and the interpreter
            # aborts if it cannot have that at its end.
            part = os.read(sys.stdin.fileno(), 65536)
            if not part:
                break
            self._unread += part
        line, ending, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace").rstrip("\r") if line or ending else None
