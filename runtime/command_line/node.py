"""`understudy node`: run a node in this terminal, or under a service manager."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypedDict, Unpack

import attrs
import click
import trio

from runtime.announcements import Announcement, local_cluster_at
from runtime.calls.spawnable import checked_spawnable
from runtime.cluster_processes import leaving_on_signals
from runtime.command_line.connect import (
    DEFAULT_ADDRESS,
    DEFAULT_CLUSTER,
    chosen_tls,
    secret_for,
    security_options,
)
from runtime.command_line.imports import import_modules, import_option
from runtime.command_line.log_options import log_format_option
from runtime.command_line.units import Number, PathName, Text, bytes_of
from runtime.environment import SystemEnvironment
from runtime.functions.function_names import hook_path
from runtime.hosting.client_quotas import CLIENT_ACTORS
from runtime.hosting.threads import NODE_THREADS
from runtime.links.encryption import Tls
from runtime.links.keyring import Keyring
from runtime.membership.advertised_address import is_elsewhere
from runtime.membership.stand_by import BLOCKED_LIMIT_SECONDS
from runtime.node import Node
from runtime.node.opening import open_node
from runtime.process_end import process_of_node
from runtime.processes.fork_loop import settle_collector
from runtime.references.manager import OnLeave
from runtime.stderr_writer import is_ready
from runtime.tracing import Tracing


class UnchangedOptions(TypedDict):
    """The options of the command that `open_node` takes as they are."""

    name: str | None
    advertise: str | None
    data_dir: Path | None
    store: str | None
    reference_directory: Path | None
    references_on_leave: OnLeave
    trace_references: bool
    post_mortem: bool
    debuggable: bool
    thread_limit: int
    client_actors: int
    blocked_limit: float
    call_timeout: float | None
    tracing: bool
    on_process_start: str | None
    measured_supervisors: tuple[str, ...]


def _pairs(option: str, what: str, pairs: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise click.UsageError(f"{option} takes KEY={what}, not {pair!r}")
        if key in found:
            raise click.UsageError(f"{option}: {key} is given twice")
        found[key] = value
    return found


def _checked(metrics: str | None) -> str | None:
    if metrics is None:
        return None
    # Here, so that what is wrong with it is one line.
    from runtime.metrics.endpoint import check_metrics

    try:
        check_metrics(metrics, certified=chosen_tls().has_files)
    except ImportError as error:
        raise click.ClickException(str(error)) from None
    except ValueError as error:
        raise click.UsageError(f"--{error}") from None
    return metrics


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


def _spawnable(classes: tuple[str, ...], applications: tuple[str, ...]) -> frozenset[str]:
    """What `--spawnable` and `--app` list. Raises ClickException, in one line."""
    modules = import_modules(applications, "--app")
    try:
        return checked_spawnable([*classes, *modules])
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _check_hook(path: str | None) -> None:
    """Raises UsageError for a function that a call would not run."""
    try:
        hook_path(path)
    except TypeError as error:
        raise click.UsageError(str(error)) from None


def _check_tracing() -> None:
    """Raises ClickException if what traces need is not installed."""
    try:
        Tracing()
    except ModuleNotFoundError as error:
        raise click.ClickException(str(error)) from None


def _check_dashboard() -> None:
    """Raises ClickException if what the pages need is not installed."""
    # Its modules are many, and few nodes serve pages.
    from runtime.command_line.dashboard import check_extra

    check_extra()


def _default_listen(join: str | None, store: str | None) -> str | None:
    """Only a node that founds a cluster must be found at a known address."""
    return None if join is not None or is_elsewhere(store or "") else DEFAULT_ADDRESS


def _local_cluster_at(join: str | None) -> Announcement | None:
    return local_cluster_at(SystemEnvironment(), join) if join is not None else None


def _default_cluster(join: str | None) -> str:
    """That of the local cluster at the address to join, so that its name need not be given."""
    local = _local_cluster_at(join)
    return DEFAULT_CLUSTER if local is None else local.cluster


def _check_places(data_dir: Path | None, join: str | None, store: str | None) -> None:
    """Raises UsageError for options of which only one can say where the store is."""
    if data_dir is not None and (join is not None or store is not None):
        raise click.UsageError(
            "--data-dir is for the node that founds a cluster and keeps its store; leave it out "
            "beside --join or --store"
        )
    if join is not None and store is not None:
        raise click.UsageError(
            "a store leads to its cluster by itself: give --join or --store, not both"
        )


@click.command(epilog="Example:  understudy node --name w1 --join 127.0.0.1:7400")
@click.option("--name", type=Text(), help="Unique among the live nodes; generated if left out.")
@click.option(
    "--join",
    type=Text(),
    metavar="HOST:PORT",
    help="Address of any node of the cluster to join. Default: found a new cluster.",
)
@click.option(
    "--listen",
    type=Text(),
    metavar="HOST:PORT",
    help=f"Address to listen on; 0.0.0.0:PORT for all addresses. Default: {DEFAULT_ADDRESS}, or "
    "any free port for a node that joins; if the cluster or the store is on another machine, "
    "this machine's address on the route to it.",
)
@click.option(
    "--advertise",
    type=Text(),
    metavar="HOST[:PORT]",
    help="Address that other nodes dial, if it differs from --listen: behind mapped ports, or "
    "with several networks.",
)
@click.option(
    "--cluster",
    type=Text(),
    help="The cluster's name. Default: that of the local cluster to join, otherwise understudy.",
)
@click.option(
    "--label",
    multiple=True,
    metavar="KEY=VALUE",
    help="Label for the placement of actors; may be repeated.",
)
@click.option(
    "--resource",
    multiple=True,
    metavar="KEY=NUMBER",
    help="Resource that this node offers to the placement of actors; may be repeated.",
)
@click.option(
    "--data-dir",
    type=PathName(path_type=Path, file_okay=False),
    help="Directory in which a founder keeps the cluster's store; a founder that is restarted on "
    "it continues the cluster. Default: the store is in memory only.",
)
@click.option(
    "--store",
    metavar="etcd://HOST:PORT,...",
    help="Keep the cluster's store in etcd: give it to all nodes, instead of --join.",
)
@click.option(
    "--reference-memory",
    metavar="SIZE",
    default="1G",
    show_default=True,
    help="Memory for referenced values, for example 512M; values beyond it go to disk.",
)
@click.option(
    "--reference-directory",
    type=PathName(path_type=Path, file_okay=False, exists=True),
    help="Directory for referenced values on disk, in files without names. Default: TMPDIR, or "
    "/var/tmp.",
)
@click.option(
    "--references-on-leave",
    type=click.Choice(["move", "lose"]),
    default="move",
    show_default=True,
    help="Referenced values when the node leaves: move them to other nodes, or lose them.",
)
@click.option(
    "--trace-references",
    is_flag=True,
    help="Record the file and line that create each referenced value, for `understudy refs "
    "--where`.",
)
@click.option(
    "--post-mortem",
    is_flag=True,
    help="Keep the frames of the last failures of actors, with their variables as text, for "
    "`understudy debug`.",
)
@click.option(
    "--debuggable",
    is_flag=True,
    help="Keep the frames themselves as well, and let methods wait at a breakpoint(): "
    "`understudy debug` opens pdb. Operators can run any code then: for development.",
)
@click.option(
    "--thread-limit",
    type=click.IntRange(min=1),
    default=NODE_THREADS,
    show_default=True,
    help="How many plain `def` methods of all actors may run at once, each in a thread; others "
    "wait.",
)
@click.option(
    "--spawnable",
    multiple=True,
    metavar="MODULE:CLASS",
    help="Class of actors that operators and clients may start here, by their certificates; may be "
    "repeated. Default: only nodes start actors.",
)
@click.option(
    "--app",
    "applications",
    multiple=True,
    metavar="MODULE",
    help="Module of the application: imported first, and all actor classes that it defines are "
    "--spawnable; may be repeated.",
)
@click.option(
    "--client-actors",
    type=click.IntRange(min=0),
    default=CLIENT_ACTORS,
    show_default=True,
    help="Actors that one client or operator has started and that may live here at once.",
)
@click.option(
    "--blocked-limit",
    type=Number(min=0),
    default=BLOCKED_LIMIT_SECONDS,
    show_default=True,
    help="Seconds for which the node stays a member while its event loop is blocked.",
)
@click.option(
    "--call-timeout",
    type=Number(min=0, min_open=True),
    metavar="SECONDS",
    help="Limit for calls that actors of this node await without a timeout of their own. Default: "
    "no limit.",
)
@click.option(
    "--tracing",
    is_flag=True,
    help="Make OpenTelemetry spans of calls and starts; the SDK is set up by --import or by "
    "opentelemetry-instrument.",
)
@click.option(
    "--on-process-start",
    type=Text(),
    metavar="MODULE:FUNCTION",
    help="Function that each process of an isolated actor calls first, such as to set up an SDK.",
)
@log_format_option
@click.option(
    "--log-memory",
    metavar="SIZE",
    default="1M",
    show_default=True,
    help="Memory for the latest log lines, which `understudy logs` shows; 0 keeps none.",
)
@click.option(
    "--dashboard",
    is_flag=True,
    help="Serve pages about the cluster, from a process of their own: see `understudy dashboard`.",
)
@click.option(
    "--metrics",
    type=Text(),
    metavar="[https://][HOST:]PORT",
    help="Serve /metrics (Prometheus), /healthz and /readyz over HTTP there, to all who can reach "
    "the address; HOST is 127.0.0.1 if left out. With https://, over TLS by --tls-cert, and "
    "/metrics to those with a certificate, too. Needs the extra metrics.",
)
@click.option(
    "--measured-supervisor",
    "measured_supervisors",
    multiple=True,
    metavar="NAME",
    help="Supervisor whose restarts the metrics tell apart; may be repeated.",
)
@import_option
@security_options
@click.option("--json", "as_json", is_flag=True, help="Print where the node listens as JSON.")
def node(
    join: str | None,
    listen: str | None,
    cluster: str | None,
    label: tuple[str, ...],
    resource: tuple[str, ...],
    reference_memory: str,
    spawnable: tuple[str, ...],
    applications: tuple[str, ...],
    log_memory: str,
    dashboard: bool,
    metrics: str | None,
    modules: tuple[str, ...],
    secret_file: Path | None,
    as_json: bool,
    **unchanged: Unpack[UnchangedOptions],
) -> None:
    """Run a node until Ctrl-C, SIGTERM or `understudy stop`: then it drains and leaves; a second
    signal stops it at once.

    The node imports an actor's class when it starts the actor, from the current directory or
    Python's module path. A @message class must be imported before a message of it arrives: by the
    module of the actor's class, or with --import.
    """
    import_modules(modules)
    _check_hook(unchanged["on_process_start"])
    store = unchanged["store"]
    if unchanged["tracing"]:
        _check_tracing()
    _check_places(unchanged["data_dir"], join, store)
    if dashboard:
        _check_dashboard()
    secret = secret_for(join, secret_file)
    opening = open_node(
        join=join,
        listen=listen or _default_listen(join, store),
        cluster=cluster or _default_cluster(join),
        labels=_pairs("--label", "VALUE", label),
        resources=_amounts(resource),
        secret=secret,
        reference_memory=bytes_of("--reference-memory", reference_memory),
        spawnable=_spawnable(spawnable, applications),
        tls=chosen_tls(),
        log_memory=bytes_of("--log-memory", log_memory),
        metrics=_checked(metrics),
        **unchanged,
    )
    beside = _DashboardProcess(secret, chosen_tls(), as_json) if dashboard else None
    scheme = "https" if (metrics or "").startswith("https://") else "http"
    # A local cluster is entered by the addresses that its founder announces, and this node's is
    # among them only a moment after it has joined.
    entrance = join if _local_cluster_at(join) is not None else None
    trio.run(_run, opening, as_json, beside, scheme, entrance)


async def _run(
    opening: AbstractAsyncContextManager[Node],
    as_json: bool,
    dashboard: _DashboardProcess | None,
    scheme: str,
    entrance: str | None,
) -> None:
    """`scheme`: of the URL of the metrics. `entrance`: where others join, if not at this node."""
    async with process_of_node(opening) as opened:
        async with leaving_on_signals(opened), trio.open_nursery() as nursery:
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
                        | ({"metrics": opened.metrics_address} if opened.metrics_address else {})
                    )
                )
            else:
                click.echo(
                    f"node {opened.name} of cluster {opened.cluster} listens on {opened.address}"
                )
                if opened.metrics_address:
                    click.echo(f"metrics: {scheme}://{opened.metrics_address}/metrics")
                click.echo(f"others join with: understudy node --join {entrance or opened.address}")
            if dashboard is not None:
                nursery.start_soon(dashboard.run, opened)
            await opened.asked_to_leave.wait()
            nursery.cancel_scope.cancel()
        if not as_json:
            _tell(f"node {opened.name} drains and leaves; a second Ctrl-C stops it at once")


@attrs.frozen
class _DashboardProcess:
    """The dashboard of this node, in another process, so that it cannot delay the node."""

    secret: Keyring | None
    tls: Tls
    as_json: bool

    async def run(self, opened: Node) -> None:
        """Run it until cancelled. If it ends by itself, that is logged, and the node goes on."""
        tls = self.tls
        command = [
            *(sys.executable, "-m", "runtime.command_line", "dashboard", "--from-node"),
            *("--address", opened.address, "--cluster", opened.cluster),
            *(("--tls", tls.mode) if tls.mode is not None else ()),
            *(
                ("--tls-ca", tls.ca, "--tls-cert", tls.certificate, "--tls-key", tls.key)
                if tls.has_files
                else ()
            ),
            *(("--tls-crl", tls.crl) if tls.crl else ()),
            *(("--tls-map", tls.map) if tls.map else ()),
            *(("--json",) if self.as_json else ()),
        ]
        # The pipe ends with this process, however that ends, and the dashboard with the pipe.
        process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE)
        try:
            assert process.stdin is not None
            try:
                # The secret does not stand among the arguments, which others see.
                secrets = (
                    [one.hex() for one in self.secret.secrets()] if self.secret is not None else []
                )
                await process.stdin.send_all(" ".join(secrets).encode() + b"\n")
            except trio.BrokenResourceError:
                # It has ended already; its status is reported below.
                pass
            status = await process.wait()
            _tell(f"the dashboard has ended with status {status}; the node goes on", err=True)
        finally:
            process.kill()
            # Bounded by the kill above. Without the wait the process would stay a zombie.
            with trio.CancelScope(shield=True):
                await process.wait()


def _tell(text: str, *, err: bool = False) -> None:
    """Print a line, but not into a pipe that is full: the event loop would wait, and the lease
    would end.
    """
    stream = sys.stderr if err else sys.stdout
    try:
        ready = is_ready(stream.fileno())
    except (AttributeError, OSError, ValueError):
        # No file, which never waits.
        ready = True
    if ready:
        click.echo(text, err=err)
