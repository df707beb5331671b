"""What the commands that talk to a running cluster share: its address, its secret, and a client."""

from __future__ import annotations

import functools
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import attrs
import click

from actors.errors import JoinError
from actors.peers import PeerRole, may_act_as
from runtime.announcements import local_cluster_at, open_clusters
from runtime.command_line.units import PathName, Text
from runtime.environment import SystemEnvironment, host_identity
from runtime.links.encryption import TLS_VARIABLE, Tls, TlsMode, find_tls, system_network
from runtime.links.keyring import Keyring
from runtime.links.transports import is_loopback, split_host_port
from runtime.membership.cluster_client import ClusterAccess, ClusterClient, open_client
from runtime.membership.cluster_secret import find_security

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_ADDRESS = "127.0.0.1:7400"
ADDRESS_VARIABLE = "UNDERSTUDY_ADDRESS"
DEFAULT_CLUSTER = "understudy"
ROLE = "understudy.role"
TOGETHER = "(PEM). The three are given together; both sides then show certificates."


@attrs.frozen
class ChosenCluster:
    """The cluster that a command talks to: the address of one of its nodes, its name, and the file
    of its secret, if the user has given one.
    """

    address: str
    name: str
    secret_file: Path | None


def security_options(command: F) -> F:
    """The options `--secret-file`, which the command is given, and those of TLS, see
    `chosen_tls`.
    """
    secret = click.option(
        "--secret-file",
        type=PathName(path_type=Path, dir_okay=False),
        help="File with the cluster's secret. Default: UNDERSTUDY_SECRET, or, for a cluster on "
        "this machine, the secret that the user's clusters share.",
    )
    return secret(tls_options(command))


def tls_options(command: F) -> F:
    """The options of TLS, see `chosen_tls`."""
    options = [
        click.option(
            "--tls",
            type=click.Choice(get_args(TlsMode)),
            expose_value=False,
            callback=_choose_tls,
            help="require: encrypt connections within this machine as well; accept: also meet "
            "nodes that do not encrypt; off: encrypt nothing, so that others on the network can "
            f"read and change everything. Default: {TLS_VARIABLE}, or encrypt what leaves this "
            "machine.",
        ),
        *(
            click.option(
                f"--tls-{name}",
                type=PathName(),
                metavar="FILE",
                expose_value=False,
                callback=_choose_file,
                help=f"{what} Default: {TLS_VARIABLE}_{name.upper()}.",
            )
            for name, what in (
                ("crl", "Lists of revoked certificates (PEM), one of each CA."),
                ("map", "Which SPIFFE IDs in certificates stand for which members."),
                ("ca", f"The CA's certificate {TOGETHER}"),
                ("cert", f"This process's certificate {TOGETHER}"),
                ("key", f"The certificate's private key {TOGETHER}"),
            )
        ),
    ]
    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


def _choose_tls(context: click.Context, _: click.Parameter, value: str | None) -> None:
    context.meta[f"{TLS_VARIABLE}.mode"] = value


