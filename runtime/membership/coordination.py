"""What a node needs of its cluster before it is one: a store, a record in it, and so an incarnation.

A store is served by the founding node, in memory or from a file, or by etcd. Who joins by a member's address learns from it which.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import attrs

from actors.errors import JoinError
from runtime.environment import Environment
from runtime.links.transports import Network, split_address
from runtime.membership.charter import find_or_write_charter
from runtime.membership.join import JOIN_SECONDS, Client, answered, open_client, peer_of, unreached
from runtime.membership.members import Enrolment, NodeRecord
from runtime.store.interface import Store
from runtime.wire.introduction import Peer

StoreKind = Literal["embedded", "etcd"]


@attrs.frozen
class Coordination:
    """A place in a cluster.

    `identity`: the cluster's, see `runtime.membership.charter`. `store`: if this process reaches it by itself; otherwise `peer` is the node
    that serves it. `address`: where others may reach it as well, an `etcd://` address for example.
    """

    kind: StoreKind
    identity: str
    enrolment: Enrolment
    store: Store | None = None
    peer: Peer | None = None
    address: str = ""


@attrs.frozen
class Elsewhere:
    """A store that a member told of and that its clients reach by themselves."""

    address: str


async def enter_with_store(
    store: Store, kind: StoreKind, address: str, cluster: str, secret: bytes, environment: Environment, network: Network, record: NodeRecord
) -> Coordination:
    """Enter `record` into the cluster of `store`, or found it there. Raises `StoreMismatchError`, `NodeNameTakenError`, `StoreError`."""
    charter = await find_or_write_charter(store, cluster, secret, environment)
    enrolment = Enrolment(store, environment, record)
    await enrolment.enter(network)
    return Coordination(kind, charter.identity, enrolment, store, address=address)


async def enter_by_member(
    address: str, cluster: str, secret: bytes, environment: Environment, network: Network, record: NodeRecord
) -> Coordination | Elsewhere:
    """Enter `record` into the cluster that a member at `address` belongs to, if its store is served by one of its nodes.

    Raises `JoinError` (nobody answers, with the next step), `NodeNameTakenError` or a `HandshakeError`.
    """
    async with open_client(address, cluster, secret, environment, network, record.host) as client:
        where = client.status["store"]
        if where["kind"] != "embedded":
            return Elsewhere(where["address"])
        found = [member for member in client.status["members"] if member["name"] == where["node"]]
        if not found:
            raise JoinError(
                f"{address} names {where['node']} as the store's node, but does not know where it is; try again, or join by that node"
            )
        peer = peer_of(found[0])
        if peer.identity == (client.status["node"], client.status["incarnation"]):
            # It answers there, whatever it tells others to dial.
            known = (*peer.addresses, ":".join(split_address(address)))
            peer = attrs.evolve(peer, addresses=tuple(dict.fromkeys(known)))
        enrolment = Enrolment(client.store, environment, record)
        if await answered(partial(enrolment.enter, network), partial(_is_connected, client, peer)) is not None:
            return Coordination("embedded", where["identity"], enrolment, peer=peer)
        why = unreached(client, found[0])
    if why:
        raise JoinError(
            f"{address} answers, but the node {where['node']}, which keeps the cluster's store, cannot be reached from here ({why}); "
            "start it with a listen address, or with --advertise HOST:PORT, that others can dial"
        )
    raise JoinError(f"the store of the cluster at {address} did not answer within {JOIN_SECONDS:g} s; is its node, {where['node']}, well?")


def _is_connected(client: Client, peer: Peer) -> bool:
    """True while a connection stands to the node that keeps the store."""
    link = client.station.peers.links.get(peer.identity)
    return link is not None and link.connected
