"""The way to a store that another node serves, also after that node was restarted.

A restarted node has another incarnation, which cannot be learned from a store that cannot be
reached. So the addresses of the store's node are dialled, as when joining, until a node answers
there that knows the same store. And the address by which this process has joined: it may be a name
that leads to the node at its new address, when all those that it had before lead nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, cast

import trio

from actors.actor import Member
from actors.errors import (
    CallError,
    HandshakeError,
    ProtocolError,
    WrongStoreError,
)
from actors.identifiers import NodeId
from actors.own_logger import own_logger
from runtime.calls.endpoint import RpcEndpoint
from runtime.environment import Environment
from runtime.hosting.node_service import store_service
from runtime.links.link import Link
from runtime.links.transports import split_address
from runtime.membership.cluster_client import (
    contact_facts,
    peer_of,
)
from runtime.membership.remote_store import RemoteStore, StoreService
from runtime.wire.handshake import Peer

logger = own_logger("understudy.membership")


class StoreLocator:
    """`store`: for all of this node's life. `peer`: the incarnation that serves it, as far as is
    known.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        peer: Peer,
        identity: str,
        environment: Environment,
        others: Callable[[], Sequence[Member]] | None = None,
        joined: str = "",
    ) -> None:
        """`others`: the members, each of which reaches the store as well as `peer` does; None where
        only that one serves it. `joined`: the address by which this process has joined.
        """
        self._others = others
        self._joined = (":".join(split_address(joined)),) if joined else ()
        self._endpoint = endpoint
        self._identity = identity
        self._environment = environment
        self._timings = environment.timings
        self.peer = peer
        self.store = RemoteStore(
            self._service(), self._timings.store_call, endpoint.nursery, self._unreached
        )

    async def run(self, ended: Callable[[NodeId, str], None], foreign: Callable[[], None]) -> None:
        """Follow the store's node until cancelled. Calls `ended` with the incarnation that was
        replaced; calls `foreign` if another store is found in its place: this cluster's store is
        lost.
        """
        while True:
            await self._wait_lost(self.link())
            found = None
            # Another link each time, if the last has ended: that says nothing about the node. Who
            # answers may be another process at the same place, with another store.
            while found is None or not self.link().connected:
                try:
                    found = await self._ask_addresses()
                except WrongStoreError:
                    logger.error(
                        "the node %s serves another store now: this cluster's store is lost, so "
                        "this node is no longer a member",
                        self.peer.name,
                    )
                    foreign()
                    return
                if found is not None and (before := self._moved(found)) is not None:
                    # One of several ways to a store may be out of reach, and live.
                    if self._others is None:
                        ended(
                            before.identity,
                            f"it was started anew as incarnation {self.peer.incarnation}",
                        )
                    break
                if found is not None and self.link().connected:
                    break
                await trio.sleep(
                    # Drawn anew for each node: all of them lose the store in the same moment.
                    self._timings.store_asked_again * (0.5 + self._environment.random())
                )

    def link(self) -> Link:
        """The link to the store's node, whose address is known without the store."""
        return self._endpoint.peers.link(self.peer)

    def _unreached(self) -> str:
        # Not `link()`, which would begin one.
        link = self._endpoint.peers.links.get(self.peer.identity)
        return "" if link is None else link.unreached()

    async def _wait_lost(self, link: Link) -> None:
        while link.ended is None:
            # A connection that is back in time says that nothing was lost; dialling by address
            # could only find the same incarnation.
            await link.disconnected()
            with trio.move_on_after(self._timings.store_lost):
                await link.connected_again()
                continue
            return

    async def _ask_addresses(self) -> dict[str, Any] | None:
        """Ask each address where the store may be served for its node's status; return the first
        answer, or None. Raises `WrongStoreError` if no address answers and one belongs to a cluster
        with another store.
        """
        foreign: WrongStoreError | None = None
        seconds = self._timings.store_asked
        others = () if self._others is None else self._others()
        places = [self.peer.addresses, *(one.addresses for one in others), self._joined]
        elsewhere = set(self._joined).difference(*places[:-1])
        for address in dict.fromkeys(chain.from_iterable(places)):
            if address.startswith("tcp:"):
                with trio.move_on_after(seconds):
                    try:
                        link = await self._endpoint.peers.first_contact(
                            address.removeprefix("tcp:")
                        )
                        service = self._endpoint.node_service(link.peer.name, link.peer.incarnation)
                        return await contact_facts(
                            service.options(timeout=seconds), all_members=False
                        )
                    except WrongStoreError as error:
                        # An address may mean another machine here: the next one counts as well.
                        # That of a member that is gone may be another cluster's by now, which says
                        # nothing about the store.
                        if address not in elsewhere:
                            foreign = error
                    except (
                        OSError,
                        ValueError,
                        trio.ClosedResourceError,
                        HandshakeError,
                        ProtocolError,
                        CallError,
                    ) as error:
                        logger.debug(
                            "no node that knows the store answers at %s: %s", address, error
                        )
        if foreign is not None:
            raise foreign
        return None

    def _moved(self, status: dict[str, Any]) -> Peer | None:
        """Use the incarnation that serves the store now; returns the one before, or None if it is
        the same.
        """
        where = status["store"]
        name, incarnation = where["node"], where["incarnation"]
        found = [
            member
            for member in status["members"]
            if (member["name"], member["incarnation"]) == (name, incarnation)
        ]
        if not found or (name, incarnation) == self.peer.identity:
            return None
        logger.warning("the store is served by %s (incarnation %d) now", name, incarnation)
        # The peer first: the handle that `use` gets below names the new incarnation.
        before, self.peer = self.peer, peer_of(found[0])
        self.store.use(self._service())
        return before

    def _service(self) -> StoreService:
        return cast(
            "StoreService",
            self._endpoint.system_handle(
                StoreService, store_service(self._identity), *self.peer.identity
            ),
        )
