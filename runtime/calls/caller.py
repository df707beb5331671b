"""The caller: makes calls for handles. The trio shell around the tables of outgoing calls.

The short way, taken by a call without a retry policy to an actor whose place is known, costs no task, scope or event: one encoded frame,
one parked task. Everything else goes the long way (`repeating`): it finds the actor, waits while it is being restarted and makes the call
again where that is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import trio

from actors.errors import CallError, CallTimeoutError, ConnectionLostError, SelfCallError
from actors.method import BoundMethod
from actors.options import NO_CALL_OPTIONS
from actors.reference import Reference, ReferenceAddress
from actors.retry import RetryBudget
from runtime.calls.answers import Answers, facts
from runtime.calls.deadlines import Deadlines, Waiting
from runtime.calls.format import KEEP_RESULT, REPEAT, REPEATABLE, array_head, kept
from runtime.calls.local import LocalCalls
from runtime.calls.outgoing import Confirmations, PendingCall
from runtime.calls.repeating import MOVED, LongCall
from runtime.calls.routes import Route, Routes
from runtime.environment import Environment
from runtime.faults import Faults
from runtime.hosting.host import Host
from runtime.links.link import Link
from runtime.links.session import Buffer
from runtime.wire.codec import Codec
from runtime.wire.frames import Kind, encode_frame

R = TypeVar("R")

MOST_BUDGETS = 10_000
"""Targets whose failures are remembered; with more, those that failed first are forgiven."""


class Caller:
    """Makes the calls of one node. `numbers` gives each call its number, unique in this incarnation and growing."""

    def __init__(
        self,
        environment: Environment,
        codec: Codec,
        routes: Routes,
        answers: Answers,
        deadlines: Deadlines,
        numbers: Callable[[], int],
        make_reference: Callable[[ReferenceAddress], Reference[Any]],
        faults: Faults | None,
    ) -> None:
        self.environment = environment
        self.routes = routes
        self.numbers = numbers
        self.budgets: dict[str, RetryBudget] = {}
        self.confirmations: dict[tuple[str, int], Confirmations] = {}
        self._codec = codec
        self._answers = answers
        self._deadlines = deadlines
        self._make_reference = make_reference
        self.faults = faults
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
        route = self.routes.known(bound) or await self.routes.find(bound)
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
        options = bound.options_
        route = self.routes.known(bound)
        missed: CallError | None = None
        expires = math.inf
        if options is not NO_CALL_OPTIONS and options.timeout is not None:
            expires = self.environment.now() + options.timeout
        if route is not None and options.retry is None:
            try:
                return await self._call_once(route, bound, args, kwargs, flags, expires)
            except MOVED as error:
                # Certainly not run, and perhaps only because the actor has moved.
                if not bound.address.registered:
                    raise
                missed = error
        return await LongCall(self, bound, args, kwargs, flags, expires).run(route, missed)

    async def _call_once(
        self, route: Route, bound: BoundMethod[..., Any], args: tuple[object, ...], kwargs: dict[str, object], flags: int, expires: float
    ) -> object:
        """The short way."""
        task = trio.lowlevel.current_task()
        self.refuse_self_call(task, bound)
        deadline = trio.current_effective_deadline()
        if deadline != math.inf and deadline <= self.environment.now():
            await trio.lowlevel.checkpoint()
        if expires < deadline:
            deadline = expires
        link = route.link
        if link is not None and not link.has_room:
            with trio.move_on_at(expires):
                await link.room()
        if self.faults is not None:
            await self.faults.slow_down(bound.definition.name)
        call: Waiting = PendingCall(self.numbers(), route.place, task)
        self.post(call, route, bound, args, kwargs, flags, deadline)
        if call.finished:
            await trio.lowlevel.checkpoint()
        else:
            if expires != math.inf:
                self._deadlines.add(expires, call)

            def give_up(raise_cancel: Callable[[], object]) -> trio.lowlevel.Abort:
                call.waiter = None
                self.withdraw(call, route)
                return trio.lowlevel.Abort.SUCCEEDED

            try:
                await trio.lowlevel.wait_task_rescheduled(give_up)
            finally:
                if expires != math.inf:
                    self._deadlines.done()
            if call.expired:
                raise self._expired(call, route, bound)
        if call.error is not None:
            raise call.error
        return self.result(call, route, flags)

    def post(
        self,
        call: Waiting,
        route: Route,
        bound: BoundMethod[..., Any],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        flags: int,
        deadline: float,
    ) -> None:
        """Hand the request to the actor's node, or to this one's own host. Its answer finishes `call`, perhaps at once.

        Raises EncodeError for arguments that cannot be sent, and a `CallError` if the link is over.
        """
        link = route.link
        if link is None:
            assert self._local is not None
            self._local.begin(call, route.address, bound.definition, args, kwargs, deadline)
            return
        segments: list[Buffer] = []
        if deadline == math.inf:
            control = array_head(5, call.number) + route.prefix + self._codec.encode_arguments(args, kwargs, segments)
        else:
            remaining = self._codec.encode(deadline - self.environment.now(), segments)
            control = array_head(6, call.number) + route.prefix + self._codec.encode_arguments(args, kwargs, segments) + remaining
        frame = encode_frame(Kind.CALL, control, segments, flags)
        calls = route.calls
        assert calls is not None
        alone = not calls.pending
        calls.begin(call)
        if self.faults is None:
            call.ticket = link.post(frame, kept(segments), at_once=alone)
        else:
            self._post_faultily(call, route, control, segments, flags)
        if link.ended is not None:
            calls.take(call.number)
            raise call.fail(self._answers.lost(link, call))

    def _post_faultily(self, call: Waiting, route: Route, control: bytes, segments: list[Buffer], flags: int) -> None:
        """Like the end of `post`, with what tests have asked for."""
        faults, link, calls, method = self.faults, route.link, route.calls, route.place.method
        assert faults is not None
        assert link is not None
        assert calls is not None
        if not faults.strike("request-lost", method):
            call.ticket = link.post(encode_frame(Kind.CALL, control, segments, flags), kept(segments))
            if flags & REPEATABLE and faults.strike("request-repeated", method):
                link.post(encode_frame(Kind.CALL, control, segments, flags | REPEAT), kept(segments))
        if faults.strike("cut", method):
            link.drop_connection()
        if faults.strike("in-flight", method):
            calls.take(call.number)
            text = f"the connection was lost while {call.place.actor}.{method} was in flight"
            raise call.fail(ConnectionLostError(text, **facts(call.place)))

    def withdraw(self, call: Waiting, route: Route) -> None:
        """Nobody waits for the call any more: tell whoever runs it, and drop its answer should one come."""
        if call.finished:
            return
        call.finished = True
        link = route.link
        if link is None:
            assert self._local is not None
            self._local.withdraw(call)
        elif route.calls is not None and route.calls.take(call.number) is not None:
            link.post(encode_frame(Kind.CANCEL, array_head(1, call.number)))

    def _expired(self, call: Waiting, route: Route, bound: BoundMethod[..., Any]) -> CallError:
        """What to raise for a call whose timeout has passed; it is withdrawn."""
        self.withdraw(call, route)
        return CallTimeoutError(
            f"{call.place.actor}.{call.place.method} gave no answer within its timeout of {bound.options_.timeout:g} s; it was told to "
            "stop, but may have taken effect",
            **facts(call.place),
        )

    def result(self, call: Waiting, route: Route | None, flags: int) -> object:
        """What the caller gets of a call that has succeeded."""
        if not flags & KEEP_RESULT:
            return call.value
        if route is not None and route.link is None:
            assert self._local is not None
            return self._make_reference(self._local.keep(call.value))
        return self._make_reference(cast("ReferenceAddress", call.value))

    def confirm(self, call: Waiting, link: Link) -> None:
        """A repeatable call will not be made again under its number: let its peer forget it."""
        confirmations = self.confirmations.get((link.peer.name, link.peer.incarnation))
        if confirmations is not None and confirmations.end(call.number) and link.ended is None:
            watermark, beyond = confirmations.take()
            nothing: list[Buffer] = []
            link.post(encode_frame(Kind.FORGET, array_head(2, watermark) + self._codec.encode(beyond, nothing), nothing))

    def repeatable_number(self, link: Link) -> int:
        """The number of a call that may be made again over `link`, or over what follows it to the same incarnation."""
        number = self.numbers()
        self.confirmations.setdefault((link.peer.name, link.peer.incarnation), Confirmations()).begin(number)
        return number

    def budget(self, target: str) -> RetryBudget:
        """The retry budget of an actor."""
        budget = self.budgets.get(target)
        if budget is None:
            budget = self.budgets[target] = RetryBudget()
            if len(self.budgets) > MOST_BUDGETS:
                del self.budgets[next(iter(self.budgets))]
        return budget

    def refuse_self_call(self, task: trio.lowlevel.Task, bound: BoundMethod[..., Any]) -> None:
        """Raises `SelfCallError` if the method that runs in `task` would wait for itself."""
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

    def ended(self, peer: tuple[str, int]) -> None:
        """That incarnation is no more: nothing needs to be confirmed to it."""
        self.confirmations.pop(peer, None)
