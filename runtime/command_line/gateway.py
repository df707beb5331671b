"""`understudy gateway`: serve the actors of a cluster over HTTP."""

from __future__ import annotations

import json
import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import click
import trio

from runtime.cluster_processes import leaving_on_signals
from runtime.command_line.connect import (
    ChosenCluster,
    chosen_tls,
    cluster_options,
    role_for,
    secret_for,
    warn_of_role,
)
from runtime.command_line.units import Number, PathName, Text, bytes_of
from runtime.environment import SystemEnvironment
from runtime.gateway import RequestLimits, application
from runtime.gateway.requests import check_exposure
from runtime.gateway.server import ServerLimits, serve
from runtime.links.transports import split_host_port
from runtime.node import Node
from runtime.node.opening import open_node
from runtime.private_files import refuse_open_file
from runtime.process_end import process_of_node
from runtime.supervision.placement import CALLS_ONLY

DEFAULT_LISTEN = "127.0.0.1:8080"
TOKEN_VARIABLE = "UNDERSTUDY_GATEWAY_TOKEN"


def _token(token_file: Path | None) -> str | None:
    """The token in the file, or in the environment. Never an option: others see the arguments of a
    process.
    """
    if token_file is not None:
        try:
            refuse_open_file("token file", token_file)
            text = token_file.read_text("utf-8").strip()
        except UnicodeDecodeError:
            raise click.UsageError(f"{token_file} holds no text") from None
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        if not text:
            raise click.UsageError(f"{token_file} is empty; it should hold the token")
        return text
    return os.environ.get(TOKEN_VARIABLE, "").strip() or None


@click.command(epilog="Example:  understudy gateway --allow 'counter.*'")
@click.option(
    "--listen",
    type=Text(),
    metavar="HOST:PORT",
    default=DEFAULT_LISTEN,
    show_default=True,
    help="Where to listen for HTTP; port 0 for a free one. Beyond this machine it needs a token.",
)
@click.option(
    "--allow",
    multiple=True,
    metavar="ACTOR.METHOD",
    help="Allow methods that are not marked with @method(http=True); * and ? match any text. May "
    "be repeated.",
)
@click.option(
    "--token-file",
    type=PathName(path_type=Path, dir_okay=False, exists=True),
    help="File with the token that clients must send as Authorization: Bearer TOKEN; otherwise "
    f"{TOKEN_VARIABLE}.",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Another name by which this machine's own clients ask the gateway; may be repeated.",
)
@click.option(
    "--max-body",
    metavar="SIZE",
    default="8M",
    show_default=True,
    help="Bytes of a request's body.",
)
@click.option(
    "--max-requests",
    type=click.IntRange(min=1),
    default=RequestLimits().most_requests,
    show_default=True,
    help="Requests in flight at once; more are answered 503.",
)
@click.option(
    "--max-connections",
    type=click.IntRange(min=1),
    default=ServerLimits().most_connections,
    show_default=True,
    help="Connections at once; one more closes the one that has waited longest for its client.",
)
@click.option(
    "--head-timeout",
    type=Number(min=0, min_open=True),
    default=ServerLimits().head_seconds,
    show_default=True,
    help="Seconds for the headers of a request to arrive, and for a connection without one.",
)
@cluster_options
def gateway(
    listen: str,
    allow: tuple[str, ...],
    token_file: Path | None,
    hosts: tuple[str, ...],
    max_body: str,
    max_requests: int,
    max_connections: int,
    head_timeout: float,
    chosen: ChosenCluster,
    as_json: bool,
) -> None:
    """Serve the actors of a cluster over HTTP, until Ctrl-C or SIGTERM.

    POST /v1/actors/NAME/METHOD calls a method. Only methods marked with @method(http=True), or
    allowed with --allow, can be called. The gateway joins the cluster as a client, if --role does
    not say otherwise.
    """
    try:
        import hypercorn  # noqa: F401
    except ImportError:
        raise click.ClickException(
            "the gateway needs an extra: pip install 'understudy-actors[http]'"
        ) from None
    token = _token(token_file)
    try:
        split_host_port(listen)
        check_exposure(listen, token)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    # Less than a node has, which it does not need: what others send passes through it.
    role = role_for("client")
    warn_of_role(role, "client", "nodes refuse all calls but those of methods that allow it")
    opening = open_node(
        f"gateway-{os.getpid()}-{SystemEnvironment().token(3).hex()}",
        join=chosen.address,
        cluster=chosen.name,
        secret=secret_for(chosen.address, chosen.secret_file),
        labels={CALLS_ONLY: "true"},
        tls=chosen_tls(),
        role=role,
    )
    limits = RequestLimits(max_body=bytes_of("--max-body", max_body), most_requests=max_requests)
    server_limits = ServerLimits(most_connections=max_connections, head_seconds=head_timeout)
    trio.run(_run, opening, listen, allow, token, hosts, limits, server_limits, as_json)


async def _run(
    opening: AbstractAsyncContextManager[Node],
    listen: str,
    allow: tuple[str, ...],
    token: str | None,
    hosts: tuple[str, ...],
    limits: RequestLimits,
    server_limits: ServerLimits,
    as_json: bool,
) -> None:
    async with process_of_node(opening) as node:
        app = application(node, allow=allow, token=token, hosts=hosts, limits=limits)
        async with leaving_on_signals(node), trio.open_nursery() as nursery:
            where = await nursery.start(serve, app, listen, server_limits, node.asked_to_leave)
            if as_json:
                click.echo(json.dumps({"node": node.name, "listen": where}))
            else:
                click.echo(f"gateway {node.name} of cluster {node.cluster}: http://{where}/")
