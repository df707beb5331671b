"""Watching: actors' watches and links, and how nodes tell each other of the ends of actors.

The node of a watched actor is asked once, remembers which node asked, and reports the end. An end
of a whole node is learned from the view of the members. So a watch that waits costs two table
entries and no task. The tables in `runtime.watching.tables` decide which notices are due; this
module delivers them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar

import attrs
import trio

from actors.actor import Ended, Watch
from actors.call_context import CURRENT
from actors.errors import CallError, MailboxFullError, NotExecutedError, StoreError
from actors.handle import Handle
from actors.identifiers import ActorId, NodeId
from actors.method import Address, method
from actors.own_logger import own_logger
from actors.short_repr import short_repr
from actors.supervision import ExitReason
from runtime.calls.endpoint import RpcEndpoint
from runtime.hosting.cell import ActorCell
from runtime.hosting.requesters import Asker, RequesterChecked, hosting_at, named_at
from runtime.membership.members import Members
from runtime.membership.names import Names
from runtime.watching.notices import Notices, live
from runtime.watching.tables import Target, WatchEntry, WatcherTable, WatchTable

logger = own_logger("understudy.watching")

# What nodes ask of each other for watches and links; a system actor like those in
# `runtime.hosting.node_service`.

WATCHING_SERVICE = "@watching"


EndedActor = tuple[str, int, ExitReason]
"""Name and epoch of an actor, and how it ended."""

WATCHED_NODE_RETRY_SECONDS = 0.1
"""Seconds between two attempts to reach a live node that does not answer."""

MOST_TOGETHER = 200
"""Ends, or withdrawals of requests, in one call."""

MOST_CHARACTERS = 30_000
"""Characters of the ends in one call. With four bytes for each it is still below the limit of a
control part.
"""

MOST_TRACEBACK = 20_000
"""Characters of one reason that are sent, because messages are bounded. The end of a traceback is
kept, because it says most.
"""

CONFIRM_SECONDS = 1.0
"""Seconds that `watch` waits at most for the other node's confirmation before it returns."""

RESTARTS_SECONDS = 2.0
"""Seconds that a notice waits at most for the store to say whether the name will be restarted."""

LONGEST_PAUSE = 0.2
"""Seconds between two questions whether a supervisor has withdrawn its intent."""

GIVE_UP_SECONDS = 1.0
"""Seconds that a cancelled `link` may take to undo the link at the other node."""

MOST_LINKS = 20_000
"""Links that may be tied to one actor of this node by others of it, and to all of its actors
together by those of one other node. Each costs a table entry, and a task until it is confirmed.
"""


class WatchingService(RequesterChecked):
    """The service `@watching`, by which nodes ask for and report ends of actors. All methods are
    idempotent.
    """

    askers: ClassVar[Mapping[str, Asker]] = {
        "ask": named_at(2),
        "take_back": named_at(1),
        "tell": named_at(1),
        "link_actor": hosting_at(2),
        "unlink_actor": hosting_at(2),
    }

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    @method(concurrent=True, idempotent=True)
    async def ask(
        self, name: str, epoch: int, node: str, incarnation: int, serial: int, before: bool
    ) -> ExitReason | None:
        """Subscribe to the end of an epoch of an actor. Returns None if it is here: its end will be
        reported to the asking node. Otherwise returns why it is not here.

        `before`: the actor was here before the asking node asked, so if it has ended since, its own
        exit reason is wanted.
        """
        await self._watcher.host.wait_for_claim(name, epoch)
        return self._watcher.on_ask(name, epoch, NodeId(node, incarnation), serial, before=before)

    @method(concurrent=True, idempotent=True)
    async def take_back(
        self, actors: Sequence[tuple[str, int, int]], node: str, incarnation: int
    ) -> None:
        """Withdraw requests of that node: name, epoch and serial of each."""
        for name, epoch, serial in actors:
            self._watcher.on_take_back(name, epoch, NodeId(node, incarnation), serial)

    @method(concurrent=True, idempotent=True)
    async def tell(self, ends: Sequence[EndedActor], node: str, incarnation: int) -> None:
        """Report that actors of the calling node have ended."""
        for name, epoch, reason in ends:
            self._watcher.on_tell(name, epoch, NodeId(node, incarnation), reason)

    @method(concurrent=True, idempotent=True)
    async def link_actor(self, name: str, epoch: int, linker: Address) -> None:
        """Link an actor of the calling node to one here. Does nothing if the actor here has ended;
        the calling node learns of that by its own watch.
        """
        await self._watcher.host.wait_for_claim(name, epoch)
        self._watcher.on_link(name, epoch, linker)

    @method(concurrent=True, idempotent=True)
    async def unlink_actor(self, name: str, epoch: int, linker: Address) -> None:
        """End the link of an actor of the calling node to one here."""
        self._watcher.on_unlink(name, epoch, linker)


