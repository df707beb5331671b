"""`understudy list`: nodes, actors, calls, methods, links, groups, pools, jobs or deaths, filtered
and sorted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import attrs
import click
import trio

from actors.identifiers import NodeId
from runtime.command_line.connect import ChosenCluster, cluster_options, connect
from runtime.command_line.ends import ends_of
from runtime.command_line.node_answers import Answers, ask_nodes, inspection
from runtime.command_line.pools import COLUMNS as POOL_COLUMNS
from runtime.command_line.pools import pools_of
from runtime.command_line.store_lists import (
    GROUP_COLUMNS,
    JOB_COLUMNS,
    elastic_jobs,
    groups_of,
)
from runtime.command_line.tables import Row, actors_of, count_of, ordered, table
from runtime.command_line.units import Number, Text
from runtime.dashboard.call_view import CallView
from runtime.logs.formats import iso
from runtime.membership.cluster_client import ClusterClient
from runtime.observation.actor_listing import COLUMNS as ACTOR_COLUMNS
from runtime.observation.actor_listing import LONGEST_WINDOW
from runtime.observation.conditions import Condition, check_column, parse_condition
from runtime.observation.node_queries import WORDS, ask_for_tree
from runtime.observation.open_calls import read_calls
from runtime.observation.roles import with_roles
from runtime.printable import many

COLUMNS = {
    "nodes": ("name", "state", "incarnation", "pid", "address", "actors", "links", "memory_mib"),
    "actors": ACTOR_COLUMNS,
    "calls": ("actor", "method", "node", "state", "seconds", "left", "caller", "from_node"),
    "methods": (
        *("class", "method", "rate", "p50_ms", "p99_ms", "wait_ms", "turn_ms"),
        *("value", "raised", "cancelled", "not_executed", "unknown"),
    ),
    "links": ("node", "peer", "actor", "connected", "connections", "bytes_received"),
    "groups": GROUP_COLUMNS,
    "pools": POOL_COLUMNS,
    "jobs": JOB_COLUMNS,
    "deaths": ("time", "name", "node", "epoch", "kind", "reason", "supervisor"),
}
SORTED_BY = {
    "nodes": "name",
    "actors": "-waiting",
    "calls": "-seconds",
    "methods": "-rate",
    "links": "node",
    "groups": "name",
    "pools": "name",
    "jobs": "name",
    "deaths": "-time",
}
"""The column that each kind is sorted by, if you choose no other; with `-` the greatest first."""


@attrs.frozen
class Selection:
    """The rows that are asked for."""

    kind: str
    conditions: tuple[Condition, ...]
    sort: str
    limit: int
    seconds: float
    """Of methods: over how long rates and durations are measured."""

    def first(self, rows: list[Row]) -> list[Row]:
        """The chosen rows in their order, at most `limit`."""
        return ordered(rows, self.sort)[: self.limit]


@click.command(
    name="list",
    epilog="Example:  understudy list actors --filter node=w1 --filter 'waiting>10' --sort -served",
)
@click.argument("kind", metavar="KIND", type=click.Choice(list(COLUMNS)))
@click.option(
    "--filter",
    "filters",
    type=Text(),
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
@click.option(
    "--seconds",
    type=Number(min=0.1, max=LONGEST_WINDOW),
    default=2.0,
    show_default=True,
    help="Of methods: the window over which rates and durations are measured.",
)
@cluster_options
def listing(
    kind: str,
    filters: tuple[str, ...],
    sort: str | None,
    limit: int,
    seconds: float,
    chosen: ChosenCluster,
    as_json: bool,
) -> None:
    """List nodes, actors, calls, methods, links, groups, pools, elastic jobs or deaths of a
    cluster. Says how many rows it leaves out, and which nodes did not answer: then the exit status
    is 1.

    Of nodes: memory_mib is the resident memory of the node's process, without those of its
    isolated actors.

    Of methods: rate, p50_ms and p99_ms are calls a second and their durations in milliseconds,
    within the window of --seconds; wait_ms and turn_ms the 99th percentiles of waiting in the
    mailbox and of running. The outcomes are counted since the nodes began to measure: nodes with
    --metrics when they were opened, others at the first question.

    Of jobs: agents are alive, in_round in the present round; silent ones have not renewed their
    lease, and gone ones were in the round when it was complete.
    """
    columns = COLUMNS[kind]
    column = sort or SORTED_BY[kind]
    try:
        check_column(column.removeprefix("-"), columns)
        conditions = tuple(parse_condition(text, columns) for text in filters)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    selection = Selection(kind, conditions, column, limit, seconds)
    first, count, answers = trio.run(_ask, selection, chosen)
    left_out = count - len(first)
    if as_json:
        facts = {
            kind: first,
            "left_out": left_out,
            "left_out_by_nodes": answers.left_out,
            "silent": answers.silent,
            "problems": [*answers.problems, *answers.notes],
        }
        click.echo(json.dumps(facts, indent=2))
    else:
        rows = list(map(with_roles, first)) if kind == "actors" else first
        click.echo("\n".join(table(columns, rows)))
        if left_out:
            click.echo(f"{left_out} more are left out: --limit shows more")
        answers.warn()
    raise SystemExit(answers.status)


async def _ask(wanted: Selection, chosen: ChosenCluster) -> tuple[list[Row], int, Answers]:
    """The rows that are shown, of how many, and who has answered."""
    async with connect(chosen, "observer") as client:
        if wanted.kind == "actors":
            # The nodes choose and sort, so that their answers are short.
            conditions = [condition.plain() for condition in wanted.conditions]
            answers = await ask_nodes(
                client,
                lambda member: inspection(client, member).actors(
                    conditions, wanted.sort, wanted.limit
                ),
            )
            return wanted.first(list(actors_of(answers))), count_of(answers), answers
        rows, answers = await _rows(wanted.kind, client, wanted.seconds)
    rows = [row for row in rows if all(one.holds(row[one.column]) for one in wanted.conditions)]
    return wanted.first(rows), len(rows), answers


async def _rows(kind: str, client: ClusterClient, seconds: float) -> tuple[list[Row], Answers]:
    """All rows of what there are not very many of. `seconds`: see `Selection`."""
    if kind == "methods":
        return await _methods(client, seconds)
    if kind == "calls":
        answers = await ask_nodes(client, lambda member: inspection(client, member).calls())
        return list(_calls(answers)), answers
    if kind == "deaths":
        return await _deaths(client)
    if kind == "pools":
        return await pools_of(client)
    if kind == "groups":
        return await groups_of(client)
    if kind == "jobs":
        return await elastic_jobs(client)
    answers = await ask_nodes(client, lambda member: inspection(client, member).overview())
    return list(_links(answers) if kind == "links" else _nodes(client, answers)), answers


def _nodes(client: ClusterClient, answers: Answers) -> Iterator[Row]:
    for member in client.status["members"]:
        status = answers.by_node.get(member["name"], {})
        yield {
            **{name: member[name] for name in ("name", "state", "incarnation", "pid")},
            "state": member["state"] if status else "silent",
            "address": status.get("address"),
            "actors": status.get("actor_count"),
            "links": len(status["links"]) + status["links_left_out"] if status else None,
            # Nodes of earlier versions do not say it.
            "memory_mib": status.get("memory_mib"),
        }


def _calls(answers: Answers) -> Iterator[Row]:
    for node, report in answers.by_node.items():
        for call in read_calls(node, report):
            caller = None if call.caller is None else ".".join(call.caller)
            yield {**attrs.asdict(call), "caller": caller}
        if report["left_out"]:
            answers.left_out[node] = report["left_out"]


async def _methods(client: ClusterClient, seconds: float) -> tuple[list[Row], Answers]:
    """The methods that are called, from two answers of each node: what came between them."""
    view = CallView()
    incarnations = {one["name"]: one["incarnation"] for one in client.status["members"]}

    async def ask() -> tuple[Answers, list[Row], int]:
        answers = await ask_nodes(client, lambda one: inspection(client, one).statistics())
        found, left_out = view.observe(answers.by_node, incarnations)
        return answers, list(found.values()), left_out

    await ask()
    await trio.sleep(seconds)
    answers, found, left_out = await ask()
    if left_out:
        answers.notes.append(f"{many(left_out, 'more method')} with fewer calls are left out")
    rows = [
        {
            **{name: row[name] for name in COLUMNS["methods"] if name in row},
            **{f"{name}_ms": _milliseconds(row[name]) for name in ("p50", "p99", "wait", "turn")},
        }
        for row in found
    ]
    return rows, answers


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else float(f"{1000 * seconds:.3g}")


def _links(answers: Answers) -> Iterator[Row]:
    answers.thing = "link"
    for node, status in answers.by_node.items():
        if status["links_left_out"]:
            answers.left_out[node] = status["links_left_out"]
        for link in status["links"]:
            # A node of an earlier version does not say which actor a process has.
            yield {"node": node, **link, "actor": link.get("actor") or None}


async def _deaths(client: ClusterClient) -> tuple[list[Row], Answers]:
    """The last deaths that each supervisor remembers; and those of other actors that the nodes
    remember, and that nodes which have ended wrote to the store.
    """
    members = [NodeId(one["name"], one["incarnation"]) for one in client.status["members"]]
    ends: list[dict[str, Any]] = []

    async def ask_for_ends() -> None:
        ends.extend(await ends_of(client))

    async with trio.open_nursery() as nursery:
        # Beside the rest: both wait for nodes, and for a store, that do not answer.
        nursery.start_soon(ask_for_ends)
        names, cluster = client.names, client.status["cluster"]
        tree = await ask_for_tree(client.endpoint, names, members, cluster)
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
    rows += [
        {
            "time": iso(end["time"]),
            **{name: end.get(name) for name in ("name", "node", "epoch", "kind", "reason")},
            "supervisor": None,
        }
        for end in ends
        if (end["name"], end.get("epoch")) not in known
    ]
    # The ends of actors without a supervisor are those of `ends`, however many actors there are.
    notes = [note for note in tree.left_out if not note.endswith(WORDS["loose"])]
    return rows, Answers(problems=list(tree.problems), notes=notes)
