"""What the commands that talk to a running cluster share: its address, its secret, and a client."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from runtime.environment import SystemEnvironment
from runtime.links.transports import SocketNetwork, is_loopback
from runtime.liveness import host_identity
from runtime.membership.join import Client, open_client
from runtime.membership.secrets import find_secret, read_secret_file

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_ADDRESS = "127.0.0.1:7400"


def secret_option(command: F) -> F:
    """The option `--secret-file`."""
    return click.option(
        "--secret-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="File with the cluster's secret; otherwise UNDERSTUDY_SECRET, or on this machine the user's own shared secret.",
    )(command)


def cluster_options(command: F) -> F:
    """The options of every command that talks to a cluster."""
    options = [
        click.option("--address", "-a", default=DEFAULT_ADDRESS, show_default=True, metavar="HOST:PORT", help="Any node of the cluster."),
        click.option("--cluster", default="understudy", show_default=True, help="The cluster's name."),
        secret_option,
        click.option("--json", "as_json", is_flag=True, help="Print facts as JSON."),
    ]
    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


def secret_of(secret_file: Path | None) -> bytes | None:
    """The secret that the user gave as a file."""
    return read_secret_file(secret_file) if secret_file is not None else None


@asynccontextmanager
async def connect(address: str, cluster: str, secret_file: Path | None) -> AsyncIterator[Client]:
    """A client of the cluster at `address`."""
    environment = SystemEnvironment()
    secret = find_secret(secret_of(secret_file), environment.token, needs_own=not is_loopback(address))
    async with open_client(address, cluster, secret, environment, SocketNetwork(), host_identity()) as client:
        yield client
