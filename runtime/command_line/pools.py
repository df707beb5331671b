"""`understudy pools`: the pools of a cluster, their sizes and where their members are."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import click
import trio

from actors.errors import CallError
from actors.messages import import_path
from actors.method import Address
from runtime.command_line.connect import ChosenCluster, cluster_options, connect
from runtime.command_line.journals import journals_of
from runtime.command_line.node_answers import NODE_SECONDS, Answers, ask_nodes, inspection, why
from runtime.command_line.tables import Row, actors_of, ordered, table
from runtime.command_line.units import Text, seconds_ago
from runtime.membership.cluster_client import ClusterClient
from runtime.observation.actor_listing import MOST_ROWS
from runtime.observation.conditions import Condition
from runtime.pools.supervisor import PoolSupervisor, PoolView

COLUMNS = ("name", "what", "size", "members", "draining", "nodes", "problem")


@click.command(
    epilog="Examples:  understudy pools --json        understudy pools --journals "
    "--older-than 30d --prune"
)
@click.option(
    "--journals",
    is_flag=True,
    help="Show instead the journals of maps that the cluster's store keeps: how many items are "
    "done, the bytes, the node whose map works with each, and when it was last used.",
)
@click.option(
    "--older-than",
    callback=seconds_ago,
    help="With --journals: only those not used for 12h or 30d, or since a time such as "
    "2026-11-23T04:30.",
)
@click.option(
    "--remove",
    type=Text(),
    metavar="NAME",
    multiple=True,
    help="With --journals: remove the journal NAME.",
)
@click.option(
    "--prune", is_flag=True, help="With --journals --older-than: remove all that are shown."
)
@click.option("--yes", is_flag=True, help="With --prune: do not ask.")
@cluster_options
def pools(
    chosen: ChosenCluster,
    as_json: bool,
    journals: bool,
    older_than: float | None,
    remove: tuple[str, ...],
    prune: bool,
    yes: bool,
) -> None:
    """Show the pools of a cluster: what their members are, how many there should be and are, and
    on which nodes. Exit status 1 if a node or a pool does not answer, or if a journal was not
    removed.
    """
    if journals:
        journals_of(chosen, older_than, remove, prune=prune, yes=yes, as_json=as_json)
        return
    if older_than is not None or remove or prune or yes:
        raise click.UsageError("--older-than, --remove, --prune and --yes go with --journals.")
    rows, answers = trio.run(_ask, chosen)
    rows = ordered(rows, "name")
    if as_json:
        click.echo(json.dumps({"pools": rows, "silent": answers.silent}, indent=2))
    else:
        click.echo("\n".join(table(COLUMNS, rows)) if rows else _none(answers))
        answers.warn()
    raise SystemExit(1 if answers.silent else 0)


def _none(answers: Answers) -> str:
    return "no pools are open" + (" on the nodes that answered" if answers.silent else "")


async def _ask(chosen: ChosenCluster) -> tuple[list[Row], Answers]:
    async with connect(chosen, "observer") as client:
        return await pools_of(client)


async def pools_of(client: ClusterClient) -> tuple[list[Row], Answers]:
    """The pools of the cluster, each a row. Those that do not answer are noted among the silent."""
    incarnations = {one["name"]: one["incarnation"] for one in client.status["members"]}
    path = import_path(PoolSupervisor)
    wanted = [Condition("class", "=", path).plain()]
    answers = await ask_nodes(
        client, lambda member: inspection(client, member).actors(wanted, "name", MOST_ROWS)
    )
    rows: list[Row] = []

    async def ask(actor: Row) -> None:
        where = Address(
            actor["name"],
            actor["node"],
            incarnations[actor["node"]],
            actor["epoch"],
            path,
            actor["registered"],
        )
        handle: Any = client.endpoint.make_handle(where, PoolSupervisor)
        try:
            view: object = await handle.options(timeout=NODE_SECONDS).view()
        except CallError as error:
            answers.silent[f"{actor['node']}, for pool {actor['name']},"] = why(error)
        else:
            if isinstance(view, PoolView):
                rows.append(_row(actor["name"], view))

    async with trio.open_nursery() as nursery:
        for actor in actors_of(answers):
            nursery.start_soon(ask, actor)
    return rows, answers


def _row(name: str, view: PoolView) -> Row:
    nodes = Counter(member.node for member in view.members)
    return {
        "name": name,
        "what": view.what,
        "size": view.size.text,
        "members": len(view.members),
        "draining": len(view.draining),
        "nodes": ", ".join(f"{node} {count}" for node, count in sorted(nodes.items())),
        "problem": view.problem or None,
    }
