"""`understudy refs`: which values the nodes of a cluster keep for references, and who holds
them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click
import trio

from runtime.command_line.connect import ChosenCluster, cluster_options, connect
from runtime.command_line.node_answers import NODE_SECONDS, Member, ask_nodes, no_such_node
from runtime.command_line.units import age, size
from runtime.printable import many, plain
from runtime.references.inspection import (
    MOST_LISTED,
    ListedSum,
    ListedValue,
    Listing,
    OwnerTotals,
)

MANY = 20
"""More values than that are easier to read added up."""


@click.command(epilog="Example:  understudy refs --node w1 --where")
@click.option("--node", metavar="NAME", help="Only the values of this node.")
@click.option(
    "--where",
    is_flag=True,
    help="Show file and line of the program that made each value, from nodes that trace "
    "references.",
)
@click.option(
    "--sums",
    "summed",
    is_flag=True,
    help="Add up values of the same owner, maker, holders and place: a leak is one line.",
)
@cluster_options
def refs(node: str | None, where: bool, summed: bool, chosen: ChosenCluster, as_json: bool) -> None:
    """Show the values that nodes keep because references to them exist, the largest first. Exit
    status 1 if a node does not answer.
    """
    listing = trio.run(_ask, node, chosen)
    if as_json:
        click.echo(
            json.dumps({"cluster": chosen.name, **listing.facts(node, summed=summed)}, indent=2)
        )
    else:
        click.echo("\n".join(_lines(listing, node, chosen.name, where=where, summed=summed)))
    raise SystemExit(0 if all(not owner.problem for owner in listing.owners()) else 1)


async def _ask(node: str | None, chosen: ChosenCluster) -> Listing:
    """Ask all nodes, also for the values of one: only the node that made a value knows where it was
    made.
    """
    listing = Listing()
    async with connect(chosen, "observer") as client:
        members = client.status["members"]
        if node is not None and all(member["name"] != node for member in members):
            raise no_such_node(node, members)

        async def ask(member: Member) -> dict[str, Any]:
            service = client.endpoint.reference_service(member["name"], member["incarnation"])
            said: dict[str, Any] = await service.options(timeout=NODE_SECONDS).listing(MOST_LISTED)
            return said

        answers = await ask_nodes(client, ask)
    for name, report in answers.by_node.items():
        listing.add(name, report)
    for name, reason in answers.silent.items():
        listing.silent(name, reason)
    return listing


def _lines(
    listing: Listing, node: str | None, cluster: str, *, where: bool, summed: bool
) -> list[str]:
    owners = listing.owners(node)
    answering = [owner for owner in owners if not owner.problem]
    values = listing.values(node)
    total = (
        f"{many(sum(owner.values for owner in answering), 'value')}, "
        f"{size(sum(owner.bytes for owner in answering))}"
    )
    lines = [f"cluster {cluster}: {total}"]
    if values:
        table = _sums(listing.sums(node), where=where) if summed else _table(values, where=where)
        lines += [f"  {line}" for line in _columns(table)]
    if len(values) > MANY and not summed:
        lines.append("--sums adds up the values of one origin: a leak is one line")
    lines += [f"{plain(owner.node)}: {_total(owner)}" for owner in answering]
    # Also those that were not asked for: they may know where values were made.
    lines += [
        click.style(plain(f"{owner.node}: does not answer: {owner.problem}"), fg="red")
        for owner in listing.owners()
        if owner.problem
    ]
    if where and answering and not any(value.site for value in values):
        lines.append(
            "no node notes where values are made: start nodes with --trace-references, or "
            "open_node(trace_references=True)"
        )
    return lines


def _table(values: Sequence[ListedValue], *, where: bool) -> list[list[str]]:
    rows = [["owner", "reference", "size", "age", "held by", "made by", "where"]]
    rows += [
        [
            value.owner,
            value.reference,
            size(value.size) if value.size is not None else value.state,
            age(value.age),
            _holders(value.holders),
            value.method,
            value.site or "-",
        ]
        for value in values
    ]
    return rows if where else [row[:-1] for row in rows]


def _sums(sums: Sequence[ListedSum], *, where: bool) -> list[list[str]]:
    rows = [["owner", "values", "size", "oldest", "held by", "made by", "where"]]
    rows += [
        [
            one.owner,
            f"{one.values:,}",
            size(one.bytes),
            age(one.age),
            _holders(one.holders),
            one.method,
            one.site or "-",
        ]
        for one in sums
    ]
    return rows if where else [row[:-1] for row in rows]


def _holders(names: Sequence[str]) -> str:
    return ",".join(names) or "its owner"


def _total(owner: OwnerTotals) -> str:
    text = f"{many(owner.values, 'value')}, {size(owner.bytes)}"
    if owner.left_out:
        text += (
            f"; {many(owner.left_out, 'smaller one')} of {size(owner.left_out_bytes)} in all "
            "left out above"
        )
    return text


def _columns(rows: list[list[str]]) -> list[str]:
    shown = [list(map(plain, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in shown
    ]
