"""Routes: where the actor of a handle is, kept beside the handle until it turns out to be wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import trio

from actors.errors import ActorNotFoundError, NodeUnreachableError, NotExecutedError, StoreUnavailableError
from actors.method import Address, Bound
from runtime.calls.failures import Place
from runtime.calls.outgoing import OutgoingCalls
from runtime.links.link import Link
from runtime.wire.codec import Codec
from runtime.wire.frames import Buffer


class Directory(Protocol):
    """Where actors and nodes are."""

    async def locate(self, name: str) -> Address:
        """The address of a registered actor, waiting while its supervisor restarts it. Raises `ActorNotFoundError`."""
        ...

    async def link_to(self, node: str, incarnation: int) -> Link | None:
        """The link to that start of that node; None if it is known to have ended."""
        ...


class Route:
    """Where one method of one actor was found, and the part of its calls that never changes."""

    __slots__ = ("address", "calls", "link", "place", "prefix")

    def __init__(
        self, address: Address, place: Place, prefix: bytes, link: Link | None, calls: OutgoingCalls[trio.lowlevel.Task] | None
    ) -> None:
        self.address = address
        self.place = place
        self.prefix = prefix
        self.link = link
        """None: the actor is on this node."""
        self.calls = calls


class Routes:
    """Finds routes for one identity, and keeps the table of calls of each link that they lead over."""

    def __init__(self, identity: tuple[str, int], codec: Codec, directory: Directory) -> None:
        self._identity = identity
        self._codec = codec
        self._directory = directory
        self.tables: dict[Link, OutgoingCalls[trio.lowlevel.Task]] = {}
        self.links: Mapping[tuple[str, int], Link] = {}
        """The links that there are, by name and incarnation of the peer."""

    def known(self, bound: Bound) -> Route | None:
        """The route found before, if nothing speaks against it; or the one that the handle tells, if that takes no asking."""
        route = bound.route
        if isinstance(route, Route) and (route.link is None or route.link.ended is None):
            return route
        return None if bound.moved else self._at_hand(bound)

    async def find(self, bound: Bound) -> Route:
        """The route, looked up if need be. Raises `ActorNotFoundError`, `NodeUnreachableError`, or `NotExecutedError` while the store that
        would know is away.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        address = bound.address
        # The first call goes where the handle says; later ones come here because that was no longer true.
        route = None if bound.moved else await self._make(bound, address)
        if route is None:
            bound.moved = True
            if not address.registered:
                raise ActorNotFoundError(
                    f"{address.name} ended with node {address.node}", actor=address.name, method=bound.definition.name, node=address.node
                )
            address = await self._located(bound)
            route = await self._make(bound, address)
        if route is None:
            raise NodeUnreachableError(
                f"node {address.node}, which has {address.name}, has just ended", actor=address.name, node=address.node
            )
        bound.route = route
        return route

    async def _located(self, bound: Bound) -> Address:
        try:
            return await self._directory.locate(bound.address.name)
        except StoreUnavailableError as error:
            # An attempt that was not made. What that makes of the whole call, those before it say as well.
            raise NotExecutedError(
                f"{bound.address.name} could not be looked up, and may live: {error}",
                actor=bound.address.name,
                method=bound.definition.name,
            ) from error

    def table(self, link: Link) -> OutgoingCalls[trio.lowlevel.Task]:
        """The calls that wait on `link`."""
        table = self.tables.get(link)
        if table is None:
            table = self.tables[link] = OutgoingCalls()
        return table

    def _at_hand(self, bound: Bound) -> Route | None:
        address = bound.address
        identity = (address.node, address.incarnation)
        if identity == self._identity:
            route = bound.route = self._local(bound, address)
            return route
        link = self.links.get(identity)
        if link is None or link.ended is not None or link.fenced:
            # Fenced: its peer has lost its place in the cluster, and what is asked of it may never be answered.
            return None
        route = bound.route = self._over(link, bound, address)
        return route

    async def _make(self, bound: Bound, address: Address) -> Route | None:
        if (address.node, address.incarnation) == self._identity:
            return self._local(bound, address)
        link = await self._directory.link_to(address.node, address.incarnation)
        return self._over(link, bound, address) if link is not None else None

    def _local(self, bound: Bound, address: Address) -> Route:
        return Route(address, Place(address.name, bound.definition.name, address.node, address.epoch), b"", None, None)

    def _over(self, link: Link, bound: Bound, address: Address) -> Route:
        place = Place(address.name, bound.definition.name, address.node, address.epoch)
        nothing: list[Buffer] = []
        prefix = b"".join(self._codec.encode(part, nothing) for part in (address.name, address.epoch, bound.definition.name))
        return Route(address, place, prefix, link, self.table(link))