def _choose_file(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    context.meta[f"{TLS_VARIABLE}.{parameter.name}"] = value or ""


def _choose_role(context: click.Context, _: click.Parameter, value: str | None) -> None:
    context.meta[ROLE] = value


def chosen_role() -> PeerRole | None:
    """What `--role` says to the command that runs; None if it was left out."""
    return cast("PeerRole | None", click.get_current_context().meta.get(ROLE))


def role_for(needs: PeerRole) -> PeerRole:
    """The role of a process that needs no more than that of `needs`, if `--role` says no other and
    its certificate allows it. Raises ValueError if the certificate cannot be used.
    """
    return chosen_role() or system_network(SystemEnvironment(), chosen_tls()).role_within(needs)


def warn_of_role(role: PeerRole, needs: PeerRole, lacks: str) -> None:
    """Tell on stderr what a server that goes on with `role` lacks, if that has not the rights of
    `needs`.
    """
    if not may_act_as(role, needs):
        click.echo(
            f"with the role {role!r} {lacks}: the role {needs!r} is needed, and a certificate that "
            "has it",
            err=True,
        )


def chosen_tls() -> Tls:
    """What the options of TLS, or the variables in their place, say to the command that runs."""
    try:
        return find_chosen_tls()
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def find_chosen_tls() -> Tls:
    """See `chosen_tls`. Raises ValueError for what does not go together."""
    meta = click.get_current_context().meta
    return find_tls(
        Tls(
            mode=meta.get(f"{TLS_VARIABLE}.mode"),
            ca=meta.get(f"{TLS_VARIABLE}.tls_ca", ""),
            certificate=meta.get(f"{TLS_VARIABLE}.tls_cert", ""),
            key=meta.get(f"{TLS_VARIABLE}.tls_key", ""),
            crl=meta.get(f"{TLS_VARIABLE}.tls_crl", ""),
            map=meta.get(f"{TLS_VARIABLE}.tls_map", ""),
        )
    )


def cluster_options(command: F) -> F:
    """The options of every command that talks to a cluster. The command is given the cluster as
    `chosen`, and `as_json`.
    """

    @functools.wraps(command)
    def resolved(
        *, address: str | None, cluster: str | None, secret_file: Path | None, **others: Any
    ) -> Any:
        chosen = ChosenCluster(*_resolve(address, cluster), secret_file)
        return command(chosen=chosen, **others)

    options = [
        click.option(
            "--address",
            "-a",
            type=Text(),
            metavar="HOST:PORT",
            envvar=ADDRESS_VARIABLE,
            help=f"Any node of the cluster. Default: {ADDRESS_VARIABLE}, or {DEFAULT_ADDRESS}, or, "
            "if no node listens there, the local cluster that is open on this machine.",
        ),
        click.option(
            "--cluster",
            type=Text(),
            help="The cluster's name. Default: that of the local cluster at the address, or else "
            "understudy.",
        ),
        security_options,
        click.option(
            "--role",
            type=click.Choice(get_args(PeerRole)),
            expose_value=False,
            callback=_choose_role,
            help="Have the rights of this role only, of those that the certificate allows. "
            "Default: what the command needs.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print facts as JSON."),
    ]
    return functools.reduce(
        lambda wrapped, option: option(wrapped), reversed(options), cast("F", resolved)
    )


def _resolve(address: str | None, cluster: str | None) -> tuple[str, str]:
    """Where to, and to which cluster. Raises `JoinError` if that may be one of several."""
    if address is None:
        address = DEFAULT_ADDRESS
        found = [
            one for one in open_clusters(SystemEnvironment()) if cluster in (None, one.cluster)
        ]
        # A node at the default address comes first, although it may belong to another user.
        if found and not _is_listening(DEFAULT_ADDRESS):
            if len(found) > 1:
                listed = ", ".join(f"{one.address} ({one.program})" for one in found)
                raise JoinError(
                    f"{len(found)} local clusters are open; say which with --address: {listed}"
                )
            address = found[0].address
    local = local_cluster_at(SystemEnvironment(), address) if cluster is None else None
    return address, cluster or (local.cluster if local is not None else DEFAULT_CLUSTER)


def _is_listening(address: str) -> bool:
    try:
        socket.create_connection(split_host_port(address), timeout=0.5).close()
    except OSError:
        return False
    return True


def secret_for(address: str | None, secret_file: Path | None) -> Keyring | None:
    """The secret that the user gave as a file, or that of the local cluster at the address."""
    if secret_file is not None:
        return Keyring.of_file(secret_file)
    local = local_cluster_at(SystemEnvironment(), address) if address is not None else None
    return Keyring((local.secret,)) if local is not None else None


def security_for(chosen: ChosenCluster, given: Iterable[bytes] = ()) -> tuple[Keyring, Tls]:
    """The secrets by which a command proves itself to the cluster, and how it encrypts connections.
    `given`: secrets that it has got in place of those that the user's files have.
    """
    return find_security(
        [*given] or secret_for(chosen.address, chosen.secret_file),
        chosen_tls(),
        SystemEnvironment().token,
        needs_own=not is_loopback(chosen.address),
        joining=chosen.address,
    )


@asynccontextmanager
async def connect(
    chosen: ChosenCluster, needs: PeerRole | None = None
) -> AsyncIterator[ClusterClient]:
    """A client of the cluster. `needs`: see `connect_with`."""
    async with connect_with(chosen, *security_for(chosen), needs) as client:
        yield client


@asynccontextmanager
async def connect_with(
    chosen: ChosenCluster, keyring: Keyring, tls: Tls, needs: PeerRole | None = None
) -> AsyncIterator[ClusterClient]:
    """A client of the cluster, with secrets that may change meanwhile. `needs`: the
    role that is enough for the command, which has no more rights then; None for all of those of
    its certificate, or of the secret.
    """
    environment = SystemEnvironment()
    network = system_network(environment, tls)
    async with open_client(
        chosen.address,
        ClusterAccess(chosen.name, keyring, environment, network),
        network.client_host(host_identity()),
        chosen_role() or network.role_within(needs),
    ) as client:
        yield client
