"""`understudy node`: run a node in this terminal, or under a service manager."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click
import trio

from runtime.command_line.connect import DEFAULT_ADDRESS, secret_of, secret_option
from runtime.local_cluster import leaving_on_signals
from runtime.opening import open_node
from runtime.processes.collector import settle_collector


def _labels(pairs: tuple[str, ...]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise click.UsageError(f"--label takes KEY=VALUE, not {pair!r}")
        labels[key] = value
    return labels


@click.command(epilog="Example:  understudy node --name w1 --join 127.0.0.1:7400")
@click.option("--name", help="Unique among the live nodes; generated if left out.")
@click.option("--join", metavar="HOST:PORT", help="Any node of the cluster to join; left out, this node founds a new cluster.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help=f"Where others reach this node. Default: {DEFAULT_ADDRESS} for a founder, otherwise any free port.",
)
@click.option("--cluster", default="understudy", show_default=True, help="The cluster's name.")
@click.option("--label", multiple=True, metavar="KEY=VALUE", help="For placing actors; may be repeated.")
@secret_option
@click.option("--json", "as_json", is_flag=True, help="Print where the node listens as JSON.")
def node(
    name: str | None, join: str | None, listen: str | None, cluster: str, label: tuple[str, ...], secret_file: Path | None, as_json: bool
) -> None:
    """Run a node until Ctrl-C, SIGTERM or `understudy stop`: then it drains and leaves; a second signal stops it at once.

    Actor classes are imported from the current directory and wherever Python finds modules.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    where = listen or (DEFAULT_ADDRESS if join is None else "127.0.0.1:0")
    trio.run(_run, name, join, where, cluster, _labels(label), secret_of(secret_file), as_json)


async def _run(
    name: str | None, join: str | None, listen: str, cluster: str, labels: dict[str, str], secret: bytes | None, as_json: bool
) -> None:
    async with open_node(name, join=join, listen=listen, cluster=cluster, labels=labels, secret=secret) as opened:
        async with leaving_on_signals(opened):
            settle_collector()
            if as_json:
                click.echo(
                    json.dumps({"node": opened.name, "incarnation": opened.incarnation, "address": opened.address, "cluster": cluster})
                )
            else:
                click.echo(f"node {opened.name} of cluster {cluster} listens on {opened.address}")
                click.echo(f"others join with: understudy node --join {opened.address}")
            await opened.asked_to_leave.wait()
        if not as_json:
            click.echo(f"node {opened.name} drains and leaves; a second Ctrl-C stops it at once")
