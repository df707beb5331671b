"""Call queues: calls that cannot be posted at once wait in the order in which they were made, one
queue for each actor.

A call waits because the place of its actor is not known (it is being restarted, or was never called
before), or because the connection to it has no room. The first call in the queue finds the actor
for all: when it is found, everything that waits is posted in one pass, by the task that has found
it. So the calls of one node to one actor start in the order in which they were made, also over a
restart, and the store is asked once and not once for each. A call that is made while there is a
queue joins its end; a call that was refused takes the place that its number gives it.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress

import trio

from actors.errors import CallError, ClassMismatchError, NodeUnreachableError
from actors.method import Address, Bound
from runtime.calls.ordered_entries import OrderedEntries, Place
from runtime.calls.routes import Route, Routes
from runtime.environment import Environment

SETTLE_SECONDS = 0.5
"""How long those that wait hold back for calls whose refusals are still on their way."""

Occupancy = tuple[str, int, int]
"""Node, incarnation and epoch."""


def where(route: Route) -> Occupancy:
    """Return the node and the epoch that a route leads to."""
    return route.address.node, route.address.incarnation, route.address.epoch


class Waiter:
    """One call in a queue. `order`: a number that grows with the time at which the call was
    made.
    """

    __slots__ = (
        "bound",
        "error",
        "joined",
        "limit",
        "not_before",
        "order",
        "patience",
        "place",
        "post",
        "posted",
        "search",
        "task",
    )

    def __init__(
        self,
        bound: Bound,
        order: int,
        post: Callable[[Route], None],
        not_before: float,
        limit: float,
    ) -> None:
        self.bound = bound
        self.order = order
        self.post = post
        self.not_before = not_before
        self.limit = limit
        self.joined = 0
        self.place: Place | None = None
        """Its place in the queue, once it has joined."""
        self.posted = False
        self.error: Exception | None = None
        self.patience = trio.CancelScope()
        """Ends when it has waited for room on a connection for as long as `limit`."""
        self.search: trio.CancelScope | None = None
        """There while its task looks for the actor."""
        self.task: trio.lowlevel.Task | None = None
        """There while that is parked."""

    @property
    def is_over(self) -> bool:
        """True if it need not wait any longer."""
        return self.posted or self.error is not None

    def wake(self) -> None:
        """Let its task go on, if that is parked."""
        if self.task is not None:
            task, self.task = self.task, None
            trio.lowlevel.reschedule(task)

    def interrupt(self) -> None:
        """Let its task look at what has changed, also if that looks for the actor."""
        if self.search is not None:
            self.search.cancel()
        else:
            self.wake()


class _CallQueue:
    """The calls that wait for one actor, the earliest first."""

    __slots__ = ("address", "denied", "joined", "leaving", "left", "settled", "waiters")

    def __init__(self) -> None:
        self.waiters: OrderedEntries[Waiter] = OrderedEntries()
        self.joined = 0
        self.address: Address | None = None
        """The place where the actor was found since the queue began, unless a call was refused."""
        self.denied: Occupancy | None = None
        """The place that last denied having the actor."""
        self.left: Occupancy | None = None
        """The place at which the actor had ended when it was last called there: earlier calls to
        that place will be refused as well, or have died with it.
        """
        self.leaving: Occupancy | None = None
        """Whose node was leaving when it was asked for there: what runs there already may run for
        long, and is not waited for.
        """
        self.settled: Occupancy | None = None
        """The place where it was found last, after calls on their way to its earlier places had
        been waited for.
        """

    def join(self, waiter: Waiter) -> None:
        self.joined += 1
        waiter.joined = self.joined
        waiter.place = self.waiters.add(waiter.order, waiter)

    def deny(self, place: Occupancy) -> None:
        self.denied = place
        address = self.address
        if address is not None and (address.node, address.incarnation, address.epoch) == place:
            self.address = None

    def fail(self, joined: int, error: CallError) -> None:
        """The actor cannot be found: that is so for all who asked before the search began."""
        # Those who joined during the search look again: the actor may have come back meanwhile.
        for waiter in self.waiters:
            if waiter.joined <= joined and not waiter.is_over:
                waiter.error = _alike(error)
                waiter.interrupt()


class CallQueues:
    """All queues of a node's calls."""

    def __init__(self, routes: Routes, environment: Environment) -> None:
        self._routes = routes
        self._environment = environment
        self.all: dict[Hashable, _CallQueue] = {}
        """The queues by actor. Empty while no call waits, which every call checks."""
        self.wait_returned: Callable[[str, int], Awaitable[object]] | None = None
        """Waits until all one-way calls that a node (name and incarnation) has refused so far are
        back; the endpoint sets it.
        """
        self._in_turn: dict[trio.CancelScope, tuple[str, Occupancy]] = {}
        """The calls of `in_turn` that wait for their turns on a link, with actor and place."""

    def ahead_of(self, bound: Bound) -> bool:
        """True if calls to the same actor wait."""
        return _key(bound) in self.all

    def free(self, bound: Bound) -> Route | None:
        """The route of a call whose actor's place is known; None if it has to wait in the queue."""
        if self.all and self.ahead_of(bound):
            return None
        return self._routes.known(bound)

    async def in_turn(self, bound: Bound, order: int, post: Callable[[Route], None]) -> None:
        """Wait for the place of the actor and for its link as far as need be, and `post` the call,
        in this task or in another one. Raises what finding the actor and `post` raise.
        """
        route = self.free(bound)
        if route is not None:
            link = route.link
            if link is None or not link.is_crowded:
                post(route)
                return
            posted: list[Route] = []

            def post_there() -> None:
                # Otherwise the actor has moved, or calls that were made before this one have come
                # back and wait for its place.
                if self.free(bound) is route:
                    post(route)
                    posted.append(route)

            with trio.CancelScope() as waiting:
                self._in_turn[waiting] = bound._address.name, where(route)
                try:
                    await link.in_turn(post_there, urgent=is_service(bound))
                finally:
                    del self._in_turn[waiting]
            if posted:
                return
        await self.through(bound, order, post)

    def _recall(self, name: str, place: Occupancy) -> None:
        """Have the calls that wait for their turns on the link to that place of an actor join its
        queue.
        """
        self._routes.recall(name, place)
        for waiting, of in self._in_turn.items():
            if of == (name, place):
                waiting.cancel()

    @trio.lowlevel.enable_ki_protection
    async def through(
        self,
        bound: Bound,
        order: int,
        post: Callable[[Route], None],
        *,
        not_before: float = -math.inf,
        limit: float = math.inf,
        denied: Occupancy | None = None,
        over: bool = True,
    ) -> None:
        """Wait until it is this call's turn, and `post` it: in this task, or in the task of another
        call, which has found the actor.

        `not_before`: the earliest time at which this call looks the actor up by itself. `limit`:
        seconds that it waits for room on a connection; then `NodeUnreachableError` is raised.
        `denied`: the place that has refused it because the actor is not there, or, with `over`, has
        ended. Raises what finding the actor and `post` raise.
        """
        key = _key(bound)
        line = self.all.get(key)
        if line is None:
            line = self.all[key] = _CallQueue()
        waiter = Waiter(bound, order, post, not_before, limit)
        line.join(waiter)
        try:
            self._note_place(line, bound, denied, over=over)
            with waiter.patience:
                while not waiter.is_over:
                    # The first call leads the queue. The first may change: a refused call comes
                    # back with an earlier number.
                    if line.waiters.first is waiter:
                        await self._lead(line, waiter)
                    else:
                        # No await between the look at the queue and the parking: a leader that ends
                        # wakes the task that it finds here.
                        waiter.task = trio.lowlevel.current_task()
                        await trio.lowlevel.wait_task_rescheduled(lambda _: self._unpark(waiter))
            if not waiter.is_over:
                await trio.lowlevel.checkpoint_if_cancelled()
                raise NodeUnreachableError(
                    f"the connection to {bound._address.name} had no room within {limit:g} s; the "
                    "call did not run",
                    actor=bound._address.name,
                    method=bound._definition.name,
                )
        finally:
            assert waiter.place is not None
            line.waiters.remove(waiter.place)
            if not line.waiters:
                assert self.all[key] is line, "a queue lives until its last waiter is gone"
                del self.all[key]
            else:
                # It may lead now. To wake it in vain does no harm: it looks at the queue again.
                line.waiters.first.wake()
        if waiter.error is not None:
            error, waiter.error = waiter.error, None
            try:
                raise error
            finally:
                # No circle with this frame, which the traceback has.
                del error

    def _note_place(
        self, line: _CallQueue, bound: Bound, denied: Occupancy | None, *, over: bool
    ) -> None:
        """Note for the queue what a call that has joined it knows of the actor's place."""
        if denied is not None:
            line.deny(denied)
            if over:
                line.left = denied
            else:
                line.leaving = denied
        elif (
            line.address is None
            and (known := self._routes.known(bound)) is not None
            and where(known) != line.denied
        ):
            line.address = known.address
            # The first in the queue may still search for the place that this call knows.
            line.waiters.first.interrupt()

    async def _lead(self, line: _CallQueue, waiter: Waiter) -> None:
        """Find the actor for the whole queue, and post what waits. Returns early if something has
        changed.
        """
        # Those who were refused with this call, and are not here yet because their tasks have not
        # run, may have been made before it.
        await trio.lowlevel.checkpoint()
        route = self._at_hand(line, waiter)
        if route is None:
            # A failure of this search does not count for calls that join from here on, see `fail`.
            joined = line.joined
            try:
                with trio.CancelScope() as waiter.search:
                    if waiter.not_before > self._environment.now():
                        await trio.sleep_until(waiter.not_before)
                        joined = line.joined
                    route = await self._routes.find(waiter.bound)
            except ClassMismatchError as error:
                # Others may expect the class that it has.
                waiter.error = error
                return
            except CallError as error:
                waiter.error = error
                line.fail(joined, error)
                return
            finally:
                waiter.search = None
            if route is None or waiter.is_over:
                return
            line.address = route.address
        link = route.link
        if left := self._left_behind(line, waiter, where(route)):
            await self._settle(line, waiter.bound._address.name, left, where(route))
            if waiter.is_over or (link is not None and link.ended is not None):
                return
        if link is None or not link.is_crowded:
            self._post_all(line, route)
            return
        self._limit(line)

        def post_all() -> None:
            # A call that was made before those in the queue may have been refused meanwhile: then
            # this one waits for others like it first.
            if not self._left_behind(line, waiter, where(route)):
                self._post_all(line, route)

        await link.in_turn(post_all, urgent=is_service(waiter.bound))

    def _left_behind(self, line: _CallQueue, waiter: Waiter, found: Occupancy) -> set[Occupancy]:
        """Return the earlier places of an actor that was `found` at another one, as far as known.

        Calls on their way to an earlier place were made before those that wait here. They will be
        refused there and join this queue, so nothing may overtake them. That is so however the
        actor was found: the first refused call, or one that is repeated after the actor's death,
        may learn of the new place before the other refusals have arrived.
        """
        left = {line.left} if line.left is not None else set()
        if line.settled != found:
            left |= self._routes.before(waiter.bound, found)
        return left - {found, line.leaving}

    async def _settle(
        self, line: _CallQueue, name: str, left: set[Occupancy], found: Occupancy
    ) -> None:
        """Wait a short time for the refusals of calls that were sent to the actor's earlier places.
        Nothing more is sent there meanwhile, because new calls join the queue.
        """
        for place in left:
            self._recall(name, place)
        # Polled, because the refusals come over several links; bounded by `SETTLE_SECONDS`. The
        # pause grows from a millisecond, for refusals of this host, to 20 ms.
        began, pause = self._environment.now(), 0.001
        while self._environment.now() < began + SETTLE_SECONDS and any(
            self._routes.waits_at(name, place) for place in left
        ):
            await trio.sleep(pause)
            pause = min(2 * pause, 0.02)
        if self.wait_returned is not None:
            with trio.move_on_at(began + SETTLE_SECONDS), suppress(CallError):
                for node, incarnation, epoch in left:
                    if self._routes.may_have_returned(name, (node, incarnation, epoch)):
                        await self.wait_returned(node, incarnation)
        for _ in range(2):
            # The tasks of those whose refusals have just come run in the next pass of the loop,
            # perhaps after this one: then they are here.
            await trio.lowlevel.checkpoint()
        line.left, line.settled = None, found

    def _at_hand(self, line: _CallQueue, waiter: Waiter) -> Route | None:
        if line.address is not None:
            route = self._routes.at(waiter.bound, line.address)
            if route is None:
                # It is where it was found, but how to get there must be asked for.
                line.address = None
            return route
        route = self._routes.known(waiter.bound)
        return route if route is not None and where(route) != line.denied else None

    def _post_all(self, line: _CallQueue, found: Route) -> None:
        """Post all that wait, in their order, while there is room for them."""
        link = found.link
        for waiter in line.waiters:
            if waiter.is_over:
                continue
            urgent = is_service(waiter.bound)
            if link is not None and link.ended is None and link.holds_back(urgent=urgent):
                self._limit(line)
                return
            try:
                waiter.post(self._routes.beside(waiter.bound, found))
            except Exception as error:
                # Its arguments cannot be sent, for example: that is for its caller to handle.
                waiter.error = error
            else:
                waiter.posted = True
            waiter.interrupt()

    def _limit(self, line: _CallQueue) -> None:
        """Begin the limit of each waiting call: from now on it waits for room on a connection."""
        now = self._environment.now()
        for waiter in line.waiters:
            if waiter.limit != math.inf and waiter.patience.deadline == math.inf:
                waiter.patience.deadline = now + waiter.limit

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. Looks at every call that waits: for tests
        and simulations.
        """
        for line in self.all.values():
            line.waiters.check_invariants()
            assert line.waiters, "an empty queue would hold up every call to its actor"
            orders = [waiter.order for waiter in line.waiters]
            assert orders == sorted(orders), "calls wait in the order in which they were made"
            joined = [waiter.joined for waiter in line.waiters]
            assert len(set(joined)) == len(joined)
            assert max(joined) <= line.joined
            for waiter in line.waiters:
                assert not (waiter.posted and waiter.error is not None), "one outcome each"

    def _unpark(self, waiter: Waiter) -> trio.lowlevel.Abort:
        waiter.task = None
        return trio.lowlevel.Abort.SUCCEEDED


def is_service(bound: Bound) -> bool:
    """Return True for a call to a service of the runtime."""
    return bound._address.name.startswith("@")


def _key(bound: Bound) -> Hashable:
    """Return the key of the queue: an address without a registered name, such as that of a node's
    service, names another actor on each node.
    """
    address = bound._address
    return address.name if address.registered else (address.name, address.node, address.incarnation)


def _alike(error: CallError) -> CallError:
    """The same error for another call: each raises its own."""
    other = type(error)(*error.args)
    other.__dict__.update(error.__dict__)
    other.__cause__ = error.__cause__
    return other
