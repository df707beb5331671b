"""`understudy dashboard`: pages about a running cluster, for people."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import click
import trio

from runtime.command_line.connect import (
    ChosenCluster,
    chosen_role,
    cluster_options,
    security_for,
    warn_of_role,
)
from runtime.command_line.units import Text
from runtime.dashboard.application import DashboardApplication
from runtime.dashboard.sampler import Sampler
from runtime.environment import SystemEnvironment, host_identity, raise_alone
from runtime.gateway.server import ServerLimits, serve
from runtime.links.encryption import system_network
from runtime.links.transports import is_loopback, split_host_port
from runtime.membership.cluster_client import ClusterAccess, ClusterClient, open_client

DEFAULT_LISTEN = "127.0.0.1:0"
TOKEN_VARIABLE = "UNDERSTUDY_DASHBOARD_TOKEN"
TOKEN_BYTES = 16
LEAST_TOKEN = 16

STALL_SECONDS = 20.0
"""A page that reads nothing for so long is cut off; it comes back by itself."""

MOST_CONNECTIONS = 300


def check_extra() -> None:
    """Raises ClickException if what a dashboard needs is not installed."""
    try:
        import hypercorn  # noqa: F401
    except ImportError:
        raise click.ClickException(
            "the dashboard needs an extra: pip install 'understudy-actors[dashboard]'"
        ) from None


def _token(environment: SystemEnvironment) -> str:
    """The token in the environment, or a new one. Never an option: others see the arguments of a
    process.
    """
    given = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not given:
        return environment.token(TOKEN_BYTES).hex()
    if len(given) < LEAST_TOKEN or not given.isascii() or not given.isalnum():
        raise click.UsageError(
            f"{TOKEN_VARIABLE} must have at least {LEAST_TOKEN} letters and digits of ASCII"
        )
    return given


@click.command(epilog="Example:  understudy dashboard --address 127.0.0.1:7400")
@click.option(
    "--listen",
    type=Text(),
    metavar="HOST:PORT",
    default=DEFAULT_LISTEN,
    show_default=True,
    help="Where to listen for browsers; port 0 for a free one.",
)
@click.option(
    "--base-path",
    metavar="PATH",
    default="",
    help="Path below which a proxy serves the dashboard, for example /understudy.",
)
@click.option(
    "--allow-actions",
    is_flag=True,
    help="Let pages stop actors, start children and drain nodes. Without it they only show.",
)
@click.option("--from-node", is_flag=True, hidden=True)
@cluster_options
def dashboard(
    listen: str,
    base_path: str,
    allow_actions: bool,
    from_node: bool,
    chosen: ChosenCluster,
    as_json: bool,
) -> None:
    """Serve pages about a cluster, until Ctrl-C or SIGTERM. Open the address that it prints: the
    token in it admits you.

    The dashboard is a client of the cluster, in a process of its own. It asks the nodes only while
    a page is open, and the same for many pages as for one.
    """
    check_extra()
    try:
        split_host_port(listen)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    environment = SystemEnvironment()
    token = _token(environment)
    # A node writes its secret, if it was given one, and then nothing: its end is that of stdin.
    given = sys.stdin.buffer.readline().split() if from_node else []
    secret, tls = security_for(chosen, [bytes.fromhex(one.decode()) for one in given])
    network = system_network(environment, tls)
    host = network.client_host(host_identity())
    role = chosen_role() or network.role_within("operator" if allow_actions else "observer")
    warn_of_role(role, "observer", "nodes refuse what the pages ask for")
    if allow_actions:
        warn_of_role(role, "operator", "nodes refuse the actions of the pages")

    access = ClusterAccess(chosen.name, secret, environment, network)

    def dial(where: str) -> AbstractAsyncContextManager[ClusterClient]:
        return open_client(where, access, host, role)

    sampler = Sampler(dial, chosen.address, environment, actions=allow_actions)
    application = DashboardApplication(sampler, token, base=base_path, actions=allow_actions)
    base = f"{base_path.strip('/')}/".lstrip("/")

    def announce(where: str) -> None:
        page = f"http://{where}/{base}#token={token}"
        if as_json:
            click.echo(json.dumps({"cluster": chosen.name, "listen": where, "url": page}))
        else:
            click.echo(f"dashboard of cluster {chosen.name}: {page}")
            if not is_loopback(where):
                click.echo(
                    "other machines can reach it, without encryption: put a proxy with TLS before "
                    "it, or use a tunnel",
                    err=True,
                )
        sys.stdout.flush()

    trio.run(_run, sampler, partial(serve, application, listen), announce, from_node)


async def _run(
    sampler: Sampler,
    serving: Callable[..., Awaitable[None]],
    announce: Callable[[str], None],
    from_node: bool,
) -> None:
    limits = ServerLimits(most_connections=MOST_CONNECTIONS, stall_seconds=STALL_SECONDS)
    stop = trio.Event()
    try:
        async with trio.open_nursery() as nursery:
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                await nursery.start(sampler.run)
                announce(await nursery.start(serving, limits, stop))
                async with trio.open_nursery() as waiting:
                    if from_node:
                        waiting.start_soon(_wait_for_end, waiting.cancel_scope)
                    async for _ in signals:
                        waiting.cancel_scope.cancel()
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise_alone(group)


async def _wait_for_end(scope: trio.CancelScope) -> None:
    """Cancel when stdin ends: the node that started this dashboard has ended, in whatever way."""
    stream = trio.lowlevel.FdStream(os.dup(sys.stdin.fileno()))
    async with stream:
        while await stream.receive_some(4096):
            pass
    scope.cancel()
