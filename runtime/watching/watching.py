"""Watching at work: actors' watches and links, and the word of ends between nodes.

The node of a watched actor is asked once, remembers who asked, and tells of the end; what ends with its node is told of by the view of the
members. So a watch that waits costs two table entries and no task. What to tell is decided by the tables; here it is carried.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import attrs
import trio

from actors.errors import CallError, MailboxFullError, NotExecutedError, StoreError
from actors.handle import Handle
from actors.method import Address
from actors.supervision import ExitReason
from actors.watching import Ended, Watch
from runtime.calls.station import Station
from runtime.hosting.cell import Cell
from runtime.membership.members import Members
from runtime.membership.names import Names
from runtime.watching.notices import Notices, live
from runtime.watching.tables import Node, Standing, Target, Watched, Watches
from runtime.watching.telling import MOST_TOGETHER, Others, Telling, short

STANDS_SECONDS = 1.0
"""How long `watch` waits to be known at the other node before it returns."""

PROMISE_SECONDS = 2.0
"""How long a notice waits for the store to say whether the name is promised."""

GIVE_UP_SECONDS = 1.0
"""How long a link that was cancelled may take to undo its far side."""

MOST_LINKS = 20_000
"""Links that actors of other nodes may tie to one actor here; each costs a table entry, and a task until it stands."""

logger = logging.getLogger("understudy.watching")


@attrs.define(eq=False)
class _Asking:
    """A target whose node is being asked, or knows already. `stands` is set when it does, or will never."""

    serial: int
    stands: trio.Event = attrs.field(factory=trio.Event)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)


class Watching:
    """That of one node; see `runtime.hosting.extensions.Extension`, and `runtime.watching.service.Desk`."""

    def __init__(self, station: Station, members: Members, names: Names, nursery: trio.Nursery) -> None:
        self._station = station
        self._host = station.host
        self._names = names
        self._nursery = nursery
        self._here: Node = station.identity
        self._others = others = Others(station, members)
        self._telling = Telling(others, self._here, nursery)
        self._watches = Watches()
        self._watched = Watched()
        self._notices = Notices(station.host, nursery)
        self._asking: dict[Target, _Asking] = {}
        self._ending: set[Target] = set()
        self._serial = 0
        self._outside: dict[int, Callable[[Ended], None]] = {}

    def loads(self) -> dict[str, int]:
        """How much is kept at the moment."""
        return {
            "watches": len(self._watches),
            "watched": len(self._watched),
            "asked": len(self._asking),
            "notices": len(self._notices),
            "untold": len(self._telling),
        }

    # For actors and for code outside of them

    def of(self, cell: Cell) -> ActorSide:
        """See `Extension.of`."""
        return ActorSide(self, cell)

    async def watch(self, cell: Cell, handle: object) -> Watch:
        """See `actors.watching.Observing.watch`."""
        target, missing = await self._resolve(handle)
        _check_lives(cell)
        one = self._watches.add(_actor(cell), target)
        self._begin(target, missing)
        await self._until_it_stands(target)
        return Watch(one.number, target.name, target.epoch, partial(self.cancel, one.number))

    async def wait_ended(self, handle: object) -> Ended:
        """See `NodeInterface.wait_ended`."""
        target, missing = await self._resolve(handle)
        one = self._watches.add(None, target)
        notices: list[Ended] = []
        told = trio.Event()

        def tell(notice: Ended) -> None:
            notices.append(notice)
            told.set()

        self._outside[one.number] = tell
        try:
            self._begin(target, missing)
            await told.wait()
            return notices[0]
        finally:
            self._outside.pop(one.number, None)
            self.cancel(one.number)

    def cancel(self, number: int) -> None:
        """See `Watch.cancel`."""
        unwanted = self._watches.drop(number)
        if unwanted is not None:
            self._let_go([unwanted])
        self._notices.recall(number)

    async def link(self, cell: Cell, handle: object) -> None:
        """See `actors.watching.Observing.link`."""
        target, missing = await self._resolve(handle)
        _check_lives(cell)
        if target.actor == _actor(cell):
            return
        one = self._watches.add_link(_actor(cell), target)
        if one is None:
            return
        self._begin(target, missing)
        try:
            await self._until_it_stands(target)
            await self._tell_far_side(target, cell.address, lambda: one.number in self._watches)
        except trio.Cancelled:
            self.cancel(one.number)
            with trio.CancelScope(shield=True), trio.move_on_after(GIVE_UP_SECONDS):
                await self._untie_far_side(target, cell.address)
            raise

    async def unlink(self, cell: Cell, handle: object) -> None:
        """See `actors.watching.Observing.unlink`."""
        if not isinstance(handle, Handle):
            raise TypeError(f"unlink takes a handle, not {handle!r}")
        for one in self._watches.links_to(_actor(cell), handle.name):
            self.cancel(one.number)
            await self._untie_far_side(one.target, cell.address)
        await trio.lowlevel.checkpoint()

    # What the host tells

    def ending(self, cell: Cell) -> None:
        """See `Extension.ending`: nothing is told to it any more."""
        self._let_go(self._watches.drop_watcher(_actor(cell)))

    def ended(self, address: Address, reason: ExitReason) -> None:
        """See `Extension.ended`: whoever wanted to know is told."""
        for node in self._watched.ended((address.name, address.epoch)):
            if node == self._here:
                self._finish(Target.of(address), reason)
            else:
                self._telling.tell(node, (address.name, address.epoch, short(reason)))

    def gone(self, node: Node) -> None:
        """That incarnation has ended. Being told twice is being told once."""
        self._watched.forget(node)
        for target in self._watches.on_node(node):
            self._finish(target, _node_died(target))

    # What other nodes ask; see `Desk`

    def asked(self, name: str, epoch: int, asker: Node, serial: int, *, before: bool) -> ExitReason | None:
        """See `WatchingService.ask`."""
        cell = live(self._host, (name, epoch))
        if cell is not None:
            if not self._watched.ask(_actor(cell), asker, serial):
                raise MailboxFullError(f"too many nodes wait for the end of {name} on {self._here[0]} already")
            return None
        ended = self._host.remembered(name, epoch)
        if ended is not None and before:
            return short(ended)
        why = f"{name} is not on node {self._here[0]}" if ended is None else f"{name} had ended before: {ended.kind}"
        return ExitReason("no such actor", why)

    def taken_back(self, name: str, epoch: int, asker: Node, serial: int) -> None:
        """See `WatchingService.take_back`."""
        self._watched.take_back((name, epoch), asker, serial)

    def told(self, name: str, epoch: int, node: Node, reason: ExitReason) -> None:
        """See `WatchingService.tell`."""
        self._finish(Target(name, epoch, node), reason)

    def linked(self, name: str, epoch: int, linker: Address) -> None:
        """See `WatchingService.link_actor`."""
        cell = live(self._host, (name, epoch))
        if cell is not None and cell.ended is None:
            target = Target.of(linker)
            if self._watches.count_of(_actor(cell)) >= MOST_LINKS:
                raise MailboxFullError(f"{name} on {self._here[0]} is linked to {MOST_LINKS} actors already, its limit")
            if self._watches.add_link(_actor(cell), target) is not None:
                # It was there when it asked for the link.
                self._begin(target, None, before=True)

    def unlinked(self, name: str, epoch: int, linker: Address) -> None:
        """See `WatchingService.unlink_actor`."""
        one = self._watches.link((name, epoch), Target.of(linker))
        if one is not None:
            self.cancel(one.number)

    # Targets

    async def _resolve(self, handle: object) -> tuple[Target, ExitReason | None]:
        """The present epoch of an actor, and why there is none, if that is so."""
        if not isinstance(handle, Handle):
            raise TypeError(f"watching and linking take a handle, not {handle!r}")
        address = handle.address
        if not address.registered:
            await trio.lowlevel.checkpoint()
            return Target.of(address), None
        cell = self._host.cells.get(address.name)
        here = cell is not None and cell.leased and not cell.paused and cell.ended is None
        if cell is not None and here and self._station.fits(address, cell.address):
            await trio.lowlevel.checkpoint()
            return Target.of(cell.address), None
        with self._station.lifetime.asking(f"{address.name} could not be looked up, and is not watched"):
            found = await self._names.find(address.name)
        if found is None or not self._station.fits(address, found):
            self._serial += 1
            absent = attrs.evolve(Target.of(address), absent=self._serial)
            what = f"{address.name!r} is of class {found.class_path} now" if found is not None else f"no actor is called {address.name!r}"
            return absent, ExitReason("no such actor", what)
        return Target.of(found), None

    def _begin(self, target: Target, missing: ExitReason | None, *, before: bool = False) -> None:
        """See to it that the end of a target is learned."""
        if missing is not None:
            self._finish(target, missing)
        elif target in self._asking or target in self._ending:
            return
        elif target.node == self._here:
            self._serial += 1
            self._asking[target] = asking = _Asking(self._serial)
            asking.stands.set()
            reason = self.asked(target.name, target.epoch, self._here, asking.serial, before=before)
            if reason is not None:
                self._finish(target, reason)
        elif self._others.is_gone(target.node):
            self._finish(target, _node_died(target))
        else:
            self._serial += 1
            self._asking[target] = asking = _Asking(self._serial)
            self._nursery.start_soon(self._ask, target, asking, before, name=f"watch of {target.name}")

    async def _until_it_stands(self, target: Target) -> None:
        asking = self._asking.get(target)
        with trio.move_on_after(STANDS_SECONDS):
            if asking is not None:
                await asking.stands.wait()
        await trio.lowlevel.checkpoint()

    async def _ask(self, target: Target, asking: _Asking, before: bool) -> None:
        """Let the target's node know that its end is waited for."""
        reason: ExitReason | None = None
        with asking.scope:
            while True:
                try:
                    reason = await self._others.service(target.node).ask(target.name, target.epoch, *self._here, asking.serial, before)
                    break
                except (CallError, StoreError) as error:
                    # It may have been asked: then it was there.
                    before = before or not isinstance(error, NotExecutedError | StoreError)
                if await self._others.has_ended(target.node):
                    reason = _node_died(target)
                    break
                await self._others.pause()
        asking.stands.set()
        if reason is not None and not asking.scope.cancelled_caught:
            self._finish(target, reason)

    def _let_go(self, targets: Iterable[Target]) -> None:
        """Nobody here wants to know of their ends any more."""
        elsewhere: dict[Node, list[tuple[str, int, int]]] = {}
        for target in targets:
            asking = self._asking.pop(target, None)
            if asking is None:
                continue
            asking.scope.cancel()
            asking.stands.set()
            if target.node == self._here:
                self._watched.take_back(target.actor, self._here, asking.serial)
            else:
                elsewhere.setdefault(target.node, []).append((*target.actor, asking.serial))
        for node, actors in elsewhere.items():
            self._nursery.start_soon(self._take_back, node, actors, name="unwatch")

    async def _take_back(self, node: Node, actors: list[tuple[str, int, int]]) -> None:
        try:
            while actors and not await self._others.has_ended(node):
                some, actors = actors[:MOST_TOGETHER], actors[MOST_TOGETHER:]
                await self._others.service(node).take_back(some, *self._here)
        except (CallError, StoreError) as error:
            logger.debug("node %s will tell of ends that nobody waits for: %s", node[0], error)

    # Ends

    def _finish(self, target: Target, reason: ExitReason) -> None:
        """A target has ended. Being told twice is being told once."""
        asking = self._asking.pop(target, None)
        if asking is not None:
            asking.stands.set()
        if target in self._ending or not self._watches.is_wanted(target):
            return
        if self._watches.is_registered(target):
            self._ending.add(target)
            self._nursery.start_soon(self._tell_with_promise, target, reason, name=f"notice of {target.name}")
        else:
            self._tell(target, reason, restarts=False)

    async def _tell_with_promise(self, target: Target, reason: ExitReason) -> None:
        restarts = False
        with trio.move_on_after(PROMISE_SECONDS):
            try:
                restarts = await self._names.is_promised(target.name)
            except (StoreError, CallError) as error:
                logger.info("whether %s will be restarted cannot be told: %s", target.name, error)
        self._ending.discard(target)
        self._tell(target, reason, restarts=restarts)

    def _tell(self, target: Target, reason: ExitReason, *, restarts: bool) -> None:
        for one in self._watches.ended(target):
            self._tell_one(one, Ended(one.number, target.name, target.epoch, target.node[0], reason, restarts))

    def _tell_one(self, one: Standing, notice: Ended) -> None:
        tell = self._outside.get(one.number)
        if tell is not None:
            tell(notice)
        else:
            self._notices.deliver(one, notice)

    # The far sides of links

    async def _tell_far_side(self, target: Target, linker: Address, wanted: Callable[[], bool]) -> None:
        if target.node == self._here:
            if wanted():
                self.linked(*target.actor, linker)
            return
        await self._insist(target, wanted, lambda: self._others.service(target.node).link_actor(*target.actor, linker))

    async def _untie_far_side(self, target: Target, linker: Address) -> None:
        if target.node == self._here:
            self.unlinked(*target.actor, linker)
            return
        await self._insist(target, lambda: True, lambda: self._others.service(target.node).unlink_actor(*target.actor, linker))

    async def _insist(self, target: Target, wanted: Callable[[], bool], call: Callable[[], Awaitable[object]]) -> None:
        while wanted() and not await self._others.has_ended(target.node):
            try:
                await call()
                return
            except (CallError, StoreError):
                await self._others.pause()


@attrs.frozen
class ActorSide:
    """What one actor sees; see `actors.watching.ActorWatching`."""

    _watching: Watching
    _cell: Cell

    async def watch(self, handle: object) -> Watch:
        """See `Observing.watch`."""
        return await self._watching.watch(self._cell, handle)

    async def link(self, handle: object) -> None:
        """See `Observing.link`."""
        await self._watching.link(self._cell, handle)

    async def unlink(self, handle: object) -> None:
        """See `Observing.unlink`."""
        await self._watching.unlink(self._cell, handle)

    def cancel(self, number: int) -> None:
        """See `Watch.cancel`; `number` is that of the watch."""
        self._watching.cancel(number)


def _actor(cell: Cell) -> tuple[str, int]:
    return cell.address.name, cell.address.epoch


def _check_lives(cell: Cell) -> None:
    if cell.ended is not None:
        raise RuntimeError(f"{cell.address.name} has ended; it can watch nothing and be linked to nothing any more")


def _node_died(target: Target) -> ExitReason:
    return ExitReason("node died", f"node {target.node[0]} (incarnation {target.node[1]}) is gone")
