"""The caller: makes calls for handles. The trio shell around the tables of outgoing calls.

The short way, taken by a call without options to an actor whose place is known, costs no task, scope or event: one encoded frame, one
parked task. The long way finds
the actor, waits while it is being restarted, keeps the call's own timeout and repeats what may be repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol, TypedDict, TypeVar, cast

import trio

from actors.errors import (
    ActorNotFoundError,
    CallError,
    CallTimeoutError,
    DecodeError,
    NodeDiedError,
    NodeDrainingError,
    NodeUnreachableError,
    OutcomeUnknownError,
    ProtocolError,
    SelfCallError,
    StaleEpochError,
)
from actors.method import Address, BoundMethod
from actors.options import NO_CALL_OPTIONS
from actors.reference import Reference, ReferenceAddress
from actors.retry import WAIT_FOR_ACTOR, Retry, RetryPolicy, RetrySchedule
from runtime.calls.failures import Place, rebuild
from runtime.calls.local import LocalCalls
from runtime.calls.outgoing import OutgoingCalls, PendingCall
from runtime.environment import Environment
from runtime.hosting.host import Host
from runtime.links.link import Link
from runtime.links.session import Buffer
from runtime.wire.codec import Codec
from runtime.wire.frames import Frame, Kind, encode_frame

R = TypeVar("R")
Waiting = PendingCall[trio.lowlevel.Task]

KEEP_RESULT = 1
"""Flag of a CALL frame: the result stays with its owner, the answer is a reference to it."""

MISSED_SECONDS = 5.0
"""How long a name whose owner denies having the actor is looked up again, where the caller set no deadline."""


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


Missed = tuple[Route, CallError]
"""An attempt that certainly did not run, and where it was made."""


class Caller:
    """Makes the calls of one node. `numbers` gives each call its number, unique in this incarnation."""

    def __init__(
        self,
        identity: tuple[str, int],
        environment: Environment,
        codec: Codec,
        directory: Directory,
        find_class: Callable[[str], type],
        numbers: Callable[[], int],
        make_reference: Callable[[ReferenceAddress], Reference[Any]],
    ) -> None:
        self._identity = identity
        self._environment = environment
        self._codec = codec
        self._directory = directory
        self._find_class = find_class
        self._numbers = numbers
        self._make_reference = make_reference
        self._tables: dict[Link, OutgoingCalls[trio.lowlevel.Task]] = {}
        self._local: LocalCalls | None = None
        self._host: Host | None = None

    def attach(self, host: Host, local: LocalCalls) -> None:
        """Say where actors of this node itself live."""
        self._host = host
        self._local = local

    async def call(self, bound: BoundMethod[..., R], args: tuple[object, ...], kwargs: dict[str, object]) -> R:
        """Make the call and wait for its outcome. See `BoundMethod.__call__`."""
        return cast("R", await self._call(bound, args, kwargs, 0))

    async def remote(self, bound: BoundMethod[..., R], args: tuple[object, ...], kwargs: dict[str, object]) -> Reference[R]:
        """Make the call and keep the result with its owner. See `BoundMethod.remote`."""
        return cast("Reference[R]", await self._call(bound, args, kwargs, KEEP_RESULT))

    async def send(self, bound: BoundMethod[..., R], args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Hand a one-way call to the connection. See `BoundMethod.send`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        route = self._route_known(bound) or await self._find_route(bound)
        if route.link is None:
            assert self._local is not None
            self._local.send(route.address, bound.definition, args, kwargs)
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        segments: list[Buffer] = []
        control = array_head(5, 0) + route.prefix + self._codec.encode_arguments(args, kwargs, segments)
        await route.link.room()
        route.link.post(encode_frame(Kind.SEND, control, segments), kept(segments))
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def _call(self, bound: BoundMethod[..., Any], args: tuple[object, ...], kwargs: dict[str, object], flags: int) -> object:
        route = self._route_known(bound)
        if route is None or bound.options_ is not NO_CALL_OPTIONS:
            return await self._call_the_long_way(bound, args, kwargs, flags)
        try:
            return await self._attempt(route, bound, args, kwargs, flags)
        except (StaleEpochError, ActorNotFoundError, NodeUnreachableError, NodeDrainingError) as error:
            # Certainly not run, and perhaps only because the actor has moved.
            if not bound.address.registered:
                raise
            missed = (route, error)
        return await self._call_the_long_way(bound, args, kwargs, flags, missed)

    async def _call_the_long_way(
        self, bound: BoundMethod[..., Any], args: tuple[object, ...], kwargs: dict[str, object], flags: int, missed: Missed | None = None
    ) -> object:
        timeout = bound.options_.timeout
        if timeout is None:
            return await self._call_repeatedly(bound, args, kwargs, flags, missed)
        with trio.move_on_after(timeout):
            return await self._call_repeatedly(bound, args, kwargs, flags, missed)
        name = bound.address.name
        raise CallTimeoutError(
            f"{name}.{bound.definition.name} gave no answer within its timeout of {timeout:g} s; it was told to stop, but may "
            "have taken effect",
            actor=name,
            method=bound.definition.name,
            node=bound.address.node,
            epoch=bound.address.epoch,
            attempts=1,
        )

    async def _call_repeatedly(
        self, bound: BoundMethod[..., Any], args: tuple[object, ...], kwargs: dict[str, object], flags: int, missed: Missed | None
    ) -> object:
        environment = self._environment
        policy = bound.options_.retry or _NO_RETRIES
        schedule = RetrySchedule(
            policy, idempotent=bound.definition.idempotent, deadline=trio.current_effective_deadline(), now=environment.now()
        )
        patience = environment.now() + MISSED_SECONDS
        while True:
            route: Route | None = None
            if missed is not None:
                route, error = missed
                missed = None
            else:
                try:
                    route = self._route_known(bound) or await self._find_route(bound)
                    return await self._attempt_within(schedule, route, bound, args, kwargs, flags)
                except CallError as failure:
                    error = failure
            now = environment.now()
            # The name's owner denies it, or its node is going or gone: it is being moved, unless that goes on for long. That nobody
            # has the name, though, is final: looking it up waited while there was hope.
            denied = isinstance(error, _MOVED) and (route is not None or isinstance(error, NodeUnreachableError))
            moving = denied and bound.address.registered and now < patience
            if moving and bound.route is route:
                # Otherwise another call has found the actor meanwhile.
                bound.moved = True
                bound.route = None
            decision = schedule.failed(error.outcome, error, now, environment.random(), uncounted=moving)
            if not isinstance(decision, Retry):
                error = _final(error, schedule, bound)
                if schedule.total > 1:
                    error.add_note(schedule.history())
                raise error
            await trio.sleep_until(decision.at)
            if not schedule.begin(environment.now()):
                raise error

    async def _attempt_within(
        self,
        schedule: RetrySchedule,
        route: Route,
        bound: BoundMethod[..., Any],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        flags: int,
    ) -> object:
        limit = schedule.policy.attempt_timeout
        if limit is None:
            return await self._attempt(route, bound, args, kwargs, flags)
        with trio.move_on_at(schedule.attempt_deadline):
            return await self._attempt(route, bound, args, kwargs, flags)
        raise CallTimeoutError(
            f"{bound.address.name}.{bound.definition.name} gave no answer within its attempt_timeout of {limit:g} s",
            actor=bound.address.name,
            method=bound.definition.name,
            node=route.address.node,
            epoch=route.address.epoch,
        )

    async def _attempt(
        self, route: Route, bound: BoundMethod[..., Any], args: tuple[object, ...], kwargs: dict[str, object], flags: int
    ) -> object:
        task = trio.lowlevel.current_task()
        self._refuse_self_call(task, bound)
        deadline = trio.current_effective_deadline()
        if deadline != math.inf and deadline <= self._environment.now():
            await trio.lowlevel.checkpoint()
        link = route.link
        if link is None:
            assert self._local is not None
            return await self._local.call(route.address, bound.definition, args, kwargs, deadline, flags)
        if not link.has_room:
            await link.room()
        number = self._numbers()
        segments: list[Buffer] = []
        if deadline == math.inf:
            control = array_head(5, number) + route.prefix + self._codec.encode_arguments(args, kwargs, segments)
        else:
            remaining = self._codec.encode(deadline - self._environment.now(), segments)
            control = array_head(6, number) + route.prefix + self._codec.encode_arguments(args, kwargs, segments) + remaining
        calls = route.calls
        assert calls is not None
        call = PendingCall(number, route.place, task)
        alone = not calls.pending
        calls.begin(call)
        call.frame_number = link.post(encode_frame(Kind.CALL, control, segments, flags), kept(segments), at_once=alone)
        if link.ended is not None:
            calls.take(number)
            raise self._lost(link, call)

        def give_up(raise_cancel: Callable[[], object]) -> trio.lowlevel.Abort:
            if calls.take(number) is not None:
                link.post(encode_frame(Kind.CANCEL, array_head(1, number)))
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)
        if call.error is not None:
            raise call.error
        return self._make_reference(cast("ReferenceAddress", call.value)) if flags & KEEP_RESULT else call.value

    def _refuse_self_call(self, task: trio.lowlevel.Task, bound: BoundMethod[..., Any]) -> None:
        host = self._host
        job = host.workers.running_in(task) if host is not None else None
        if (
            job is not None
            and job.cell.address.name == bound.address.name
            and not (bound.definition.concurrent or job.definition.concurrent)
        ):
            name = bound.address.name
            raise SelfCallError(
                f"{name}.{job.definition.name} awaited {name}.{bound.definition.name}: it would wait for itself for ever. "
                f"Call self.{bound.definition.name}(...) instead, or mark one of the two as concurrent",
                actor=name,
                method=bound.definition.name,
            )

    def _route_known(self, bound: BoundMethod[..., Any]) -> Route | None:
        route = bound.route
        if isinstance(route, Route) and (route.link is None or route.link.ended is None):
            return route
        return None

    async def _find_route(self, bound: BoundMethod[..., Any]) -> Route:
        await trio.lowlevel.checkpoint_if_cancelled()
        address = bound.address
        # The first call goes where the handle says; later ones come here because that was no longer true.
        route = None if bound.moved else await self._make_route(bound, address)
        if route is None:
            bound.moved = True
            if not address.registered:
                raise ActorNotFoundError(
                    f"{address.name} ended with node {address.node}", actor=address.name, method=bound.definition.name, node=address.node
                )
            address = await self._directory.locate(address.name)
            route = await self._make_route(bound, address)
        if route is None:
            raise NodeUnreachableError(
                f"node {address.node}, which has {address.name}, has just ended", actor=address.name, node=address.node
            )
        bound.route = route
        return route

    async def _make_route(self, bound: BoundMethod[..., Any], address: Address) -> Route | None:
        place = Place(address.name, bound.definition.name, address.node, address.epoch)
        if (address.node, address.incarnation) == self._identity:
            return Route(address, place, b"", None, None)
        link = await self._directory.link_to(address.node, address.incarnation)
        if link is None:
            return None
        nothing: list[Buffer] = []
        prefix = b"".join(self._codec.encode(part, nothing) for part in (address.name, address.epoch, bound.definition.name))
        return Route(address, place, prefix, link, self.table(link))

    def table(self, link: Link) -> OutgoingCalls[trio.lowlevel.Task]:
        """The calls that wait on `link`."""
        table = self._tables.get(link)
        if table is None:
            table = self._tables[link] = OutgoingCalls()
        return table

    def on_reply(self, link: Link, frame: Frame) -> None:
        """Handle a REPLY frame: `[number, value]`."""
        try:
            answer = self._codec.decode(frame.control, frame.segments)
        except DecodeError as error:
            # The answer is there and cannot be read here: its call must still end, and we know only its number.
            self._on_unreadable(link, frame, error)
            return
        items = _items(answer, 2)
        call = self._tables[link].take(items[0]) if link in self._tables else None
        if call is not None:
            call.value = items[1]
            trio.lowlevel.reschedule(call.waiter)

    def on_error(self, link: Link, frame: Frame) -> None:
        """Handle an ERROR frame: `[number, code, description]`."""
        try:
            description = self._codec.decode(frame.control, frame.segments)
        except DecodeError as error:
            self._on_unreadable(link, frame, error)
            return
        number, code, plain, *_ = _items(description, 3)
        call = self._tables[link].pending.get(number) if link in self._tables else None
        if call is not None:
            # Taken off only once it is understood: otherwise the call has to end with its link.
            call.error = rebuild(code, plain, call.place, self._find_class)
            self._tables[link].take(number)
            trio.lowlevel.reschedule(call.waiter)

    def link_ended(self, link: Link) -> None:
        """End all calls that waited on `link`."""
        table = self._tables.pop(link, None)
        if table is not None:
            for call in table.end(lambda call: self._lost(link, call)):
                trio.lowlevel.reschedule(call.waiter)

    def _on_unreadable(self, link: Link, frame: Frame, error: DecodeError) -> None:
        number = self._codec.peek_number(frame.control)
        call = self._tables[link].take(number) if link in self._tables else None
        if call is not None:
            call.error = OutcomeUnknownError(
                f"{call.place.actor}.{call.place.method} answered, but its answer cannot be read here: {error}"
            )
            trio.lowlevel.reschedule(call.waiter)

    def _lost(self, link: Link, call: Waiting) -> CallError:
        place = call.place
        if link.certainly_not_received(call.frame_number):
            return NodeUnreachableError(
                f"{place.actor}.{place.method} was never handed to node {place.node}: {link.ended}", **_facts(place)
            )
        return NodeDiedError(
            f"node {place.node} ended while {place.actor}.{place.method} was with it: {link.ended}; the call may have taken effect",
            **_facts(place),
        )


_NO_RETRIES = RetryPolicy(max_retries=0, initial_delay=WAIT_FOR_ACTOR.initial_delay)
_MOVED = (StaleEpochError, ActorNotFoundError, NodeUnreachableError, NodeDrainingError)


def _final(error: CallError, schedule: RetrySchedule, bound: BoundMethod[..., Any]) -> CallError:
    """The error of the whole call: that its last attempt was not executed says nothing about those before it."""
    if schedule.outcome == "unknown" and error.outcome != "unknown":
        name = f"{bound.address.name}.{bound.definition.name}"
        last = error
        error = OutcomeUnknownError(f"{name} may have run in an earlier attempt; the last one: {last}", actor=bound.address.name)
        error.method, error.node, error.epoch, error.__cause__ = last.method, last.node, last.epoch, last
    error.attempts = schedule.total
    return error


class _Facts(TypedDict):
    actor: str
    method: str
    node: str
    epoch: int
    attempts: int


def _facts(place: Place) -> _Facts:
    return {"actor": place.actor, "method": place.method, "node": place.node, "epoch": place.epoch, "attempts": 1}


def _items(answer: object, least: int) -> list[Any]:
    """The items of an answer, of which the first is a call's number. More than we know are ignored: a newer peer may send them."""
    if type(answer) is not list or len(answer) < least or type(answer[0]) is not int:
        raise ProtocolError(f"an answer is an array of {least} items that begins with a number")
    return answer


def array_head(length: int, number: int) -> bytes:
    """The beginning of a CBOR array of `length` (< 24) items whose first is `number`."""
    if number < 0x1_0000_0000:
        return b"%c\x1a%b" % (0x80 + length, number.to_bytes(4, "big"))
    return b"%c\x1b%b" % (0x80 + length, number.to_bytes(8, "big"))


def kept(segments: list[Buffer]) -> tuple[Buffer, ...]:
    """Segments as a link may keep them until they are acknowledged: what their owner could change meanwhile is copied."""
    return tuple(segment if type(segment) is bytes else bytes(segment) for segment in segments)
