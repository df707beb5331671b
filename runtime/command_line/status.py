"""`understudy status`: who is in a cluster and what they run."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import trio

from actors.errors import CallError, StoreError
from runtime.command_line.connect import cluster_options, connect
from runtime.command_line.units import age, size
from runtime.environment import SystemEnvironment
from runtime.logs.archive import archived_nodes
from runtime.membership.cluster_client import ClusterClient
from runtime.printable import many, plain

NODE_SECONDS = 3.0
"""How long a node may take to answer."""

LATELY_SECONDS = 3600.0
MOST_ENDED = 5
"""Nodes that have ended are shown that wrote their last lines so lately, and no more than these."""


@click.command(epilog="Example:  understudy status --address 127.0.0.1:7400 --json")
@cluster_options
def status(address: str, cluster: str, secret_file: Path | None, as_json: bool) -> None:
    """Show the nodes of a cluster, their actors and links. Says which nodes have ended in the last
    hour. Exit status 1 if a node does not answer.
    """
    facts = trio.run(_ask, address, cluster, secret_file)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        _print(facts)
    raise SystemExit(0 if all(node["answers"] for node in facts["nodes"]) else 1)


async def _ask(address: str, cluster: str, secret_file: Path | None) -> dict[str, Any]:
    nodes: dict[str, dict[str, Any]] = {}
    ended: list[dict[str, Any]] = []
    async with connect(address, cluster, secret_file, "observer") as client:

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
            "cluster": cluster,
            "time": SystemEnvironment().wall_time(),
            "store": {**store, "away": store["away"] or silent},
            "nodes": [nodes[name] for name in sorted(nodes)],
            "ended": ended,
        }


async def _add_ended(client: ClusterClient, ended: list[dict[str, Any]]) -> None:
    """Add the nodes that have ended lately, the latest first, as far as the store knows of them by
    their last lines.
    """
    now = SystemEnvironment().wall_time()
    alive = {(one["name"], one["incarnation"]) for one in client.status["members"]}
    with trio.move_on_after(NODE_SECONDS), suppress(StoreError, CallError):
        for one in reversed(await archived_nodes(client.store)):
            if tuple(one.node) not in alive and now - one.until < LATELY_SECONDS:
                name, incarnation = one.node
                ended.append({"name": name, "incarnation": incarnation, "until": one.until})
    del ended[MOST_ENDED:]


def _print(facts: dict[str, Any]) -> None:
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
    states = [node["state"] if node["answers"] else "does not answer" for node in facts["nodes"]]
    width = max(map(len, states), default=0)
    for node, state in zip(facts["nodes"], states, strict=True):
        joined = age(facts["time"] - node["joined"])
        click.echo(
            f"  {plain(node['name']):<16} {plain(state):<{max(8, width)}} {joined:>8}  incarnation "
            f"{node['incarnation']:<6} pid {node['pid']:<8} {plain(_tcp(node))}"
        )
        for actor in node.get("actors", []):
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
        name, heard = plain(one["name"]), age(max(0.0, facts["time"] - one["until"]))
        click.echo(
            f"ended: node {name}, incarnation {one['incarnation']}; it wrote its last lines "
            f"{heard.strip()} ago: `understudy logs {name}`"
        )


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
