"""`understudy top`: the actors that have most to do, measured over a window."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import click
import trio

from runtime.command_line.asking import Answers, ask_nodes, inspection, node_status
from runtime.command_line.connect import cluster_options, connect
from runtime.command_line.tables import Row, actors_of, ordered, table
from runtime.command_line.units import Number
from runtime.membership.cluster_client import ClusterClient
from runtime.observation.open_calls import OpenCall, read_calls

COLUMNS = ("name", "node", "waiting", "wait", "running", "turn", "served", "rate", "class")

SORTS = {"waiting": "-waiting", "wait": "-wait", "turn": "-turn", "rate": "-rate"}


@click.command(epilog="Example:  understudy top --sort wait --seconds 5")
@click.option(
    "--sort",
    type=click.Choice(list(SORTS)),
    default="waiting",
    show_default=True,
    help="By calls in the mailbox, by how long the oldest of them waits, by how long the current "
    "turn takes, or by calls served per second.",
)
@click.option(
    "--seconds",
    type=Number(min=0.1, max=3600),
    default=1.0,
    show_default=True,
    help="The window over which rates are measured.",
)
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True)
@cluster_options
def top(
    sort: str,
    seconds: float,
    limit: int,
    address: str,
    cluster: str,
    secret_file: Path | None,
    as_json: bool,
) -> None:
    """Show the actors of all nodes that have most to do. Exit status 1 if a node does not
    answer.

    wait: seconds that the oldest call in the mailbox has waited. turn: seconds for which the
    longest running call has run. rate: calls served per second of the window.
    """
    rows, answers = trio.run(_ask, seconds, address, cluster, secret_file)
    rows = ordered(rows, SORTS[sort])
    shown, left_out = rows[:limit], max(0, len(rows) - limit)
    if as_json:
        facts = {"actors": shown, "left_out": left_out, "silent": answers.silent}
        click.echo(json.dumps(facts, indent=2))
    else:
        click.echo("\n".join(table(COLUMNS, shown)))
        if left_out:
            click.echo(f"{left_out} more are left out: --limit shows more")
        answers.warn()
    raise SystemExit(1 if answers.silent else 0)


async def _ask(
    seconds: float, address: str, cluster: str, secret_file: Path | None
) -> tuple[list[Row], Answers]:
    async with connect(address, cluster, secret_file) as client:
        before = await _served(client)
        began = trio.current_time()
        await trio.sleep(seconds)
        statuses = await ask_nodes(client, lambda member: node_status(client, member))
        passed = trio.current_time() - began
        calls = await ask_nodes(client, lambda member: inspection(client, member).calls())
    statuses.silent.update(calls.silent)
    times = _times(
        [call for node, told in calls.by_node.items() for call in read_calls(node, told)]
    )
    rows: list[Row] = []
    for row in actors_of(statuses):
        # One that was started within the window has served all of its calls in it.
        known = before.get((row["node"], row["name"], row["epoch"]), 0)
        longest = times.get((row["node"], row["name"]), _Times())
        rows.append(
            {
                **{name: row[name] for name in ("name", "node", "epoch", "class")},
                **{name: row[name] for name in ("waiting", "running", "served")},
                "wait": longest.wait,
                "turn": longest.turn,
                "rate": (row["served"] - known) / passed,
            }
        )
    return rows, statuses


async def _served(client: ClusterClient) -> dict[tuple[str, str, int], int]:
    answers = await ask_nodes(client, lambda member: node_status(client, member))
    return {(row["node"], row["name"], row["epoch"]): row["served"] for row in actors_of(answers)}


@attrs.define
class _Times:
    """The longest of an actor's calls, in seconds; None if there is none."""

    wait: float | None = None
    turn: float | None = None


def _times(calls: list[OpenCall]) -> dict[tuple[str, str], _Times]:
    found: dict[tuple[str, str], _Times] = {}
    for call in calls:
        of_actor = found.setdefault((call.node, call.actor), _Times())
        seconds = call.seconds or 0.0
        if call.state == "running":
            of_actor.turn = max(seconds, of_actor.turn or 0.0)
        else:
            of_actor.wait = max(seconds, of_actor.wait or 0.0)
    return found
