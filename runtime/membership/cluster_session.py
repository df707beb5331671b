"""The cluster session: what a process needs before it is a node, which is a store, a record in it,
and with that an incarnation. The store is served by the founding node, in memory or from a file, or
by etcd. A node that joins by a member's address asks that member for the store.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import attrs
import trio

from actors.errors import (
    JoinError,
    StoreUnavailableError,
)
from runtime.environment import Environment
from runtime.hosting.leased_names import LeasedNames
from runtime.links.transports import Network, split_address
from runtime.membership.cluster_client import (
    ClusterAccess,
    ClusterClient,
    answered,
    open_client,
    peer_of,
    unreached,
)
from runtime.membership.cluster_record import find_or_write_record
from runtime.membership.members import NodeRecord, Registration
from runtime.store.interface import Store
from runtime.wire.handshake import Peer

StoreKind = Literal["embedded", "etcd"]


@attrs.frozen
class ClusterSession:
    """A place in a cluster.

    `identity`: the cluster's, see `ClusterRecord`. `store`: None where a node serves it, which is
    `peer` then. `address`: where others may reach the store as well, an `etcd://` address for
    example. `joined`: the address of a member by which this process has joined, if it has.
    """

    kind: StoreKind
    identity: str
    registration: Registration
    store: Store | None = None
    peer: Peer | None = None
    address: str = ""
    joined: str = ""


@attrs.frozen
class ExternalStore:
    """A store that a member named and that clients access directly."""

    address: str


async def enter_with_store(
    store: Store,
    kind: StoreKind,
    address: str,
    access: ClusterAccess,
    record: NodeRecord,
    ended_lease: int = 0,
) -> ClusterSession:
    """Enter `record` into the cluster of `store`, or found it there. `ended_lease`: that of a node
    whose process has certainly ended, whose record may be replaced at once. Raises
    `StoreMismatchError`, `NodeNameTakenError`, `StoreError`.
    """
    environment = access.environment
    cluster_record = await find_or_write_record(store, access.cluster, access.secret, environment)
    registration = Registration(store, environment, record, ended_lease)
    await registration.enter(access.network)
    return ClusterSession(kind, cluster_record.identity, registration, store, address=address)


async def enter_by_member(
    address: str, access: ClusterAccess, record: NodeRecord
) -> ClusterSession | ExternalStore:
    """Enter `record` into the cluster that a member at `address` belongs to, if its store is served
    by one of its nodes.

    Raises `JoinError` (no answer; the message says what to do next), `NodeNameTakenError` or a
    `HandshakeError`.
    """
    environment = access.environment
    async with open_client(address, access, record.host, all_members=False) as client:
        where = client.status["store"]
        if where["kind"] != "embedded":
            return ExternalStore(where["address"])
        member, peer = _store_node(client, address)
        registration = Registration(client.store, environment, record)
        if (
            await answered(
                partial(_enter, registration, access.network),
                partial(_is_connected, client, peer),
                environment.timings.join_answer,
            )
            is not None
        ):
            return ClusterSession(
                "embedded", where["identity"], registration, peer=peer, joined=address
            )
        why = unreached(client, member)
    if why:
        raise JoinError(
            f"{address} answers, but the node {where['node']}, which keeps the cluster's store, "
            f"cannot be reached from here ({why}); "
            "start it with a listen address, or with --advertise HOST:PORT, that others can dial"
        )
    raise JoinError(
        f"the store of the cluster at {address} did not answer within "
        f"{environment.timings.join_answer:g} s; check that its node, {where['node']}, runs and "
        "answers (`understudy doctor`)"
    )


class ClientRegistration(Registration):
    """Stands in for a `Registration` where a node has joined as a client. Writes nothing, so the
    node cannot lose its place either.
    """

    def __init__(self, store: Store, environment: Environment, record: NodeRecord) -> None:
        super().__init__(store, environment, record)
        assert not record.lease, "no lease ties anything to a client"

    async def enter(self, network: Network) -> int:
        """Raise AssertionError: a client has no record in the store, so nothing may call this."""
        raise AssertionError("a client is not entered into the store")

    async def set_state(self, state: str) -> int:
        """Does nothing: no other node sees the state of a client. Returns 0, as no revision was
        written.
        """
        await trio.lowlevel.checkpoint()
        return 0

    async def keep(self, names: LeasedNames) -> None:
        """Wait until cancelled: a client has no lease to renew."""
        await trio.sleep_forever()

    async def leave(self) -> None:
        """Does nothing: the nodes see that its connections end."""
        await trio.lowlevel.checkpoint()


async def enter_as_client(address: str, access: ClusterAccess, me: Peer) -> ClusterSession:
    """Find out where the cluster of the member at `address` has its store, for the process `me`,
    which is to be no member. Raises what `open_client` raises, and `JoinError`.
    """
    environment = access.environment
    async with open_client(
        address, access, me.host, me.rights or None, all_members=False
    ) as client:
        where = client.status["store"]
        # The node that was dialled, where the store is no node's.
        _, peer = _store_node(client, address)
        process = environment.process()
        record = NodeRecord(
            name=me.name,
            addresses=(),
            host=process.host,
            pid=process.pid,
            started=process.started,
            lease=0,
            joined=environment.wall_time(),
        )
        registration = ClientRegistration(client.store, environment, record)
        return ClusterSession(
            *(where["kind"], where["identity"], registration),
            peer=peer,
            address=where["address"],
            joined=address,
        )


def _store_node(client: ClusterClient, address: str) -> tuple[dict[str, Any], Peer]:
    """The node that serves the store, as the member that was dialled at `address` reports it: its
    record, and how to reach it. Raises `JoinError`.
    """
    status = client.status
    node = status["store"]["node"]
    member = next((member for member in status["members"] if member["name"] == node), None)
    if member is None:
        raise JoinError(
            f"{address} names {node} as the store's node, but does not know where it is; try "
            "again, or join by that node"
        )
    peer = peer_of(member)
    if peer.identity == (status["node"], status["incarnation"]):
        # It answers at `address`, even if it advertises another one.
        known = (*peer.addresses, ":".join(split_address(address)))
        peer = attrs.evolve(peer, addresses=tuple(dict.fromkeys(known)))
    return member, peer


async def _enter(registration: Registration, network: Network) -> int:
    """Enter the cluster, repeatedly while the store cannot be reached: `answered` bounds the time,
    and knows why no answer came.
    """
    while True:
        try:
            return await registration.enter(network)
        except StoreUnavailableError:
            # Nothing was executed. A call of the store takes as long as the wait for a connection:
            # either may end first.
            await trio.lowlevel.checkpoint()


def _is_connected(client: ClusterClient, peer: Peer) -> bool:
    """True while a connection stands to the node that keeps the store."""
    link = client.endpoint.peers.links.get(peer.identity)
    return link is not None and link.connected
