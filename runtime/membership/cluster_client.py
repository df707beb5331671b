"""The client of a cluster, for a process that is not a member, or not yet. It dials an address
under a client's identity, and asks the node that answers for the members and the store.
"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar, cast

import attrs
import trio

from actors.errors import (
    ActorNotFoundError,
    CallError,
    CallTimeoutError,
    DeadlineExceededError,
    HandshakeError,
    HandshakeTimeoutError,
    JoinError,
    MethodNotFoundError,
    NotAllowedError,
    ProtocolError,
)
from actors.identifiers import NodeId
from actors.method import Address
from actors.own_logger import own_logger
from actors.peers import PeerRole
from runtime.calls.endpoint import RpcEndpoint
from runtime.calls.routes import PeerDirectory
from runtime.environment import Environment, raise_alone
from runtime.hosting.host import ActorHost
from runtime.hosting.node_service import store_service
from runtime.links.handshakes import ClosedEarlyError
from runtime.links.keyring import Keyring
from runtime.links.link import Link
from runtime.links.transports import Network, is_loopback, why_not_dialled, with_address
from runtime.membership.names import Names
from runtime.membership.remote_store import RemoteStore, StoreService
from runtime.near_names import nearest
from runtime.wire.handshake import CLIENT_NAMES, Introduction, Peer

ATTEMPTS = 4
"""How often an address is dialled if the connection is accepted but the handshake is not completed:
by a node under load, or one that is restarting. If the connection is not accepted, the error is
raised at once.
"""

DIALLED_AGAIN_SECONDS = 0.1
"""Mean seconds until the second attempt; twice as long until each later one."""

PATIENCE = 3
"""How many times `Timings.join_answer` an answer may take while the connection to the node that is
asked stands.
"""

T = TypeVar("T")

logger = own_logger("understudy.membership")


@attrs.frozen
class ClusterAccess:
    """What a process needs to enter a cluster or to ask it: the cluster's name and secrets, and the
    environment and network of the process itself.
    """

    cluster: str
    secret: bytes | Keyring
    environment: Environment
    network: Network


class ClusterClient:
    """A process that asks a cluster without being a member. Calls system services, and actors
    through their addresses.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        status: dict[str, Any],
        store: RemoteStore,
        names: Names,
        ended: Callable[[NodeId, str], None],
        directory: _ClientDirectory,
    ) -> None:
        self._directory = directory
        self.endpoint = endpoint
        self.ended = ended
        """Note that an incarnation is proven to have ended: it is dialled no more, and calls to it
        end.
        """
        self.names = names
        self.status = status
        """The status of the dialled node and its cluster."""
        self.store = store

    def follow(self, members: list[dict[str, Any]]) -> None:
        """Take over the present members from a node's answer: new ones are dialled when they are
        called, and calls to those that are gone end.
        """
        self._directory.follow(members)

    async def lookup(self, name: str, seconds: float | None = None) -> Any:
        """A handle of the actor of this name, within so many seconds. Raises `ActorNotFoundError`,
        with the nearest name there is, and DeadlineExceededError.
        """
        with self.endpoint.lifetime.asking(
            f"{name} could not be looked up, so it may still be running"
        ):
            try:
                return self.endpoint.make_handle(await self.names.locate_within(name, seconds))
            except ActorNotFoundError as error:
                text = str(error)
            except DeadlineExceededError as error:
                # The name is read in the store.
                if reasons := self.store.unreached():
                    raise DeadlineExceededError(
                        f"{error}: the node {self.status['store']['node']}, which keeps the "
                        f"cluster's store, cannot be reached from here ({reasons})",
                        actor=name,
                    ) from None
                raise
            near = nearest(name, await self.names.to_compare(name))
        raise ActorNotFoundError(f"{text}; did you mean {near[0]!r}?" if near else text, actor=name)


