"""`understudy status`: who is in a cluster and what they run."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import attrs
import click
import trio

from actors.errors import CallError, StoreError
from runtime.command_line.connect import ChosenCluster, cluster_options, connect
from runtime.command_line.units import age, size
from runtime.environment import SystemEnvironment
from runtime.logs.archive import archived_nodes
from runtime.membership.cluster_client import ClusterClient
from runtime.observation.roles import with_roles
from runtime.printable import many, plain

NODE_SECONDS = 3.0
"""How long a node may take to answer."""

LATELY_SECONDS = 3600.0
MOST_ENDED = 5
"""Nodes are shown that have ended so lately, or then wrote their last lines, and no more than
these.
"""


@click.command(epilog="Example:  understudy status --address 127.0.0.1:7400 --json")
@cluster_options
def status(chosen: ChosenCluster, as_json: bool) -> None:
    """Show the nodes of a cluster, their actors and links. Says which nodes have ended in the last
    hour. Exit status 1 if a node or the store does not answer.
    """
    facts = trio.run(_ask, chosen)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        print_status(facts)
    well = all(node["answers"] for node in facts["nodes"]) and not facts["store"]["away"]
    raise SystemExit(0 if well else 1)


async def _ask(chosen: ChosenCluster) -> dict[str, Any]:
    nodes: dict[str, dict[str, Any]] = {}
    ended: list[dict[str, Any]] = []
    async with connect(chosen, "observer") as client:

        async def ask(member: dict[str, Any]) -> None:
            service = client.endpoint.node_service(member["name"], member["incarnation"])
            try:
                answer: dict[str, Any] = await service.options(timeout=NODE_SECONDS).status()
            except CallError as error:
                nodes[member["name"]] = {**member, "answers": False, "problem": str(error)}
            else:
                nodes[member["name"]] = {**member, **answer, "answers": True}

        async with trio.open_nursery() as nursery:
            nursery.start_soon(_add_ended, client, ended)
            for member in client.status["members"]:
                nursery.start_soon(ask, member)
        store = client.status["store"]
        keeper = nodes.get(store["node"]) if store["kind"] == "embedded" else None
        # The node that this command is connected to may not have noticed yet.
        silent = keeper is not None and not keeper["answers"]
        return {
            "cluster": chosen.name,
            "time": SystemEnvironment().wall_time(),
            "store": {**store, "away": store["away"] or silent},
            "nodes": [nodes[name] for name in sorted(nodes)],
            "ended": ended,
        }


async def _add_ended(client: ClusterClient, ended: list[dict[str, Any]]) -> None:
    """Add the nodes that have ended lately, the latest first, as far as the store knows of them: by
    what another node wrote of their end, or by their own last lines.
    """
    now = SystemEnvironment().wall_time()
    alive = {(one["name"], one["incarnation"]) for one in client.status["members"]}
    with trio.move_on_after(NODE_SECONDS), suppress(StoreError, CallError):
        for one in sorted(await archived_nodes(client.store), key=lambda one: -one.latest):
            if tuple(one.node) not in alive and now - one.latest < LATELY_SECONDS:
                name, incarnation = one.node
                ended.append(
                    {
                        "name": name,
                        "incarnation": incarnation,
                        "until": one.until,
                        "end": None if one.end is None else attrs.asdict(one.end),
                    }
                )
    del ended[MOST_ENDED:]


def print_status(facts: dict[str, Any]) -> None:
    """Print what `status` has found, for people."""
    store = facts["store"]
    where = (
        f"at {store['address'] or 'an address that needs a user or certificates'}"
        if store["kind"] == "etcd"
        else f"on {plain(store['node'])}"
    )
    health = click.style("not reachable", fg="red") if store["away"] else "reachable"
    click.echo(
        f"cluster {facts['cluster']}: {many(len(facts['nodes']), 'node')}, store {store['kind']} "
        f"{where}, {health}"
    )
    if store["away"]:
        click.echo(f"  {_of_store(store)}")
    states = [node["state"] if node["answers"] else "does not answer" for node in facts["nodes"]]
    width = max(map(len, states), default=0)
    for node, state in zip(facts["nodes"], states, strict=True):
        joined = age(facts["time"] - node["joined"])
        click.echo(
            f"  {plain(node['name']):<16} {plain(state):<{max(8, width)}} {joined:>8}  incarnation "
            f"{node['incarnation']:<6} pid {node['pid']:<8} {plain(_tcp(node))}"
        )
        for actor in map(with_roles, node.get("actors", [])):
            load = f"waiting {actor['waiting']:<4} served {actor['served']}" + (
                f" pid {actor['pid']}" if "pid" in actor else ""
            )
            click.echo(
                f"    {plain(actor['name']):<24} {plain(actor['class']):<40} epoch "
                f"{actor['epoch']:<6} {load}"
            )
        if left_out := node.get("actors_left_out", 0):
            click.echo(f"    and {left_out:,} more actors: `understudy list actors` shows them")
        kept = node.get("references", {})
        if any(kept.get(what) for what in ("owned", "held", "fetched_bytes")):
            click.echo(f"    references: {_references(kept)}")
    for one in facts["ended"]:
        click.echo(_of_ended(one, facts["time"]))


def _of_store(store: dict[str, Any]) -> str:
    """What it means that the store does not answer, and what to ask next."""
    asks = (
        f"understudy stack {plain(store['node'])}"
        if store["kind"] == "embedded"
        else f"understudy doctor --store {store['address'] or 'etcd://...'}"
    )
    return (
        "named actors pause until the store answers, and end with their nodes if it has let a "
        f"lease end; `{asks}` says more"
    )


def _of_ended(one: dict[str, Any], now: float) -> str:
    """What is known of a node that has ended."""

    def ago(then: float) -> str:
        return f"{age(max(0.0, now - then)).strip()} ago"

    name, end = plain(one["name"]), one["end"]
    parts = [f"ended: node {name}, incarnation {one['incarnation']}"]
    if end is not None:
        parts.append(f"{end['how']} {ago(end['at'])}" + (end["reason"] and f": {end['reason']}"))
    if one["until"] is None:
        parts.append("it wrote no lines")
    else:
        parts.append(f"it wrote its last lines {ago(one['until'])}: `understudy logs {name}`")
    return plain("; ".join(parts))


def _references(kept: dict[str, int]) -> str:
    where = f"{size(kept['memory'])} of {size(kept['memory_limit'])} in memory" + (
        f", {size(kept['disk'])} on disk" if kept["disk"] else ""
    )
    owned = f"owns {many(kept['owned'], 'value')} of {size(kept['bytes'])} ({where})"
    return (
        f"{owned}, holds {kept['held']:,} of other nodes, keeps {size(kept['fetched_bytes'])} "
        "of fetched values"
    )


def _tcp(node: dict[str, Any]) -> str:
    return next(
        (where.removeprefix("tcp:") for where in node["addresses"] if where.startswith("tcp:")), ""
    )