# How ends of actors here are reported to the nodes that asked, and how other nodes are reached.


class PeerServices:
    """Finds and calls the `@watching` services of other nodes."""

    def __init__(self, endpoint: RpcEndpoint, members: Members) -> None:
        self._endpoint = endpoint
        self._members = members

    async def pause(self) -> None:
        """Wait before another attempt, or until the members change."""
        with trio.move_on_after(WATCHED_NODE_RETRY_SECONDS):
            await self._members.wait_changed()

    def service(self, node: NodeId) -> WatchingService:
        """Return a handle of the service of a node."""
        service: WatchingService = self._endpoint.system_handle(
            WatchingService, WATCHING_SERVICE, *node
        )
        return service

    def is_gone(self, node: NodeId) -> bool:
        """Return True if the incarnation is known to have ended. It sends no request."""
        return self._members.is_gone(node)

    async def has_ended(self, node: NodeId) -> bool:
        """Like `is_gone`, but asks the store first if our view is older than the incarnation.

        An incarnation is a revision of the store. One beyond the store's latest was never given to
        a node, whatever a peer has said, and would be waited for without end. A client has another
        number, and lives for as long as its session.
        """
        link = self._endpoint.peers.links.get(node)
        if link is not None and link.peer.role == "client":
            return link.ended is not None
        if not self.is_gone(node) and self._members.revision < node[1]:
            try:
                await self._members.caught_up(node[1])
            except (CallError, StoreError):
                return False
            # Checked again: the members may have changed during the request.
            return self.is_gone(node) or self._members.revision < node[1]
        return self.is_gone(node)


class ExitNotifier:
    """Reports ends of this node's actors to other nodes: in order, and repeated until each node has
    answered or has ended. A queue has at most one entry for each actor that its node watches.
    """

    def __init__(self, others: PeerServices, here: NodeId, nursery: trio.Nursery) -> None:
        self._others = others
        self._here = here
        self._nursery = nursery
        self._unreported: dict[NodeId, deque[EndedActor]] = {}
        """The ends to report, by node. A node that is in it has a task."""

    def __len__(self) -> int:
        return sum(map(len, self._unreported.values()))

    def report(self, node: NodeId, end: EndedActor) -> None:
        """Queue the report of one end for a node."""
        unreported = self._unreported.get(node)
        if unreported is not None:
            unreported.append(end)
        elif not self._others.is_gone(node):
            self._unreported[node] = deque([end])
            self._nursery.start_soon(self._report_all, node, name=f"ends for {node[0]}")

    async def _report_all(self, node: NodeId) -> None:
        unreported = self._unreported[node]
        try:
            while unreported and not await self._others.has_ended(node):
                # They stay in the queue until they are confirmed. A repeated report is harmless.
                some = _some(unreported)
                try:
                    await self._others.service(node).tell(some, *self._here)
                except (CallError, StoreError):
                    await self._others.pause()
                else:
                    for _ in some:
                        unreported.popleft()
        finally:
            # No checkpoint lies between the last look at the queue and this, so no end is lost.
            del self._unreported[node]