class _ClientDirectory:
    """Finds links of the few peers that a client deals with: the node it dialled and, once known,
    all members.
    """

    def __init__(self) -> None:
        self.endpoint: RpcEndpoint | None = None
        self.members: list[dict[str, Any]] = []
        self.names: Any = None

    def follow(self, members: list[dict[str, Any]]) -> None:
        present = {(one["name"], one["incarnation"]) for one in members}
        # A copy: each end takes its node out of the list.
        for member in list(self.members):
            identity = NodeId(member["name"], member["incarnation"])
            if identity not in present:
                self.ended(identity, "it is not a member of the cluster any more")
        self.members = members

    def ended(self, identity: NodeId, reason: str) -> None:
        assert self.endpoint is not None
        self.members = [
            member for member in self.members if (member["name"], member["incarnation"]) != identity
        ]
        self.endpoint.on_peer_ended(identity, reason)

    async def locate(self, name: str) -> Address:
        if self.names is None:
            raise ActorNotFoundError(
                f"{name} cannot be looked up before the cluster has answered", actor=name
            )
        return cast("Address", await self.names.locate(name))

    async def link_to(self, node: str, incarnation: int) -> Link | None:
        await trio.lowlevel.checkpoint()
        assert self.endpoint is not None
        link = self.endpoint.peers.links.get(NodeId(node, incarnation))
        if link is not None and link.ended is None:
            return link
        for member in self.members:
            if member["name"] == node and member["incarnation"] == incarnation:
                return self.endpoint.peers.link(peer_of(member))
        return None


def peer_of(member: dict[str, Any]) -> Peer:
    """Return a member as a peer to dial, from its plain description."""
    return Peer(
        name=member["name"],
        incarnation=member["incarnation"],
        role="node",
        addresses=tuple(member["addresses"]),
        host=member["host"],
    )


def unreached(client: ClusterClient, member: dict[str, Any]) -> str:
    """Return the addresses of a member that could not be reached, each with the reason; "" if the
    member is connected or was not dialled.
    """
    return _unreached(client.endpoint, NodeId(member["name"], member["incarnation"]))


def _unreached(endpoint: RpcEndpoint, node: NodeId) -> str:
    link = endpoint.peers.links.get(node)
    return "" if link is None else link.unreached()


@asynccontextmanager
async def open_client(
    address: str,
    access: ClusterAccess,
    host: str = "",
    rights: PeerRole | None = None,
    *,
    all_members: bool = True,
) -> AsyncIterator[ClusterClient]:
    """Connect to a cluster by the address of any member. `rights`: the role to whose rights this
    process limits itself; None for all rights of the role that it proves. `all_members`: False for
    who needs no members but the one that is dialled and the one that serves the store. Raises
    `JoinError` or a `HandshakeError` that name the address.
    """
    environment = access.environment
    me = client_peer(environment, host, rights)
    directory = _ClientDirectory()
    try:
        async with trio.open_nursery() as nursery:
            endpoint = RpcEndpoint(
                Introduction(cluster=access.cluster, peer=me),
                access.secret,
                environment,
                access.network,
                nursery,
                PeerDirectory(directory.locate, directory.link_to),
                lambda endpoint: _no_host(endpoint, nursery, environment),
            )
            directory.endpoint = endpoint
            contact = await _contact(endpoint, address, environment)
            nursery.start_soon(endpoint.peers.beat)
            try:
                status = await _status(
                    endpoint, contact, environment.timings.join_answer, all_members=all_members
                )
            except CallError as error:
                raise JoinError(
                    f"{address} answered, but could not say where the cluster's store is: {error}"
                ) from error
            directory.members = status["members"]
            where = status["store"]
            handle = endpoint.system_handle(
                StoreService, store_service(where["identity"]), where["node"], where["incarnation"]
            )
            store = RemoteStore(
                handle,
                environment.timings.store_call,
                nursery,
                partial(_unreached, endpoint, NodeId(where["node"], where["incarnation"])),
            )
            directory.names = Names(store, endpoint.codec, 0, me.name, me.incarnation)
            try:
                yield ClusterClient(
                    endpoint, status, store, directory.names, directory.ended, directory
                )
            finally:
                # Shielded, so that the farewell of the links is sent when the client is cancelled;
                # bounded, because a peer may not take it.
                with trio.CancelScope(shield=True), trio.move_on_after(2.0):
                    await endpoint.peers.close(1.0)
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise_alone(group)


def client_peer(
    environment: Environment, host: str, rights: PeerRole | None, name: str = ""
) -> Peer:
    """Return the introduction of a process that is no member. `name`: its name without the prefix
    `CLIENT_NAMES`; by default drawn at random.
    """
    return Peer(
        name=f"{CLIENT_NAMES}{name or environment.token(6).hex()}",
        # Beyond the revisions that a store gives to nodes, in all likelihood.
        incarnation=int.from_bytes(environment.token(6), "big") + 1,
        role="client",
        host=host,
        life=environment.token(8).hex(),
        rights=rights or "",
    )


