"""The way to a store that another node serves, also after that node was started anew.

A restarted node has another incarnation, which nobody can learn from a store that is away. So its addresses are dialled, as when joining,
until somebody answers there who knows of the same store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import trio

from actors.errors import CallError, HandshakeError, ProtocolError, WrongStoreError
from runtime.calls.station import Station
from runtime.environment import Environment
from runtime.hosting.services import store_service
from runtime.links.link import Link
from runtime.membership.join import peer_of
from runtime.store.service import RemoteStore, StoreService
from runtime.wire.introduction import Peer

PATIENCE = 1.0
"""Seconds that the link to the store's node may be without a connection before its addresses are asked who is there now."""

LOOK_EVERY = 0.5
ASK_SECONDS = 2.0

logger = logging.getLogger("understudy.membership")


class StoreContact:
    """`store`: for all of this node's life. `peer`: the incarnation that serves it, as far as is known."""

    def __init__(self, station: Station, peer: Peer, identity: str, environment: Environment) -> None:
        self._station = station
        self._identity = identity
        self._environment = environment
        self.peer = peer
        self.store = RemoteStore(self._service())

    async def run(self, ended: Callable[[tuple[str, int], str], None], foreign: Callable[[], None]) -> None:
        """Follow the store's node for ever.

        `ended` is told of the incarnation that was replaced; `foreign` is called if another store is found in its place: ours is lost.
        """
        while True:
            await self._lost(self.link())
            found = None
            # Another link each time, if the last has ended: that says nothing about the node. Who answers may be another process at the
            # same place, with another store.
            while found is None or not self.link().connected:
                try:
                    found = await self._look()
                except WrongStoreError:
                    logger.error("the node %s serves another store now: ours is lost, and with it this node's place", self.peer.name)
                    foreign()
                    return
                if found is not None and (before := self._moved(found)) is not None:
                    ended(before.identity, f"it was started anew as incarnation {self.peer.incarnation}")
                    break
                if found is not None and self.link().connected:
                    break
                await trio.sleep(LOOK_EVERY * (0.5 + self._environment.random()))

    def link(self) -> Link:
        """To the store's node, which the store need not be asked about."""
        return self._station.peers.link(self.peer)

    async def _lost(self, link: Link) -> None:
        while link.ended is None:
            await link.disconnected()
            with trio.move_on_after(PATIENCE):
                await link.connected_again()
                continue
            return

    async def _look(self) -> dict[str, Any] | None:
        """What the node says of itself that answers at the addresses of the store's node. Raises `WrongStoreError` if it has another."""
        foreign: WrongStoreError | None = None
        for address in self.peer.addresses:
            if address.startswith("tcp:"):
                with trio.move_on_after(ASK_SECONDS):
                    try:
                        link = await self._station.peers.first_contact(address.removeprefix("tcp:"))
                        service = self._station.node_service(link.peer.name, link.peer.incarnation)
                        return cast("dict[str, Any]", await service.options(timeout=ASK_SECONDS).status())
                    except WrongStoreError as error:
                        # An address may mean another machine here: the next one counts as well.
                        foreign = error
                    except (OSError, ValueError, trio.ClosedResourceError, HandshakeError, ProtocolError, CallError) as error:
                        logger.debug("nobody who knows of the store answers at %s: %s", address, error)
        if foreign is not None:
            raise foreign
        return None

    def _moved(self, status: dict[str, Any]) -> Peer | None:
        """Use the incarnation that serves the store now; returns the one before, or None if it is the same."""
        where = status["store"]
        name, incarnation = where["node"], where["incarnation"]
        found = [member for member in status["members"] if (member["name"], member["incarnation"]) == (name, incarnation)]
        if not found or (name, incarnation) == self.peer.identity:
            return None
        logger.warning("the store is served by %s (incarnation %d) now", name, incarnation)
        before, self.peer = self.peer, peer_of(found[0])
        self.store.use(self._service())
        return before

    def _service(self) -> StoreService:
        return cast("StoreService", self._station.system_handle(StoreService, store_service(self._identity), *self.peer.identity))
