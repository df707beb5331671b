"""`understudy top`: the actors that have most to do, measured over a window."""

from __future__ import annotations

import json
from collections import Counter

import click
import trio

from runtime.command_line.connect import ChosenCluster, cluster_options, connect
from runtime.command_line.node_answers import Answers, ask_nodes, inspection
from runtime.command_line.tables import Row, actors_of, count_of, ordered, table
from runtime.command_line.units import Number
from runtime.membership.cluster_client import ClusterClient
from runtime.observation.actor_listing import LONGEST_WINDOW, TOP_COLUMNS
from runtime.observation.roles import with_roles

COLUMNS = (
    *("name", "node", "waiting", "wait", "running", "turn", "served", "rate", "restarts", "class"),
)


@click.command(epilog="Example:  understudy top --sort wait --seconds 5")
@click.option(
    "--sort",
    type=click.Choice(TOP_COLUMNS),
    default="waiting",
    show_default=True,
    help="By calls in the mailbox, by how long the oldest of them waits, by how long the current "
    "turn takes, by calls served per second, or by restarts in the window.",
)
@click.option(
    "--seconds",
    type=Number(min=0.1, max=LONGEST_WINDOW),
    default=1.0,
    show_default=True,
    help="The window over which rates are measured.",
)
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True)
@cluster_options
def top(sort: str, seconds: float, limit: int, chosen: ChosenCluster, as_json: bool) -> None:
    """Show the actors of all nodes that have most to do. Exit status 1 if a node does not
    answer.

    wait: seconds that the oldest call in the mailbox has waited. turn: seconds for which the
    longest running call has run. rate: calls served per second of the window. restarts: how often
    its supervisor has restarted it in the window.
    """
    rows, count, answers = trio.run(_ask, sort, seconds, limit, chosen)
    shown = ordered(rows, f"-{sort}")[:limit]
    left_out = count - len(shown)
    if as_json:
        facts = {"actors": shown, "left_out": left_out, "silent": answers.silent}
        click.echo(json.dumps(facts, indent=2))
    else:
        click.echo("\n".join(table(COLUMNS, list(map(with_roles, shown)))))
        if left_out:
            click.echo(f"{left_out} more are left out: --limit shows more")
        answers.warn()
    raise SystemExit(1 if answers.silent else 0)


async def _ask(
    sort: str, seconds: float, limit: int, chosen: ChosenCluster
) -> tuple[list[Row], int, Answers]:
    """The first actors of each node, of how many in all, and who has answered."""
    async with connect(chosen, "observer") as client:
        answers = await ask_nodes(
            client, lambda member: inspection(client, member, seconds).top(sort, seconds, limit)
        )
        restarts: Counter[str] = Counter()
        for report in answers.by_node.values():
            restarts.update(report["restarts"])
        rows, count = list(actors_of(answers)), count_of(answers)
        if sort == "restarts":
            names = [name for name, _ in restarts.most_common(limit)]
            rows, count = await _restarted(client, names), len(restarts)
    # Where a supervisor may be on a node that says less, nothing is known of the others.
    is_whole = not answers.silent and not any(
        report["restarts_left_out"] for report in answers.by_node.values()
    )
    for row in rows:
        row["restarts"] = restarts.get(row["name"], 0 if is_whole else None)
    return rows, count, answers


async def _restarted(client: ClusterClient, names: list[str]) -> list[Row]:
    """A row for each of these actors, also of those that run nowhere at the moment."""
    found = await ask_nodes(client, lambda member: inspection(client, member).named(names))
    rows = {
        row["name"]: {**row, "node": node, "rate": None}
        for node, report in found.by_node.items()
        for row in report
    }
    nothing: Row = dict.fromkeys(COLUMNS)
    return [rows.get(name) or {**nothing, "name": name} for name in names]