async def _status(
    endpoint: RpcEndpoint, contact: Link, seconds: float, *, all_members: bool
) -> dict[str, Any]:
    """Ask the dialled node for its contact facts; `seconds` for each attempt. Raises CallError."""
    service = endpoint.node_service(contact.peer.name, contact.peer.incarnation)
    for left in reversed(range(PATIENCE)):
        try:
            return await contact_facts(service.options(timeout=seconds), all_members=all_members)
        except CallTimeoutError:
            # A connection that stands is one that is heard on: the node lives, and has much to do.
            if not left or not contact.connected:
                raise
    raise AssertionError("the last attempt has returned or raised")


async def contact_facts(service: Any, *, all_members: bool = True) -> dict[str, Any]:
    """Ask a node for the facts of itself, the members and the store. Without `all_members`, only
    those members are certain to be among them that lead to the store. Raises CallError.
    """
    if not all_members:
        # Otherwise each of N nodes that join would get the rows of up to N others here, and read
        # the records of the same ones in the store.
        with suppress(MethodNotFoundError, NotAllowedError):
            return cast("dict[str, Any]", await service.store_place())
    try:
        return cast("dict[str, Any]", await service.contact())
    except (MethodNotFoundError, NotAllowedError):
        # A node of an earlier version, whose answer has its actors as well.
        return cast("dict[str, Any]", await service.status())


async def answered(
    ask: Callable[[], Awaitable[T]], connected: Callable[[], bool], seconds: float
) -> T | None:
    """Return what `ask` returns, or None if it takes longer than `seconds`; `PATIENCE` times as
    long while `connected()` is true.
    """
    found: T | None = None
    async with trio.open_nursery() as nursery:

        async def give_up() -> None:
            for _ in range(PATIENCE):
                await trio.sleep(seconds)
                if not connected():
                    break
            nursery.cancel_scope.cancel()

        # A task beside the question, not a time-out around it: at each turn the connection decides
        # whether to wait on.
        nursery.start_soon(give_up)
        found = await ask()
        nursery.cancel_scope.cancel()
    return found


async def _contact(endpoint: RpcEndpoint, address: str, environment: Environment) -> Link:
    try:
        return await _first_contact(endpoint, address, environment)
    except HandshakeError as error:
        raise type(error)(with_address(address, str(error))) from None
    except ProtocolError as error:
        raise JoinError(
            f"the process at {address} does not speak the protocol of nodes ({error}); check the "
            "address"
        ) from error
    except TimeoutError:
        raise JoinError(
            f"nothing answered at {address} within {environment.timings.join_answer:g} s; is it "
            "the address of a node, and reachable from here?"
        ) from None
    except OSError as error:
        reason = why_not_dialled(error)
        if reason == os.strerror(errno.ENETUNREACH) and is_loopback(address):
            raise JoinError(
                f"{address} cannot be reached, because this machine or container has no loopback "
                "interface that is up: `ip link set lo up`"
            ) from None
        raise JoinError(
            f"no node answers at {address} ({reason}); give the address of one that runs, or start "
            "one with `understudy node`"
        ) from None
    except trio.ClosedResourceError:
        raise JoinError(
            f"the connection to {address} was closed at this end before it was established; is "
            "this process about to end?"
        ) from None
    except ValueError as error:
        raise JoinError(str(error)) from None


async def _first_contact(endpoint: RpcEndpoint, address: str, environment: Environment) -> Link:
    """The link to the node at `address`, dialled again where a connection came about and did not
    last. Raises what the last attempt did.
    """
    seconds = environment.timings.join_answer
    for attempt in range(1, ATTEMPTS):
        try:
            return await endpoint.peers.first_contact(address, seconds)
        except (
            HandshakeTimeoutError,
            ClosedEarlyError,
            ConnectionResetError,
            BrokenPipeError,
        ) as error:
            logger.info(
                "the process at %s did not complete the handshake, and is dialled again: %s",
                address,
                error,
            )
        # Many may have been turned away in the same moment: they do not come back in the same
        # moment.
        await trio.sleep(DIALLED_AGAIN_SECONDS * 2**attempt * environment.random())
    return await endpoint.peers.first_contact(address, seconds)


def _no_host(endpoint: RpcEndpoint, nursery: trio.Nursery, environment: Environment) -> ActorHost:
    class ClientNode:
        name, incarnation = endpoint.identity

    return ActorHost(
        cast("Any", ClientNode),
        nursery,
        environment,
        lambda: cast("Any", None),
        endpoint.make_handle,
        lambda supervisor, address: None,
    )
