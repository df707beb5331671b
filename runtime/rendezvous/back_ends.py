"""The built-in back-ends: one handler over four kinds of stores, and over a store in this
process.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import trio

from actors.errors import HandshakeError, JoinError, ProtocolError
from actors.own_logger import own_logger
from runtime.environment import Environment, host_identity, raise_alone
from runtime.links.encryption import Tls, system_network
from runtime.links.keyring import Keyring
from runtime.links.transports import is_loopback, split_address
from runtime.membership.cluster_client import ClusterAccess, ClusterClient, open_client, peer_of
from runtime.membership.cluster_secret import find_security
from runtime.membership.store_locator import StoreLocator
from runtime.rendezvous.file_store import FileStore, remove_leftovers
from runtime.rendezvous.handler import OpenStore, StoreHandler
from runtime.rendezvous.parameters import AgentSettings, RendezvousParameters, RendezvousTimeout
from runtime.store.embedded_store import EmbeddedStore
from runtime.store.interface import MAX_LEASE_SECONDS, Store
from runtime.tcp_connector import TcpConnector

if TYPE_CHECKING:
    from runtime.store.etcd.address import EtcdAddress
    from runtime.store.etcd.store import EtcdStore

CLUSTER_OPTIONS = ("cluster", "secret", "secret_file", "tls")

CONNECT_SECONDS = 2.5
"""Seconds for a member of an etcd to accept a connection and answer."""
FIRST_SERVER_ERROR = 500
"""The lowest HTTP status that says that the server, and not the request, has failed."""
STANDALONE_RENEWAL = 3600.0
"""Seconds between two renewals of a lease that no other agent watches."""

logger = own_logger("understudy.rendezvous")


def understudy(parameters: RendezvousParameters, environment: Environment) -> StoreHandler:
    """Over the store of a cluster. Endpoint: `HOST:PORT` of any of its nodes; of several, separated
    by commas, the first that answers.

    Options: `cluster`, its name; `secret_file`, with its secret, or `secret`, the bytes of it;
    `tls`, as of `open_node`.
    """
    settings = AgentSettings.of(parameters, *CLUSTER_OPTIONS)
    return StoreHandler(settings, environment, _cluster(parameters, environment))


def etcd(parameters: RendezvousParameters, environment: Environment) -> StoreHandler:
    """Uses an etcd, without a cluster. Endpoint: `HOST:PORT[,HOST:PORT...]`, or an `etcd://`
    address; see `runtime.store.etcd.address`. Option: `cluster`, the name that begins its keys.
    """
    settings = AgentSettings.of(parameters, "cluster")
    return StoreHandler(settings, environment, _etcd(parameters, environment))


def file(parameters: RendezvousParameters, environment: Environment) -> StoreHandler:
    """Uses a directory that all agents share. Endpoint: its path."""
    settings = AgentSettings.of(parameters)
    return StoreHandler(settings, environment, _directory(parameters, environment))


def static(parameters: RendezvousParameters, environment: Environment) -> StoreHandler:
    """Fixed ranks: the option `rank` is this agent's rank. Endpoint: that of any other back-end; a
    path must contain a slash.

    Raises ValueError if the rank is not below the number of nodes, or `min_nodes` and `max_nodes`
    differ.
    """
    rank = parameters.get_as_int("rank")
    if parameters.min_nodes != parameters.max_nodes:
        raise ValueError(
            "fixed ranks need a fixed number of nodes, not "
            f"{parameters.min_nodes} to {parameters.max_nodes}; give the same minimum and maximum"
        )
    if rank is None or not 0 <= rank < parameters.max_nodes:
        raise ValueError(
            f"the option 'rank' must be this agent's rank, from 0 to {parameters.max_nodes - 1}; "
            f"it is {rank}"
        )
    settings = AgentSettings.of(parameters, "rank", *CLUSTER_OPTIONS, wanted=rank)
    if parameters.endpoint.startswith("etcd://"):
        return StoreHandler(settings, environment, _etcd(parameters, environment))
    if "/" in parameters.endpoint:
        return StoreHandler(settings, environment, _directory(parameters, environment))
    return StoreHandler(settings, environment, _cluster(parameters, environment))


def standalone(run_id: str, environment: Environment) -> StoreHandler:
    """Uses a store in the memory of this process, for an agent that has its job to itself. Nothing
    listens, and each round is complete at once. It has no name in the registry.
    """
    settings = AgentSettings(
        RendezvousParameters("standalone", "", run_id, 1, 1),
        RendezvousTimeout(),
        # No other agent waits for this one's place, so its lease need not end. With a normal lease,
        # an agent that was stopped for a while (Ctrl-Z, a closed lid) would count as dead, and its
        # workers would be restarted for no reason.
        keep_alive_interval=STANDALONE_RENEWAL,
        lease_seconds=MAX_LEASE_SECONDS,
        retention=MAX_LEASE_SECONDS,
    )
    return StoreHandler(settings, environment, partial(_open_in_memory, environment))


@asynccontextmanager
async def _open_in_memory(environment: Environment) -> AsyncIterator[Store]:
    async with _running(EmbeddedStore(environment)) as running:
        yield running


def _cluster(parameters: RendezvousParameters, environment: Environment) -> OpenStore:
    addresses = [address.strip() for address in parameters.endpoint.split(",") if address.strip()]
    if not addresses:
        raise ValueError(
            f"the endpoint of the rendezvous back-end {parameters.backend!r} is HOST:PORT of a "
            "node of the cluster; none was given"
        )
    for address in addresses:
        split_address(address)
    given: Path | bytes | None = None
    if file := parameters.get("secret_file"):
        given = Path(str(file))
    elif (found := parameters.get("secret")) is not None:
        if not isinstance(found, bytes):
            # Options are texts on a command line, where every user of the machine reads them.
            raise ValueError(
                "the option 'secret' of a rendezvous is bytes, given in code; name a file with "
                "the option 'secret_file', or set UNDERSTUDY_SECRET"
            )
        given = found
    secret, tls = find_security(
        given,
        str(parameters.get("tls") or "") or None,
        environment.token,
        needs_own=not all(map(is_loopback, addresses)),
        joining=", ".join(addresses),
    )
    cluster = str(parameters.get("cluster", "understudy"))
    return partial(_open_cluster, addresses, cluster, secret, environment, tls)


@asynccontextmanager
async def _open_cluster(
    addresses: list[str],
    cluster: str,
    secret: Keyring,
    environment: Environment,
    tls: Tls,
) -> AsyncIterator[Store]:
    """Return the store of a cluster, through the first of its nodes that answers. Raises
    `JoinError` or a `HandshakeError`.
    """
    access = ClusterAccess(cluster, secret, environment, system_network(environment, tls))
    failures: list[str] = []
    cause: Exception | None = None
    async with AsyncExitStack() as stack:
        for address in addresses:
            try:
                client = await stack.enter_async_context(
                    open_client(address, access, host_identity())
                )
            except (JoinError, HandshakeError) as error:
                if len(addresses) == 1:
                    raise
                failures.append(str(error))
                # Prefer the error of a node that is not up yet to that of another program: only the
                # first may change with time.
                cause = error if cause is None or isinstance(cause, HandshakeError) else cause
                continue
            yield await stack.enter_async_context(_store_of(client, address, cluster, environment))
            return
        raise JoinError("; ".join(failures)) from cause


@asynccontextmanager
async def _store_of(
    client: ClusterClient, address: str, cluster: str, environment: Environment
) -> AsyncIterator[Store]:
    """Open the most direct way to the store. An etcd that needs only its address is asked
    directly; any other store through a node, which is followed to the store's new place when that
    moves. `address`: by which the client has joined.
    """
    where: dict[str, Any] = client.status["store"]
    if where["kind"] == "etcd" and where["address"]:
        from runtime.store.etcd.address import EtcdAddress

        async with _open_etcd(EtcdAddress.parse(where["address"]), cluster, environment) as store:
            yield store
        return
    served_by = [member for member in client.status["members"] if member["name"] == where["node"]]
    # The store's node may have left between the two parts of the answer: ask through this node.
    if not served_by:
        yield client.store
        return
    contact = StoreLocator(
        *(client.endpoint, peer_of(served_by[0]), where["identity"], environment), joined=address
    )
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                contact.run,
                client.ended,
                lambda: logger.error("the connection to the store of the rendezvous has ended"),
            )
            yield contact.store
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise_alone(group)


def _etcd(parameters: RendezvousParameters, environment: Environment) -> OpenStore:
    from runtime.store.etcd.address import EtcdAddress

    endpoint = parameters.endpoint
    address = EtcdAddress.parse(endpoint if "://" in endpoint else f"etcd://{endpoint}")
    return partial(_reach_etcd, address, str(parameters.get("cluster", "understudy")), environment)


@asynccontextmanager
async def _reach_etcd(
    address: EtcdAddress, cluster: str, environment: Environment
) -> AsyncIterator[Store]:
    """Return the store, if a member of the etcd answers. Raises `JoinError` at once if none does;
    its cause is a `ProtocolError` if another program answers.
    """
    from runtime.store.etcd.gateway import LostError, NotSentError

    failures: list[str] = []
    foreign: ProtocolError | None = None
    for host, port in address.endpoints:
        try:
            with trio.fail_after(CONNECT_SECONDS):
                await _greet_etcd(host, port, address)
            break
        except ProtocolError as error:
            foreign = error
            failures.append(str(error))
        except (NotSentError, LostError, trio.TooSlowError) as error:
            failures.append(str(error) or f"{host}:{port}: no answer within {CONNECT_SECONDS:g} s")
    else:
        text = (
            f"no member of the etcd at {address} answers: {'; '.join(failures)}; is it "
            "running, and is this its address?"
        )
        raise JoinError(text) from (foreign if len(failures) == 1 else None)
    async with _open_etcd(address, cluster, environment) as store:
        yield store


async def _greet_etcd(host: str, port: int, address: EtcdAddress) -> None:
    """Check that an etcd answers, with a result or an error. Raises `ProtocolError`, `NotSentError`
    or `LostError`.
    """
    from runtime.store.etcd.gateway import EtcdConnection, ForeignError, trust_of

    connection = await EtcdConnection.opened(*(host, port, trust_of(address), TcpConnector()))
    try:
        await connection.send("/v3/maintenance/status", b"{}", "")
        status, body = await connection.status(), await connection.body()
    except ForeignError as error:
        raise ProtocolError(str(error)) from error
    finally:
        connection.close()
    try:
        is_etcd = isinstance(json.loads(body), dict)
    except (ValueError, RecursionError):
        is_etcd = False
    # A proxy in front of an etcd that is not up yet answers with a server error.
    if not is_etcd and status < FIRST_SERVER_ERROR:
        raise ProtocolError(f"{host}:{port}: {body[:60]!r} is not an answer of etcd")


@asynccontextmanager
async def _open_etcd(
    address: EtcdAddress, cluster: str, environment: Environment
) -> AsyncIterator[Store]:
    from runtime.store.etcd.store import EtcdStore

    async with _running(EtcdStore(address, cluster, environment)) as running:
        yield running


def _directory(parameters: RendezvousParameters, environment: Environment) -> OpenStore:
    if not parameters.endpoint:
        raise ValueError(
            f"the endpoint of the rendezvous back-end {parameters.backend!r} is a shared "
            "directory; none was given"
        )
    return partial(
        _open_directory,
        Path(parameters.endpoint).expanduser() / quote(parameters.run_id, safe=""),
        parameters,
        environment,
    )


@asynccontextmanager
async def _open_directory(
    directory: Path, parameters: RendezvousParameters, environment: Environment
) -> AsyncIterator[Store]:
    store = FileStore(directory, environment)
    await store.open()
    removed = await environment.in_thread(
        partial(
            remove_leftovers,
            directory,
            AgentSettings.of(parameters, "rank", *CLUSTER_OPTIONS).retention,
            environment.token(8).hex(),
        )
    )
    if removed:
        logger.info(
            "removed directories that earlier jobs left beside %s: %s",
            directory,
            ", ".join(removed),
        )
    async with _running(store) as running:
        yield running


@asynccontextmanager
async def _running(store: FileStore | EtcdStore | EmbeddedStore) -> AsyncIterator[Store]:
    """Open a store and run its task until the end of the block."""
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            try:
                yield store
            finally:
                store.close()
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise_alone(group)
