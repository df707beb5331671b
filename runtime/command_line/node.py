"""`understudy node`: run a node in this terminal, or under a service manager."""

from __future__ import annotations

import json
import math
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import click
import trio

from runtime.command_line.connect import (
    DEFAULT_ADDRESS,
    DEFAULT_CLUSTER,
    local_cluster_at,
    secret_for,
    secret_option,
)
from runtime.command_line.imports import import_modules, import_option
from runtime.command_line.units import bytes_of
from runtime.hosting.threads import NODE_THREADS
from runtime.local_cluster import leaving_on_signals
from runtime.membership.advertised_address import is_elsewhere
from runtime.membership.stand_by import BLOCKED_LIMIT_SECONDS
from runtime.node import Node
from runtime.node.opening import open_node
from runtime.processes.fork_loop import settle_collector
from runtime.references.manager import OnLeave


def _pairs(option: str, what: str, pairs: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise click.UsageError(f"{option} takes KEY={what}, not {pair!r}")
        found[key] = value
    return found


def _amounts(pairs: tuple[str, ...]) -> dict[str, float]:
    amounts: dict[str, float] = {}
    for key, text in _pairs("--resource", "NUMBER", pairs).items():
        try:
            amounts[key] = float(text)
        except ValueError:
            amounts[key] = math.nan
        if not 0 <= amounts[key] < math.inf:
            raise click.UsageError(f"--resource takes KEY=NUMBER, zero or more, not {key}={text}")
    return amounts


@click.command(epilog="Example:  understudy node --name w1 --join 127.0.0.1:7400")
@click.option("--name", help="Unique among the live nodes; generated if left out.")
@click.option(
    "--join",
    metavar="HOST:PORT",
    help="Any node of the cluster to join; left out, this node founds a new cluster.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help=f"Where this node listens; 0.0.0.0:PORT for all addresses. Default: {DEFAULT_ADDRESS}, "
    "or any free port if it joins "
    "others; and if these, or the store, are on another machine, this machine's address on the "
    "way there.",
)
@click.option(
    "--advertise",
    metavar="HOST[:PORT]",
    help="What others are told to dial, where it is not what this node listens on: behind mapped "
    "ports, or with several networks.",
)
@click.option(
    "--cluster",
    help="The cluster's name. Default: that of the local cluster that is joined, or else "
    "understudy.",
)
@click.option(
    "--label", multiple=True, metavar="KEY=VALUE", help="For placing actors; may be repeated."
)
@click.option(
    "--resource",
    multiple=True,
    metavar="KEY=NUMBER",
    help="What this node has, for others to see; may be repeated.",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where a founder keeps the cluster's store: started again on it, it comes back. Left "
    "out, the store is in memory.",
)
@click.option(
    "--store",
    metavar="etcd://HOST:PORT,...",
    help="Keep the cluster's store in etcd; all nodes are given it, none needs --join.",
)
@click.option(
    "--reference-memory",
    metavar="SIZE",
    default="1G",
    show_default=True,
    help="Memory that referenced values may take, for example 512M; what is beyond goes to disk.",
)
@click.option(
    "--reference-directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Where it goes, into files without names. Default: TMPDIR, or /var/tmp.",
)
@click.option(
    "--references-on-leave",
    type=click.Choice(["move", "lose"]),
    default="move",
    show_default=True,
    help="What happens to referenced values when the node leaves: other nodes take them, or they "
    "end with it.",
)
@click.option(
    "--trace-references",
    is_flag=True,
    help="Note where in the program referenced values are made, for `understudy refs --where`.",
)
@click.option(
    "--thread-limit",
    type=click.IntRange(min=1),
    default=NODE_THREADS,
    show_default=True,
    help="Plain `def` methods of all actors that may run at once, each in a thread; more wait.",
)
@click.option(
    "--blocked-limit",
    type=click.FloatRange(min=0),
    default=BLOCKED_LIMIT_SECONDS,
    show_default=True,
    help="Seconds for which the node stays a member while its event loop is blocked.",
)
@import_option
@secret_option
@click.option("--json", "as_json", is_flag=True, help="Print where the node listens as JSON.")
def node(
    name: str | None,
    join: str | None,
    listen: str | None,
    advertise: str | None,
    cluster: str | None,
    label: tuple[str, ...],
    resource: tuple[str, ...],
    data_dir: Path | None,
    store: str | None,
    reference_memory: str,
    reference_directory: Path | None,
    references_on_leave: OnLeave,
    trace_references: bool,
    thread_limit: int,
    blocked_limit: float,
    modules: tuple[str, ...],
    secret_file: Path | None,
    as_json: bool,
) -> None:
    """Run a node until Ctrl-C, SIGTERM or `understudy stop`: then it drains and leaves; a second
    signal stops it at once.

    Actor classes are imported from the current directory and wherever Python finds modules, when an
    actor of theirs is started. A @message class must have been imported before one arrives: by the
    module of the actor's class, or with --import.
    """
    import_modules(modules)
    if data_dir is not None and (join is not None or store is not None):
        raise click.UsageError(
            "--data-dir is for the node that founds a cluster and keeps its store; leave it out "
            "beside --join or --store"
        )
    if join is not None and store is not None:
        raise click.UsageError(
            "a store leads to its cluster by itself: give --join or --store, not both"
        )
    local = local_cluster_at(join) if join is not None else None
    opening = open_node(
        name,
        join=join,
        listen=listen
        or (None if join is not None or is_elsewhere(store or "") else DEFAULT_ADDRESS),
        advertise=advertise,
        cluster=cluster or (local.cluster if local is not None else DEFAULT_CLUSTER),
        labels=_pairs("--label", "VALUE", label),
        resources=_amounts(resource),
        data_dir=data_dir,
        store=store,
        secret=secret_for(join, secret_file),
        reference_memory=bytes_of("--reference-memory", reference_memory),
        reference_directory=reference_directory,
        references_on_leave=references_on_leave,
        trace_references=trace_references,
        thread_limit=thread_limit,
        blocked_limit=blocked_limit,
    )
    trio.run(_run, opening, as_json)


async def _run(opening: AbstractAsyncContextManager[Node], as_json: bool) -> None:
    async with opening as opened:
        async with leaving_on_signals(opened):
            settle_collector()
            if as_json:
                click.echo(
                    json.dumps(
                        {
                            "node": opened.name,
                            "incarnation": opened.incarnation,
                            "address": opened.address,
                            "cluster": opened.cluster,
                        }
                    )
                )
            else:
                click.echo(
                    f"node {opened.name} of cluster {opened.cluster} listens on {opened.address}"
                )
                click.echo(f"others join with: understudy node --join {opened.address}")
            await opened.asked_to_leave.wait()
        if not as_json:
            click.echo(f"node {opened.name} drains and leaves; a second Ctrl-C stops it at once")
