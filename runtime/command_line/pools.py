"""`understudy pools`: the pools of a cluster, their sizes and where their members are."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import click
import trio

from actors.errors import CallError, StoreError
from actors.messages import import_path
from actors.method import Address
from runtime.command_line.asking import NODE_SECONDS, Answers, ask_nodes, node_status, why
from runtime.command_line.connect import cluster_options, connect
from runtime.command_line.tables import Row, actors_of, ordered, table
from runtime.membership.cluster_client import ClusterClient
from runtime.pools.journal_list import list_journals
from runtime.pools.supervisor import PoolSupervisor, PoolView

COLUMNS = ("name", "what", "size", "members", "draining", "nodes", "problem")

JOURNAL_COLUMNS = ("name", "what", "items", "size", "driver")


@click.command(epilog="Example:  understudy pools --json")
@click.option(
    "--journals",
    is_flag=True,
    help="Show instead the journals of maps that the cluster's store keeps: how many items are "
    "done, the bytes, and the node whose map works with each.",
)
@cluster_options
def pools(
    address: str, cluster: str, secret_file: Path | None, as_json: bool, journals: bool
) -> None:
    """Show the pools of a cluster: what their members are, how many there should be and are, and
    on which nodes. Exit status 1 if a node or a pool does not answer.
    """
    if journals:
        _show_journals(trio.run(_ask_journals, address, cluster, secret_file), as_json)
        return
    rows, answers = trio.run(_ask, address, cluster, secret_file)
    rows = ordered(rows, "name")
    if as_json:
        click.echo(json.dumps({"pools": rows, "silent": answers.silent}, indent=2))
    else:
        click.echo("\n".join(table(COLUMNS, rows)) if rows else "no pools are open")
        answers.warn()
    raise SystemExit(1 if answers.silent else 0)


def _show_journals(rows: list[Row], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"journals": rows}, indent=2))
    else:
        click.echo("\n".join(table(JOURNAL_COLUMNS, rows)) if rows else "no journals are kept")


async def _ask_journals(address: str, cluster: str, secret_file: Path | None) -> list[Row]:
    async with connect(address, cluster, secret_file) as client:
        try:
            return [attrs.asdict(one) for one in await list_journals(client.store)]
        except (StoreError, CallError) as error:
            raise click.ClickException(f"the journals were not listed: {error}") from None


async def _ask(address: str, cluster: str, secret_file: Path | None) -> tuple[list[Row], Answers]:
    async with connect(address, cluster, secret_file) as client:
        answers = await ask_nodes(client, lambda member: node_status(client, member))
        return await pools_of(client, answers), answers


async def pools_of(client: ClusterClient, answers: Answers) -> list[Row]:
    """The pools whose supervisors are among the actors that nodes have told, each a row. Those that
    do not answer are noted among the silent.
    """
    incarnations = {one["name"]: one["incarnation"] for one in client.status["members"]}
    path = import_path(PoolSupervisor)
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
            if actor["class"] == path:
                nursery.start_soon(ask, actor)
    return rows


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
