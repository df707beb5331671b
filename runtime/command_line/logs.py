"""`understudy logs`: the latest log lines of nodes and actors, also of nodes that have ended."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import click
import trio

from actors.errors import ActorNotFoundError, CallError, StoreError
from runtime.command_line.actor_places import find_actor
from runtime.command_line.connect import ChosenCluster, cluster_options, connect
from runtime.command_line.node_answers import (
    NODE_SECONDS,
    Answers,
    Member,
    ask_nodes,
    why,
)
from runtime.command_line.units import Text, seconds_ago
from runtime.environment import SystemEnvironment
from runtime.logs.archive import ArchivedNode, archived_lines, archived_nodes
from runtime.logs.formats import iso
from runtime.logs.ring import FIELDS, LogQuestion
from runtime.logs.service import logs_of
from runtime.membership.cluster_client import ClusterClient, unreached
from runtime.membership.members import PREFIX as NODES
from runtime.printable import many, plain
from runtime.service_calls import LONG_POLL_SECONDS

LEVELS = ("debug", "info", "warning", "error", "critical")

RETRY_SECONDS = 1.0
"""Until a node that did not answer is asked again, with `--follow`."""

Row = dict[str, Any]


@attrs.frozen
class _Wanted:
    """What the user asks for. `seconds`: how far back, None for all; `name`: of a node or actor."""

    name: str
    level: int
    seconds: float | None
    limit: int


@click.command(epilog="Example:  understudy logs w1 --since 10m        understudy logs counter -f")
@click.argument("name", required=False, type=Text())
@click.option("--follow", "-f", is_flag=True, help="Go on with new lines, until Ctrl-C.")
@click.option(
    "--since",
    "seconds",
    metavar="AGE|TIME",
    callback=seconds_ago,
    help="Only lines of the last 30s, 10m, 2h or 1d, or from a time such as 2026-11-23T04:30 on.",
)
@click.option(
    "--level",
    type=click.Choice(LEVELS, case_sensitive=False),
    default="debug",
    help="Only lines of this level or above.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    help="The most lines to begin with, the latest.",
)
@cluster_options
def logs(
    name: str | None,
    follow: bool,
    seconds: float | None,
    level: str,
    limit: int,
    chosen: ChosenCluster,
    as_json: bool,
) -> None:
    """Show the latest log lines of the node or actor NAME, or of all nodes.

    Of a node that has ended, or does not answer, it shows what the node wrote to the store before,
    and says until when that was. Exit status 1 if a node does not answer. With --json, one
    document; with --follow, one on each line.
    """
    wanted = _Wanted(name or "", logging.getLevelNamesMapping()[level.upper()], seconds, limit)
    answers = trio.run(_run, wanted, follow, as_json, chosen)
    raise SystemExit(1 if answers.silent else 0)


async def _run(wanted: _Wanted, follow: bool, as_json: bool, chosen: ChosenCluster) -> Answers:
    async with connect(chosen, "observer") as client:
        question = _Question(client, wanted)
        await question.ask()
        if as_json and not follow:
            click.echo(json.dumps(question.facts(), indent=2))
        else:
            for row in question.rows:
                _print(row, as_json=as_json)
            question.warn()
        if follow:
            await question.follow(as_json=as_json)
        return question.answers


class _Question:
    """One run of the command: the nodes that are asked, and what they and the store say."""

    def __init__(self, client: ClusterClient, wanted: _Wanted) -> None:
        self._client = client
        self._wanted = wanted
        self._members: list[Member] = list(client.status["members"])
        self._actor = ""
        self._last: dict[str, int] = {}
        self.answers = Answers()
        self.rows: list[Row] = []
        self._left_out = 0
        self._ended: list[ArchivedNode] = []
        """The nodes whose lines come from the store."""
        self._problem = ""
        """Why the store could not be asked."""

    async def ask(self) -> None:
        """Fill `rows` with the lines that there are. Raises ActorNotFoundError if nothing has that
        name.
        """
        name, archived = self._wanted.name, list[ArchivedNode]()
        missing: list[ActorNotFoundError] = []
        if not any(member["name"] == name for member in self._members):
            self._actor = name
        else:
            self._members = [member for member in self._members if member["name"] == name]

        async def ask_store() -> None:
            archived.extend(await self._archived())

        async def find() -> None:
            try:
                await find_actor(self._client, name, or_node=True)
            except ActorNotFoundError as error:
                missing.append(error)

        # Side by side: the store may be on the node that does not answer.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_store)
            if self._actor:
                nursery.start_soon(find)
            self.answers = await ask_nodes(self._client, self._ask_node, self._members)
        of_node = [one for one in archived if one.node.name == name]
        if self._actor and of_node:
            # A node that has ended.
            self._members, self._actor, self.answers = [], "", Answers()
        if name and not self._actor:
            archived = of_node
        for node, report in self.answers.by_node.items():
            self._add(node, report["lines"])
            self._last[node] = report["last"]
            self._left_out += report["left_out"]
        alive = {
            (member["name"], member["incarnation"])
            for member in self._members
            if member["name"] not in self.answers.silent
        }
        # A node that is silent may have ended: what it has written to the store is shown too.
        self._ended = [
            one
            for one in archived
            # Of one that wrote no lines only if it is asked for.
            if tuple(one.node) not in alive and (one.until is not None or one.node.name == name)
        ]
        await self._add_archived()
        if self._actor and not self.rows and missing:
            raise missing[0]
        self.rows.sort(key=lambda row: (row["time"], row["node"], row["number"]))
        self._left_out += max(0, len(self.rows) - self._wanted.limit)
        self.rows = self.rows[-self._wanted.limit :]

    async def _ask_node(self, member: Member) -> dict[str, Any]:
        service = logs_of(self._client.endpoint, member["name"], member["incarnation"])
        answer: dict[str, Any] = await service.options(timeout=NODE_SECONDS).read(
            0, self._wanted.level, self._seconds(), self._actor
        )
        return answer

    def _seconds(self) -> float:
        return math.inf if self._wanted.seconds is None else self._wanted.seconds

    def _add(self, node: str, lines: list[dict[str, Any]]) -> None:
        self.rows += [{**line, "node": node} for line in lines]

    async def _archived(self) -> list[ArchivedNode]:
        found: list[ArchivedNode] = []
        with self._asking_store():
            found = await archived_nodes(self._client.store)
        return found

    async def _add_archived(self) -> None:
        if self._problem:
            return
        since = 0.0
        if self._wanted.seconds is not None:
            since = SystemEnvironment().wall_time() - self._wanted.seconds
        question = LogQuestion(0, self._wanted.level, since, self._actor)
        with self._asking_store():
            for one in self._ended:
                lines = await archived_lines(self._client.store, one.node)
                self._add(one.node.name, [line.plain() for line in lines if question.wants(line)])

    @contextmanager
    def _asking_store(self) -> Iterator[None]:
        try:
            with trio.fail_after(NODE_SECONDS):
                yield
        except trio.TooSlowError:
            self._problem = f"the store did not answer within {NODE_SECONDS:g} s"
        except (StoreError, CallError) as error:
            self._problem = f"the store could not be asked: {str(error).partition(chr(10))[0]}"

    def facts(self) -> dict[str, Any]:
        """All of it as data."""
        return {
            "lines": [_plain_row(row) for row in self.rows],
            "left_out": self._left_out,
            "ended": [
                {
                    "node": one.node.name,
                    "incarnation": one.node.incarnation,
                    "until": None if one.until is None else iso(one.until),
                    "ended": None if one.end is None else iso(one.end.at),
                }
                for one in self._ended
            ],
            "silent": self.answers.silent,
            "store": self._problem or None,
        }

    def warn(self) -> None:
        """Tell on stderr what is not there."""
        if self._left_out:
            click.echo(
                f"{many(self._left_out, 'earlier line')} left out: --limit, --since, --level and "
                "NAME choose others",
                err=True,
            )
        for one in self._ended:
            click.echo(plain(self._about(one)), err=True)
        if self._problem:
            click.echo(f"{self._problem}: lines of nodes that have ended are not shown", err=True)
        self.answers.warn()

    def _about(self, one: ArchivedNode) -> str:
        """Why what the store has is shown of a node, and until when that is."""
        what = "does not answer" if one.node.name in self.answers.silent else "has ended"
        if one.end is not None:
            why_ended = one.end.reason and f", {one.end.reason}"
            what = f"{one.end.how} at {iso(one.end.at)}{why_ended}"
        lines = (
            "it wrote no lines to the store"
            if one.until is None
            else f"its lines are those that it wrote to the store until {iso(one.until)}"
        )
        return f"node {one.node.name} (incarnation {one.node.incarnation}) {what}: {lines}"

    async def follow(self, *, as_json: bool) -> None:
        """Print new lines, until cancelled, or until none of the nodes is left."""
        async with trio.open_nursery() as nursery:
            for member in self._members:
                nursery.start_soon(self._follow, member, as_json)

    async def _follow(self, member: Member, as_json: bool) -> None:
        service = logs_of(self._client.endpoint, member["name"], member["incarnation"])
        service = service.options(timeout=LONG_POLL_SECONDS + NODE_SECONDS)
        node, printed = member["name"], ""
        while True:
            try:
                # After the last line that was printed, so that none comes twice.
                answer = await service.read(
                    self._last.get(node, 0), self._wanted.level, math.inf, self._actor, True
                )
            except CallError as error:
                if await self._has_ended(member):
                    click.echo(f"node {node} has ended", err=True)
                    return
                reasons = why(error, unreached=unreached(self._client, member))
                if printed != (printed := f"node {node} does not answer: {reasons}"):
                    click.echo(printed, err=True)
                await trio.sleep(RETRY_SECONDS)
                continue
            # Nodes of earlier versions do not say it.
            if node in self._last and (dropped := answer.get("dropped", 0)):
                click.echo(
                    f"{many(dropped, 'line')} of node {node} left out here, of any level and "
                    "actor: they were logged faster than they are printed here",
                    err=True,
                )
            self._last[node] = answer["last"]
            for line in answer["lines"]:
                _print({**line, "node": node}, as_json=as_json)

    async def _has_ended(self, member: Member) -> bool:
        """True if the store says so: the revision of a member's key is its incarnation."""
        with self._asking_store():
            found = await self._client.store.get(f"{NODES}{member['name']}")
            return found is None or found.create_revision != member["incarnation"]
        return False


def _plain_row(row: Row) -> Row:
    return {
        "time": iso(row["time"]),
        "level": logging.getLevelName(row["level"]),
        **{name: row[name] for name in ("node", *FIELDS) if name not in ("time", "level")},
    }


def _print(row: Row, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(_plain_row(row)))
        return
    first, *others = row["text"].splitlines() or [""]
    source = row["actor"] and f" [{row['actor']}{'.' if row['method'] else ''}{row['method']}]"
    click.echo(
        f"{iso(row['time'])[:-6]}Z {plain(row['node'])} {logging.getLevelName(row['level'])} "
        f"{plain(row['logger'])}: {plain(first)}{plain(source)}"
    )
    for line in others:
        click.echo(f"    {plain(line)}")