def short(reason: ExitReason) -> ExitReason:
    """Cut a reason to a length that can be sent."""
    if len(reason.text) + len(reason.traceback) <= MOST_TRACEBACK:
        return reason
    return attrs.evolve(
        reason,
        text=reason.text[: MOST_TRACEBACK // 2],
        traceback=reason.traceback[-MOST_TRACEBACK // 2 :],
    )


def _some(unreported: deque[EndedActor]) -> list[EndedActor]:
    """Return as many of the first ends as fit into one call, but at least one."""
    some: list[EndedActor] = []
    size = 0
    for name, epoch, reason in unreported:
        size += len(name) + len(reason.text) + len(reason.traceback)
        if some and (size > MOST_CHARACTERS or len(some) >= MOST_TOGETHER):
            break
        some.append((name, epoch, reason))
    return some


@attrs.define(eq=False)
class _PendingWatch:
    """A target whose node is being asked, or has confirmed. `settled` is set when it has confirmed
    or never will.
    """

    serial: int
    settled: trio.Event = attrs.field(factory=trio.Event)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)


class Watcher:
    """The watches and links of one node's actors. Implements `runtime.hosting.host.HostExtension`
    and answers for the service `@watching`.
    """

    def __init__(
        self, endpoint: RpcEndpoint, members: Members, names: Names, nursery: trio.Nursery
    ) -> None:
        self._endpoint = endpoint
        self.host = endpoint.host
        self._check_own = endpoint.check_own
        self._names = names
        self._nursery = nursery
        self._here: NodeId = endpoint.identity
        self._others = others = PeerServices(endpoint, members)
        self._notifier = ExitNotifier(others, self._here, nursery)
        self._watches = WatchTable()
        self._watched = WatcherTable()
        self._notices = Notices(endpoint.host, nursery)
        self._asking: dict[Target, _PendingWatch] = {}
        self._ending: set[Target] = set()
        """Targets that have ended, and whose notices wait for an answer of the store."""
        self._serial = 0
        self._outside: dict[int, Callable[[Ended], None]] = {}
        """The functions to call, by number, for the watches of code outside of actors."""

    def loads(self) -> dict[str, int]:
        """Counts of the present entries, by name."""
        return {
            "watches": len(self._watches),
            "watched": len(self._watched),
            "asked": len(self._asking),
            "notices": len(self._notices),
            "unreported": len(self._notifier),
        }

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. Looks at every watch: for tests and
        simulations.
        """
        self._watches.check_invariants()
        self._watched.check_invariants()
        for target in self._asking:
            assert self._watches.is_wanted(target), "no request is left without a watch"
        assert self._ending.isdisjoint(self._asking), "no request is left for what has ended"

    # For actors and for code outside of them

    def of(self, cell: ActorCell) -> ActorWatchingAdapter:
        """Return the watches and links of one actor, as it sees them."""
        return ActorWatchingAdapter(self, cell)

    async def watch(self, cell: ActorCell, handle: object) -> Watch:
        """Watch the present epoch of the handle's actor for the actor of `cell`. Returns when the
        other node has confirmed, or after `CONFIRM_SECONDS`. Raises `StoreError` if a name cannot
        be looked up, and RuntimeError if the watching actor has ended.
        """
        target, missing = await self._resolve(handle)
        # The lookup took time: the watcher may have ended, and nothing would remove its watch.
        _check_lives(cell)
        one = self._watches.add(_actor(cell), target, CURRENT.get())
        self._begin(target, missing)
        await self._wait_confirmed(target)
        return Watch(one.number, target.name, target.epoch, partial(self.cancel, one.number))

    async def wait_ended(self, handle: object) -> Ended:
        """Wait until the present epoch of an actor has ended, and return the notice; at once with
        "no such actor" for one that is dead or unknown. For code outside of actors.
        """
        target, missing = await self._resolve(handle)
        one = self._watches.add(None, target)
        notices: list[Ended] = []
        ended = trio.Event()

        def on_notice(notice: Ended) -> None:
            notices.append(notice)
            ended.set()

        # Before `_begin`, which delivers at once the notice of an actor that has ended already.
        self._outside[one.number] = on_notice
        try:
            self._begin(target, missing)
            await ended.wait()
            return notices[0]
        finally:
            self._outside.pop(one.number, None)
            self.cancel(one.number)

    def cancel(self, number: int) -> None:
        """Cancel the watch or link of this number: no notice of it is delivered any more. Does
        nothing if there is none.
        """
        unwanted = self._watches.drop(number)
        if unwanted is not None:
            self._drop_requests([unwanted])
        # The notice may have been queued in this very pass of the scheduler.
        self._notices.recall(number)

    async def link(self, cell: ActorCell, handle: object) -> None:
        """Link the actor of `cell` with another. Waits while the other's node cannot be reached; if
        that wait is cancelled, neither side keeps the link. Raises RuntimeError if the linking
        actor has ended.
        """
        target, missing = await self._resolve(handle)
        _check_lives(cell)
        if target.actor == _actor(cell):
            return
        one = self._watches.add_link(_actor(cell), target, CURRENT.get())
        if one is None:
            return
        self._begin(target, missing)
        try:
            await self._wait_confirmed(target)
            await self._link_far_side(target, cell.address, lambda: one.number in self._watches)
        except trio.Cancelled:
            # The far side may have recorded the link: half a link would end an actor for nothing.
            # Bounded, because its node may be gone; then that side ends by itself.
            self.cancel(one.number)
            with trio.CancelScope(shield=True), trio.move_on_after(GIVE_UP_SECONDS):
                await self._unlink_far_side(target, cell.address)
            raise

    async def unlink(self, cell: ActorCell, handle: object) -> None:
        """End all links of the actor of `cell` with epochs of the handle's name. Waits until the
        other side has confirmed.
        """
        if not isinstance(handle, Handle):
            raise TypeError(f"unlink takes a handle, not {short_repr(handle)}")
        self._check_own(handle)
        for one in self._watches.links_to(_actor(cell), handle.name):
            self.cancel(one.number)
            await self._unlink_far_side(one.target, cell.address)
        await trio.lowlevel.checkpoint()

    # Events of the host and of the cluster

    def on_ending(self, cell: ActorCell) -> None:
        """The actor takes no more mail: its watches and links end, and their requests are
        withdrawn.
        """
        self._drop_requests(self._watches.drop_watcher(_actor(cell)))

    def on_ended(self, address: Address, reason: ExitReason) -> None:
        """An actor of this node has ended: report it to all nodes that asked."""
        for node in self._watched.on_ended(address.actor_id):
            if node == self._here:
                self._finish(Target.of(address), reason)
            else:
                self._notifier.report(node, (address.name, address.epoch, short(reason)))

    def on_node_gone(self, node: NodeId) -> None:
        """An incarnation of a node has ended: so have the actors that are watched on it, and what
        it has asked for is dropped. Idempotent.
        """
        self._watched.forget(node)
        for target in self._watches.on_node(node):
            self._finish(target, _node_died(target))

    # Requests of other nodes, through `WatchingService`

    def on_ask(
        self, name: str, epoch: int, asker: NodeId, serial: int, *, before: bool
    ) -> ExitReason | None:
        """A node asks for the end of an actor. Returns None if the actor is here, otherwise why it
        is not; `before` as in `WatchingService.ask`. Raises `MailboxFullError` if too many nodes
        watch it.
        """
        cell = live(self.host, ActorId(name, epoch))
        if cell is not None:
            if not self._watched.ask(_actor(cell), asker, serial):
                raise MailboxFullError(f"too many nodes watch {name} on {self._here[0]} already")
            return None
        ended = self.host.exits.of(ActorId(name, epoch))
        if ended is not None and before:
            return short(ended)
        why = (
            f"{name} is not on node {self._here[0]}"
            if ended is None
            else f"{name} had ended before: {ended.kind}"
        )
        return ExitReason("no such actor", why)

    def on_take_back(self, name: str, epoch: int, asker: NodeId, serial: int) -> None:
        """A node withdraws its request, unless it has asked again with another serial."""
        self._watched.take_back(ActorId(name, epoch), asker, serial)

    def on_tell(self, name: str, epoch: int, node: NodeId, reason: ExitReason) -> None:
        """A node reports the end of one of its actors."""
        self._finish(Target(name, epoch, node), reason)

    def on_link(self, name: str, epoch: int, linker: Address) -> None:
        """An actor of another node, or of this one, links itself to one here. Does nothing if that
        has ended. Raises `MailboxFullError` at `MOST_LINKS`.
        """
        cell = live(self.host, ActorId(name, epoch))
        if cell is not None and cell.ended is None:
            target = Target.of(linker)
            if target.node != self._here:
                # Counted by node, because a node asks in its own name only: none can use up the
                # links of others.
                if self._watches.links_to_node(target.node) >= MOST_LINKS:
                    raise MailboxFullError(
                        f"{MOST_LINKS} links from node {target.node[0]} to {self._here[0]} stand "
                        "already, its limit"
                    )
            elif self._watches.count_of(_actor(cell)) >= MOST_LINKS:
                raise MailboxFullError(
                    f"{name} on {self._here[0]} is linked to {MOST_LINKS} actors already, its limit"
                )
            if self._watches.add_link(_actor(cell), target) is not None:
                # The linker was running when it asked for the link.
                self._begin(target, None, before=True)

    def on_unlink(self, name: str, epoch: int, linker: Address) -> None:
        """An actor ends its link to one here. Does nothing if there is none."""
        one = self._watches.link(ActorId(name, epoch), Target.of(linker))
        if one is not None:
            self.cancel(one.number)

    # Targets

    async def _resolve(self, handle: object) -> tuple[Target, ExitReason | None]:
        """Find the present epoch of an actor. The second item is why there is none, or None."""
        if not isinstance(handle, Handle):
            raise TypeError(f"watching and linking take a handle, not {short_repr(handle)}")
        address = self._check_own(handle).address
        if not address.registered:
            await trio.lowlevel.checkpoint()
            return Target.of(address), None
        cell = self.host.cells.get(address.name)
        here = cell is not None and cell.leased and not cell.paused and cell.ended is None
        if cell is not None and here and self._endpoint.fits(address, cell.address):
            await trio.lowlevel.checkpoint()
            return Target.of(cell.address), None
        with self._endpoint.lifetime.asking(
            f"{address.name} could not be looked up, and is not watched"
        ):
            found = await self._names.find(address.name)
        if found is None or not self._endpoint.fits(address, found):
            self._serial += 1
            absent = attrs.evolve(Target.of(address), absent=self._serial)
            what = (
                f"{address.name!r} is of class {found.class_path} now"
                if found is not None
                else f"no actor is called {address.name!r}"
            )
            return absent, ExitReason("no such actor", what)
        if found.node_id == self._here:
            await self.host.wait_for_claim(found.name, found.epoch)
        return Target.of(found), None

    def _begin(self, target: Target, missing: ExitReason | None, *, before: bool = False) -> None:
        """Ask the target's node for its end, unless it was asked already."""
        if missing is not None:
            self._finish(target, missing)
        # One request for each target: further watches of it are served by the same answer.
        elif target in self._asking or target in self._ending:
            return
        elif target.node == self._here:
            self._serial += 1
            self._asking[target] = asking = _PendingWatch(self._serial)
            asking.settled.set()
            reason = self.on_ask(
                target.name, target.epoch, self._here, asking.serial, before=before
            )
            if reason is not None:
                self._finish(target, reason)
        elif self._others.is_gone(target.node):
            self._finish(target, _node_died(target))
        else:
            self._serial += 1
            self._asking[target] = asking = _PendingWatch(self._serial)
            self._nursery.start_soon(
                self._ask, target, asking, before, name=f"watch of {target.name}"
            )

    async def _wait_confirmed(self, target: Target) -> None:
        asking = self._asking.get(target)
        with trio.move_on_after(CONFIRM_SECONDS):
            if asking is not None:
                await asking.settled.wait()
        await trio.lowlevel.checkpoint()

    async def _ask(self, target: Target, asking: _PendingWatch, before: bool) -> None:
        """Ask the target's node repeatedly, until it answers or has ended."""
        reason: ExitReason | None = None
        with asking.scope:
            while True:
                try:
                    reason = await self._others.service(target.node).ask(
                        target.name, target.epoch, *self._here, asking.serial, before
                    )
                    break
                except (CallError, StoreError) as error:
                    # If the call may have run, the actor was there before the next attempt.
                    before = before or not isinstance(error, NotExecutedError | StoreError)
                # Without an answer only the death of the node ends the wait: the actor may be
                # running.
                if await self._others.has_ended(target.node):
                    reason = _node_died(target)
                    break
                await self._others.pause()
        asking.settled.set()
        # Cancelled: nothing watches it any more, or its end has come by another way meanwhile.
        if reason is not None and not asking.scope.cancelled_caught:
            self._finish(target, reason)

    def _drop_requests(self, targets: Iterable[Target]) -> None:
        """Drop the requests for these targets, and withdraw them at their nodes."""
        elsewhere: dict[NodeId, list[tuple[str, int, int]]] = {}
        for target in targets:
            asking = self._asking.pop(target, None)
            if asking is None:
                continue
            asking.scope.cancel()
            asking.settled.set()
            if target.node == self._here:
                self._watched.take_back(target.actor, self._here, asking.serial)
            else:
                # With the serial: a withdrawal that arrives late must not remove a newer request.
                elsewhere.setdefault(target.node, []).append(
                    (target.name, target.epoch, asking.serial)
                )
        for node, actors in elsewhere.items():
            self._nursery.start_soon(self._take_back, node, actors, name="unwatch")

    async def _take_back(self, node: NodeId, actors: list[tuple[str, int, int]]) -> None:
        try:
            while actors and not await self._others.has_ended(node):
                some, actors = actors[:MOST_TOGETHER], actors[MOST_TOGETHER:]
                await self._others.service(node).take_back(some, *self._here)
        except (CallError, StoreError) as error:
            logger.debug(
                "node %s will report ends of actors that are no longer watched here: %s",
                node[0],
                error,
            )

    # Ends

    def _finish(self, target: Target, reason: ExitReason) -> None:
        """Deliver the notices of a target that has ended. Idempotent."""
        asking = self._asking.pop(target, None)
        if asking is not None:
            asking.settled.set()
        if target in self._ending or not self._watches.is_wanted(target):
            return
        if self._watches.is_registered(target):
            # In `_ending` from here until the notices are delivered: a watch that is added
            # meanwhile gets its notice with them, and a second report of the end changes nothing.
            self._ending.add(target)
            self._nursery.start_soon(
                self._deliver_with_restarts, target, reason, name=f"notice of {target.name}"
            )
        else:
            self._deliver(target, reason, restarts=False)

    async def _deliver_with_restarts(self, target: Target, reason: ExitReason) -> None:
        restarts = False
        # Bounded: a store that is away must not hold the notices back.
        with trio.move_on_after(RESTARTS_SECONDS):
            try:
                restarts = await self._names.is_promised(target.name)
                if restarts and reason.is_normal:
                    restarts = await self._is_permanent(target)
            except (StoreError, CallError) as error:
                logger.info(
                    "cannot find out whether %s will be restarted; its notices say no: %s",
                    target.name,
                    error,
                )
        self._ending.discard(target)
        self._deliver(target, reason, restarts=restarts)

    async def _is_permanent(self, target: Target) -> bool:
        """True if an actor that has ended normally is restarted. That of a transient child is not:
        its supervisor learns of the end as this does, and withdraws its intent.
        """
        # Polled, a few times: it is either withdrawn or carried out within milliseconds.
        pause = 0.01
        while await self._names.is_promised(target.name):
            found = await self._names.find(target.name)
            if found is not None and found.epoch > target.epoch:
                return True
            await trio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        return False

    def _deliver(self, target: Target, reason: ExitReason, *, restarts: bool) -> None:
        for one in self._watches.on_ended(target):
            self._deliver_one(
                one, Ended(one.number, target.name, target.epoch, target.node[0], reason, restarts)
            )

    def _deliver_one(self, one: WatchEntry, notice: Ended) -> None:
        on_notice = self._outside.get(one.number)
        if on_notice is not None:
            on_notice(notice)
        else:
            self._notices.deliver(one, notice)

    # The far sides of links

    async def _link_far_side(
        self, target: Target, linker: Address, wanted: Callable[[], bool]
    ) -> None:
        if target.node == self._here:
            if wanted():
                self.on_link(*target.actor, linker)
            return
        await self._call_until_answered(
            target,
            wanted,
            lambda: self._others.service(target.node).link_actor(*target.actor, linker),
        )

    async def _unlink_far_side(self, target: Target, linker: Address) -> None:
        if target.node == self._here:
            self.on_unlink(*target.actor, linker)
            return
        await self._call_until_answered(
            target,
            lambda: True,
            lambda: self._others.service(target.node).unlink_actor(*target.actor, linker),
        )

    async def _call_until_answered(
        self, target: Target, wanted: Callable[[], bool], call: Callable[[], Awaitable[object]]
    ) -> None:
        # Repeated until it is answered: with only one side recorded, one end would not stop the
        # other actor. Linking twice does no harm.
        while wanted() and not await self._others.has_ended(target.node):
            try:
                await call()
                return
            except (CallError, StoreError):
                await self._others.pause()


@attrs.frozen
class ActorWatchingAdapter:
    """The watches and links of one actor, as `actors.actor.ActorWatching` offers them to it."""

    _watching: Watcher
    _cell: ActorCell

    async def watch(self, handle: object) -> Watch:
        """Watch the present epoch of an actor. Raises like `Watcher.watch`."""
        return await self._watching.watch(self._cell, handle)

    async def link(self, handle: object) -> None:
        """Link this actor with another. Raises like `Watcher.link`."""
        await self._watching.link(self._cell, handle)

    async def unlink(self, handle: object) -> None:
        """End the links of this actor with another."""
        await self._watching.unlink(self._cell, handle)

    def cancel(self, number: int) -> None:
        """Cancel the watch of this number."""
        self._watching.cancel(number)


def _actor(cell: ActorCell) -> ActorId:
    return cell.address.actor_id


def _check_lives(cell: ActorCell) -> None:
    if cell.ended is not None:
        raise RuntimeError(
            f"{cell.address.name} has ended; it can no longer watch or be linked to other actors"
        )


def _node_died(target: Target) -> ExitReason:
    return ExitReason("node died", f"node {target.node[0]} (incarnation {target.node[1]}) is gone")
