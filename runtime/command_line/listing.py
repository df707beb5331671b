"""`understudy list`: nodes, actors, calls, links, pools or deaths, filtered and sorted."""

from __future__ import annotations

import fnmatch
import json
import operator
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import click
import trio

from runtime.command_line.asking import Answers, ask_nodes, inspection, node_status
from runtime.command_line.connect import cluster_options, connect
from runtime.command_line.ends import ends_of
from runtime.command_line.pools import COLUMNS as POOL_COLUMNS
from runtime.command_line.pools import pools_of
from runtime.command_line.tables import Row, actors_of, ordered, shown, table
from runtime.identifiers import NodeId
from runtime.logs.formats import iso
from runtime.membership.cluster_client import ClusterClient
from runtime.observation.node_queries import ask_for_tree
from runtime.observation.open_calls import read_calls

COLUMNS = {
    "nodes": ("name", "state", "incarnation", "pid", "address", "actors", "links"),
    "actors": ("name", "node", "class", "epoch", "waiting", "running", "served", "supervisor"),
    "calls": ("actor", "method", "node", "state", "seconds", "left", "caller", "from_node"),
    "links": ("node", "peer", "connected", "connections", "bytes_received"),
    "pools": POOL_COLUMNS,
    "deaths": ("time", "name", "node", "epoch", "kind", "reason", "supervisor"),
}
SORTED_BY = {
    "nodes": "name",
    "actors": "-waiting",
    "calls": "-seconds",
    "links": "node",
    "pools": "name",
    "deaths": "-time",
}
"""The column that each kind is sorted by, if you choose no other; with `-` the greatest first."""

COMPARISONS: tuple[tuple[str, Callable[[Any, Any], bool]], ...] = (
    ("!=", lambda found, wanted: not _equal(found, wanted)),
    (">=", operator.ge),
    ("<=", operator.le),
    ("=", lambda found, wanted: _equal(found, wanted)),
    (">", operator.gt),
    ("<", operator.lt),
)


@click.command(
    name="list",
    epilog="Example:  understudy list actors --filter node=w1 --filter 'waiting>10' --sort -served",
)
@click.argument("kind", type=click.Choice(list(COLUMNS)))
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="COLUMN=VALUE",
    help="Only rows in which this holds: =, != (with * and ? as wildcards), >, <, >= or <=. May be "
    "repeated.",
)
@click.option(
    "--sort", metavar="COLUMN", help="Sort by this column; -COLUMN has the greatest first."
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="The most rows to show.",
)
@cluster_options
def listing(
    kind: str,
    filters: tuple[str, ...],
    sort: str | None,
    limit: int,
    address: str,
    cluster: str,
    secret_file: Path | None,
    as_json: bool,
) -> None:
    """List nodes, actors, calls, links, pools or deaths of a cluster. Says how many rows it leaves
    out, and which nodes did not answer: then the exit status is 1.
    """
    columns = COLUMNS[kind]
    holds = [_condition(text, columns) for text in filters]
    column = sort or SORTED_BY[kind]
    if column.removeprefix("-") not in columns:
        raise click.UsageError(f"there is no column {column!r}; choose one of {', '.join(columns)}")
    rows, answers = trio.run(_ask, kind, address, cluster, secret_file)
    chosen = ordered([row for row in rows if all(test(row) for test in holds)], column)
    first, left_out = chosen[:limit], max(0, len(chosen) - limit)
    if as_json:
        facts = {
            kind: first,
            "left_out": left_out,
            "left_out_by_nodes": answers.left_out,
            "silent": answers.silent,
        }
        click.echo(json.dumps(facts, indent=2))
    else:
        click.echo("\n".join(table(columns, first)))
        if left_out:
            click.echo(f"{left_out} more are left out: --limit shows more")
        answers.warn()
    raise SystemExit(1 if answers.silent else 0)


def _condition(text: str, columns: tuple[str, ...]) -> Callable[[Row], bool]:
    """The test that `--filter` asks for. Raises UsageError."""
    split = next(
        ((*text.partition(sign), compare) for sign, compare in COMPARISONS if sign in text), None
    )
    if split is None:
        raise click.UsageError(f"--filter takes COLUMN=VALUE, for example node=w1, not {text!r}")
    name, sign, wanted, compare = split
    if name not in columns:
        raise click.UsageError(f"there is no column {name!r}; choose one of {', '.join(columns)}")
    if sign in ("=", "!="):
        return lambda row: compare(row[name], wanted)
    try:
        number = float(wanted)
    except ValueError:
        raise click.UsageError(f"--filter {text!r}: {wanted!r} is no number") from None
    return lambda row: isinstance(row[name], int | float) and compare(row[name], number)


def _equal(found: object, wanted: str) -> bool:
    return fnmatch.fnmatchcase(shown(found), wanted) or str(found) == wanted


async def _ask(
    kind: str, address: str, cluster: str, secret_file: Path | None
) -> tuple[list[Row], Answers]:
    async with connect(address, cluster, secret_file) as client:
        if kind == "calls":
            answers = await ask_nodes(client, lambda member: inspection(client, member).calls())
            return list(_calls(answers)), answers
        if kind == "deaths":
            return await _deaths(client)
        answers = await ask_nodes(client, lambda member: node_status(client, member))
        if kind == "nodes":
            return list(_nodes(client, answers)), answers
        if kind == "pools":
            return await pools_of(client, answers), answers
        if kind == "links":
            return list(_links(answers)), answers
        return list(actors_of(answers)), answers


def _nodes(client: ClusterClient, answers: Answers) -> Iterator[Row]:
    for member in client.status["members"]:
        status = answers.by_node.get(member["name"], {})
        yield {
            **{name: member[name] for name in ("name", "state", "incarnation", "pid")},
            "state": member["state"] if status else "silent",
            "address": status.get("address"),
            "actors": len(status["actors"]) if status else None,
            "links": len(status["links"]) if status else None,
        }


def _calls(answers: Answers) -> Iterator[Row]:
    for node, told in answers.by_node.items():
        for call in read_calls(node, told):
            caller = None if call.caller is None else ".".join(call.caller)
            yield {**attrs.asdict(call), "caller": caller}
        if told["left_out"]:
            answers.left_out[node] = told["left_out"]


def _links(answers: Answers) -> Iterator[Row]:
    for node, status in answers.by_node.items():
        for link in status["links"]:
            yield {"node": node, **link}


async def _deaths(client: ClusterClient) -> tuple[list[Row], Answers]:
    """The last deaths that each supervisor remembers; and those of other actors that the nodes
    remember, and that nodes which have ended wrote to the store.
    """
    members = [NodeId(one["name"], one["incarnation"]) for one in client.status["members"]]
    tree = await ask_for_tree(client.endpoint, client.names, members, client.status["cluster"])
    rows = [
        {
            "time": datetime.fromtimestamp(death.at, UTC).isoformat(timespec="milliseconds"),
            "name": death.name,
            "node": death.node,
            "epoch": death.epoch,
            "kind": death.reason.kind,
            "reason": death.reason.text,
            "supervisor": branch.name,
        }
        for branch in tree.walk()
        for death in branch.deaths
    ]
    known = {(row["name"], row["epoch"]) for row in rows}
    ends = await ends_of(client)
    rows += [
        {
            "time": iso(end["time"]),
            **{name: end.get(name) for name in ("name", "node", "epoch", "kind", "reason")},
            "supervisor": None,
        }
        for end in ends
        if (end["name"], end.get("epoch")) not in known
    ]
    return rows, Answers(silent=dict.fromkeys(tree.problems, ""))
