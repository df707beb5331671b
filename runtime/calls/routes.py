"""Routes: the place of the actor of a handle, cached beside the handle until it turns out to be
wrong.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeVar

import attrs
import trio

from actors.errors import (
    ActorNotFoundError,
    CallError,
    ClassMismatchError,
    DirectoryUnavailableError,
    NodeUnreachableError,
    StaleEpochError,
    StoreError,
)
from actors.identifiers import ActorId, NodeId
from actors.method import Address, Bound
from runtime.calls.classes import fits
from runtime.calls.deadlines import wake
from runtime.calls.error_codec import CallPlace
from runtime.calls.pending_calls import OutgoingCalls, PendingCall
from runtime.links.deferred_posts import DeferredPost
from runtime.links.link import Link
from runtime.wire.codec import Codec
from runtime.wire.frames import Buffer

T = TypeVar("T")

MOVES_KEPT = 10_000
"""How many moved actors are remembered with their new places; the handles of others look them up
themselves.
"""


@attrs.frozen
class PeerDirectory:
    """Finds the addresses of actors, and the links to nodes."""

    locate: Callable[[str], Awaitable[Address]]
    """The address of a registered actor, by its name, waiting while its supervisor restarts it.
    Raises `ActorNotFoundError`.
    """
    link_to: Callable[[str, int], Awaitable[Link | None]]
    """The link to that start of that node (name and incarnation); None if it is known to have
    ended.
    """
    why_absent: Callable[[str], str] = lambda name: ""
    """A sentence that says why an actor of this name does not run, while it is waited for; "" if
    that is not known.
    """


class Route:
    """The place of one method of one actor, and the encoded part of its calls that never
    changes.
    """

    __slots__ = ("address", "calls", "link", "moves", "one_way", "place", "prefix")

    def __init__(
        self,
        address: Address,
        place: CallPlace,
        prefix: bytes,
        link: Link | None,
        calls: OutgoingCalls[trio.lowlevel.Task] | None,
    ) -> None:
        self.address = address
        self.place = place
        self.prefix = prefix
        self.link = link
        """None: the actor is on this node."""
        self.calls = calls
        self.moves = 0
        """How many moves of actors had been seen when the route was last checked."""
        self.one_way = False
        """True once a one-way call was sent over it."""


class _Move(NamedTuple):
    """The place of an actor, and the one where it was found before."""

    now: Address
    before: Address | None


class Routes:
    """Finds routes for one identity, and keeps the table of calls of each link that they
    lead over.
    """

    def __init__(
        self,
        identity: NodeId,
        codec: Codec,
        directory: PeerDirectory,
        links: Mapping[NodeId, Link],
    ) -> None:
        self.identity = identity
        self._codec = codec
        self.directory = directory
        self.tables: dict[Link, OutgoingCalls[trio.lowlevel.Task]] = {}
        self.links = links
        """The existing links, by name and incarnation of the peer."""
        self._moved: OrderedDict[str, _Move] = OrderedDict()
        """The places of actors that had moved from those in their handles: found by one call, for
        all others.
        """
        self._moves = 0
        self._sent_to: OrderedDict[ActorId, Address] = OrderedDict()
        """Where routes have led: for one-way calls that come back, without their handles. With the
        epochs, because the actor may have been found anew before they come.
        """
        self._one_way: OrderedDict[ActorId, None] = OrderedDict()
        """Those of them to which one-way calls were sent."""

    def known(self, bound: Bound) -> Route | None:
        """Return the cached route if it is still valid, or the one in the handle's address if no
        lookup is needed.
        """
        route = bound._route
        if isinstance(route, Route) and (route.link is None or route.link.ended is None):
            # Moves are rare: one comparison of counters replaces a look into the table of moved
            # actors.
            return route if route.moves == self._moves else self._looked_at(bound, route)
        return None if bound._moved else self._at_hand(bound, self._newest(bound))

    def at(self, bound: Bound, address: Address) -> Route | None:
        """Return the route to the place where another call has found the actor, if no lookup is
        needed.
        """
        return self._at_hand(bound, address) if self._fits(bound, address) else None

    def beside(self, bound: Bound, route: Route) -> Route:
        """Return the route of another call to the actor of `route`. Raises `ClassMismatchError`."""
        self._check_class(bound, route.address)
        return self._led(bound, route.address, route.link)

    async def find(self, bound: Bound) -> Route:
        """Return the route, looked up if necessary. Raises `ActorNotFoundError`,
        `NodeUnreachableError`, `ClassMismatchError`, or `DirectoryUnavailableError` while the store
        cannot be reached.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        address = self._newest(bound)
        # The first call goes where the handle says; later ones come here because that was no longer
        # true.
        route = None if bound._moved else await self._found(bound, self._make(bound, address))
        if route is None:
            left = None if bound._moved else address
            bound._moved = True
            if not address.registered:
                raise ActorNotFoundError(
                    f"{address.name} ended with node {address.node}",
                    actor=address.name,
                    method=bound._definition.name,
                    node=address.node,
                )
            address = await self._located(bound, left)
            self._moved_to(address)
            self._check_class(bound, address)
            route = await self._found(bound, self._make(bound, address))
        if route is None:
            raise NodeUnreachableError(
                f"node {address.node}, which has {address.name}, has just ended",
                actor=address.name,
                node=address.node,
            )
        bound._route = route
        return route

    async def _located(self, bound: Bound, left: Address | None) -> Address:
        """Ask where the actor is now. `left`: where it was last, on a node that has ended."""
        name = bound._address.name
        try:
            return await self._found(bound, self.directory.locate(name))
        except ActorNotFoundError as error:
            if left is None:
                raise
            raise ActorNotFoundError(
                f"{name} was last on node {left.node}, which has ended: {error}",
                actor=name,
                method=error.method,
                node=left.node,
            ) from None

    async def _found(self, bound: Bound, asking: Awaitable[T]) -> T:
        """Return the answer of the directory. If it fails, this attempt was not made; earlier
        attempts of the call may have run.
        """
        actor, method = bound._address.name, bound._definition.name
        try:
            return await asking
        except StoreError as error:
            raise DirectoryUnavailableError(
                f"{actor} could not be looked up, so it may still be running: {error}",
                actor=actor,
                method=method,
            ) from error
        except CallError as error:
            error.actor, error.method = actor, method
            raise

    def _fits(self, bound: Bound, found: Address) -> bool:
        return fits(bound._address.class_path, found.class_path, self._codec.find_class)

    def _check_class(self, bound: Bound, found: Address) -> None:
        expected, name, method = (
            bound._address.class_path,
            bound._address.name,
            bound._definition.name,
        )
        if not self._fits(bound, found):
            raise ClassMismatchError(
                f"{name}.{method} was not called: {name} is of class {found.class_path} now, on "
                f"node {found.node}, and the handle is for an actor of class {expected}, which "
                f"has ended; look {name} up again",
                actor=name,
                method=method,
                node=found.node,
                epoch=found.epoch,
            )

    def pending(self) -> list[PendingCall[trio.lowlevel.Task]]:
        """All calls to other nodes that wait for an answer."""
        return [call for table in self.tables.values() for call in table.pending.values()]

    def table(self, link: Link) -> OutgoingCalls[trio.lowlevel.Task]:
        """The calls that wait on `link`."""
        table = self.tables.get(link)
        if table is None:
            table = self.tables[link] = OutgoingCalls()
        return table

    def waits_at(self, name: str, place: tuple[str, int, int]) -> bool:
        """True if a call to that epoch of an actor has no answer yet."""
        node, incarnation, epoch = place
        link = self.links.get(NodeId(node, incarnation))
        table = self.tables.get(link) if link is not None and link.ended is None else None
        if table is None:
            return False
        return any(
            call.place.actor == name and call.place.epoch == epoch
            for call in table.pending.values()
        )

    def recall(self, name: str, place: tuple[str, int, int]) -> None:
        """End the calls to that epoch of an actor that are deferred on its link: they certainly did
        not run, and are made again where the actor is now.
        """
        node, incarnation, epoch = place
        link = self.links.get(NodeId(node, incarnation))
        table = self.tables.get(link) if link is not None else None
        if link is None or table is None:
            return
        for call in list(table.pending.values()):
            if (
                isinstance(call.ticket, DeferredPost)
                and call.place.actor == name
                and call.place.epoch == epoch
            ):
                link.abandon(call.ticket)
                table.take(call.number)
                call.fail(left_meanwhile(call.place))
                wake(call)

    def before(self, bound: Bound, place: tuple[str, int, int]) -> set[tuple[str, int, int]]:
        """Return the earlier places of the actor, before it was found at `place`, as far as this
        handle and the last move show.
        """
        address = bound._address
        if not address.registered:
            return set()
        move = self._moved.get(address.name)
        earlier = [address] if move is None or move.before is None else [address, move.before]
        return {(one.node, one.incarnation, one.epoch) for one in earlier if one.epoch < place[2]}

    def _at_hand(self, bound: Bound, address: Address) -> Route | None:
        identity = address.node_id
        if identity == self.identity:
            return self._led(bound, address, None)
        link = self.links.get(identity)
        if link is None or link.ended is not None or link.fenced:
            # Fenced: its peer has lost its place in the cluster, and what is asked of it may never
            # be answered.
            return None
        return self._led(bound, address, link)

    def _led(self, bound: Bound, address: Address, link: Link | None) -> Route:
        """Make the route over `link`, and cache it beside the handle."""
        route = bound._route
        if not isinstance(route, Route) or route.address != address or route.link is not link:
            route = bound._route = (
                self._local(bound, address) if link is None else self._over(link, bound, address)
            )
            bound._moved = bound._moved or (
                address is not bound._address and address != bound._address
            )
        route.moves = self._moves
        return route

    def _moved_to(self, address: Address) -> None:
        """Note the address of an actor that the store has returned."""
        known = self._moved.pop(address.name, None)
        # A lookup that was answered late may return an older epoch: it is ignored.
        if known is None or known.now.epoch < address.epoch:
            known = _Move(address, None if known is None else known.now)
            self._moves += 1
        assert known.before is None or known.before.epoch < known.now.epoch, "epochs only grow"
        self._moved[address.name] = known
        # Bounded: handles of forgotten actors look them up again.
        while len(self._moved) > MOVES_KEPT:
            self._moved.popitem(last=False)
        assert len(self._moved) <= MOVES_KEPT

    def _newest(self, bound: Bound) -> Address:
        """Return the address in the handle, or the one that another call has found since."""
        move = (
            self._moved.get(bound._address.name)
            if self._moves and bound._address.registered
            else None
        )
        return (
            move.now
            if move is not None
            and move.now.epoch > bound._address.epoch
            and self._fits(bound, move.now)
            else bound._address
        )

    def _looked_at(self, bound: Bound, route: Route) -> Route | None:
        """Return the cached route after some actor has moved; None if it was this one and a lookup
        is needed.
        """
        newest = self._newest(bound)
        if newest.epoch <= route.address.epoch:
            route.moves = self._moves
            return route
        return self._at_hand(bound, newest)

    async def _make(self, bound: Bound, address: Address) -> Route | None:
        if (address.node, address.incarnation) == self.identity:
            return self._local(bound, address)
        link = await self.directory.link_to(address.node, address.incarnation)
        return self._over(link, bound, address) if link is not None else None

    def _local(self, bound: Bound, address: Address) -> Route:
        self._note_place(address)
        return Route(
            address,
            CallPlace(address.name, bound._definition.name, address.node, address.epoch),
            b"",
            None,
            None,
        )

    def sent_to(self, name: str, epoch: int) -> Address | None:
        """Return the address of an actor to which this node has sent calls, as it was in that
        epoch; None if that is not known any more, or if handles differ about its class.
        """
        address = self._sent_to.get(ActorId(name, epoch))
        return address if address is not None and address.class_path else None

    def note_one_way(self, route: Route) -> None:
        """Note that a one-way call is sent over a route, for the first time."""
        route.one_way = True
        self._one_way[ActorId(route.address.name, route.address.epoch)] = None
        while len(self._one_way) > MOVES_KEPT:
            self._one_way.popitem(last=False)

    def may_have_returned(self, name: str, place: tuple[str, int, int]) -> bool:
        """True if one-way calls that were sent to that epoch of an actor may be on their way back
        from another node. Those of a node that has ended are lost with it.
        """
        node, incarnation, epoch = place
        link = self.links.get(NodeId(node, incarnation))
        return link is not None and link.ended is None and ActorId(name, epoch) in self._one_way

    def _note_place(self, address: Address) -> None:
        if not address.registered:
            return
        key = ActorId(address.name, address.epoch)
        if self._sent_to.pop(key, address).class_path != address.class_path:
            # Whose handle the call that comes back was made by is not known then, and it must not
            # reach an actor of a class that its own handle would refuse.
            address = attrs.evolve(address, class_path="")
        self._sent_to[key] = address
        # Bounded: the calls of forgotten actors are not sent again.
        while len(self._sent_to) > MOVES_KEPT:
            self._sent_to.popitem(last=False)
        assert len(self._sent_to) <= MOVES_KEPT

    def _over(self, link: Link, bound: Bound, address: Address) -> Route:
        self._note_place(address)
        place = CallPlace(address.name, bound._definition.name, address.node, address.epoch)
        nothing: list[Buffer] = []
        prefix = b"".join(
            self._codec.encode(part, nothing)
            for part in (address.name, address.epoch, bound._definition.name)
        )
        return Route(address, place, prefix, link, self.table(link))


def passed_over(address: Address, method: str) -> NodeUnreachableError:
    """Return the error of a member that is not called because its node is unreachable."""
    return NodeUnreachableError(
        f"{address.name}.{method} was not called: node {address.node} cannot be reached at the "
        "moment",
        actor=address.name,
        method=method,
        node=address.node,
    )


def left_meanwhile(place: CallPlace) -> StaleEpochError:
    """Return the error of a call whose turn on its link has come too late."""
    return StaleEpochError(
        f"{place.actor} was about to move from node {place.node}, or to restart, before "
        f"{place.actor}.{place.method} was sent there; the call did not run",
        actor=place.actor,
        method=place.method,
        node=place.node,
        epoch=place.epoch,
        attempts=1,
    )
