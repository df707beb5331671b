"""The caller: makes calls for handles. The trio shell around the tables of outgoing calls.

The short way, taken by a call without a retry policy to an actor whose place is known, costs no task, scope or event: one encoded frame,
one parked task. Everything else goes the long way (`repeating`): it finds the actor, waits while it is being restarted and makes the call
again where that is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

import trio

from actors.errors import CallError, CallTimeoutError, ConnectionLostError, DeadlineExceededError, EncodeError, SelfCallError
from actors.method import Bound, BoundMethod, BoundStream
from actors.options import NO_CALL_OPTIONS
from actors.reference import Reference
from actors.retry import BUDGET_TOKENS, RetryBudget
from actors.stream import Stream
from runtime.calls.answers import Answers, facts
from runtime.calls.arguments import refused_in_call
from runtime.calls.deadlines import Deadlines, Waiting
from runtime.calls.effective_deadline import effective_deadline
from runtime.calls.format import NO_ARGUMENTS, REPEATABLE, array_head, as_repeat, call_frame, kept
from runtime.calls.lines import Lines
from runtime.calls.local import FIRST, Attempt, LocalCalls
from runtime.calls.outgoing import Confirmations, OpenCalls, PendingCall
from runtime.calls.remote import RemoteResults
from runtime.calls.repeating import MOVED, LongCall
from runtime.calls.routes import Route, Routes
from runtime.calls.streams import OpenStream
from runtime.environment import Environment
from runtime.faults import Faults
from runtime.hosting.cell import Job
from runtime.hosting.chains import Chain
from runtime.hosting.host import Host
from runtime.hosting.turns import Turns
from runtime.links.link import Link
from runtime.wire.codec import Codec
from runtime.wire.frames import Buffer, Kind, Outgoing, encode_frame

R = TypeVar("R")
T = TypeVar("T")

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
        faults: Faults | None,
    ) -> None:
        self.environment = environment
        self.routes = routes
        self.lines = Lines(routes, environment)
        self.numbers = numbers
        self.budgets: dict[tuple[str, float], RetryBudget] = {}
        self.confirmations: dict[tuple[str, int], Confirmations] = {}
        self.open_calls = OpenCalls()
        self._codec = codec
        self._answers = answers
        self.deadlines = deadlines
        self.faults = faults
        self.call_timeout: float | None = None
        """Seconds for a call that is awaited and has no timeout of its own; None for no limit. The runtime's own calls have others."""
        self.kept: RemoteResults
        """Makes the calls whose results stay elsewhere."""
        self._local: LocalCalls | None = None
        self._running: Mapping[trio.lowlevel.Task, Job] = {}
        self._starts: Mapping[trio.lowlevel.Task, object] = {}
        self._turns: Turns | None = None

    def attach(self, host: Host, local: LocalCalls, kept: RemoteResults) -> None:
        """Say where actors of this node itself live."""
        self._running = host.workers.running
        self._starts = host.turns.starts
        self._turns = host.turns
        self._local = local
        self.kept = kept

    def call(self, bound: BoundMethod[..., R], args: tuple[object, ...], kwargs: dict[str, object]) -> Coroutine[Any, Any, R]:
        """Make the call and wait for its outcome. See `BoundMethod.__call__`."""
        return self._call(bound, args, kwargs)

    def remote(self, bound: BoundMethod[..., R], args: tuple[object, ...], kwargs: dict[str, object]) -> Coroutine[Any, Any, Reference[R]]:
        """Make the call and keep the result with its owner. See `BoundMethod.remote`."""
        return self.kept.remote(bound, args, kwargs)

    def stream(self, bound: BoundStream[..., T], args: tuple[object, ...], kwargs: dict[str, object]) -> Stream[T]:
        """The items of a generator method. See `BoundStream.__call__`."""
        return OpenStream(self, bound, args, kwargs)

    async def send(self, bound: BoundMethod[..., R], args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Hand a one-way call to the connection. See `BoundMethod.send`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        route = self.lines.free(bound)
        if route is None:
            await self.lines.through(bound, self.numbers(), partial(self._send, bound, args, kwargs))
        elif route.link is None:
            self._send(bound, args, kwargs, route)
        else:
            frame, segments = self._one_way(bound, args, kwargs, route, route.link)
            # Nobody waits for the answer: what bounds the memory that large ones take is room for them.
            await route.link.room(sum(map(len, segments)))
            route.link.post(frame, kept(segments), lane=route.place.actor)
        await trio.lowlevel.cancel_shielded_checkpoint()

    def _send(self, bound: BoundMethod[..., Any], args: tuple[object, ...], kwargs: dict[str, object], route: Route) -> None:
        link = route.link
        if link is None:
            assert self._local is not None
            self._local.send(route.address, bound, args, kwargs)
        else:
            frame, segments = self._one_way(bound, args, kwargs, route, link)
            link.post(frame, kept(segments), lane=route.place.actor)

    def _one_way(
        self, bound: BoundMethod[..., Any], args: tuple[object, ...], kwargs: dict[str, object], route: Route, link: Link
    ) -> tuple[bytes, list[Buffer]]:
        segments: list[Buffer] = Outgoing(link.peer.identity)
        control = array_head(5, 0) + route.prefix + self._encoded(bound, args, kwargs, segments)
        return encode_frame(Kind.SEND, control, segments), segments

    def _encoded(self, bound: Bound, args: tuple[object, ...], kwargs: dict[str, object], segments: list[Buffer]) -> bytes:
        """The arguments as they travel. Raises EncodeError, which names the parameter."""
        try:
            return self._codec.encode_arguments(args, kwargs, segments)
        except EncodeError as error:
            raise refused_in_call(self._codec, error, bound, args, kwargs) from error.__cause__

    async def _call(self, bound: BoundMethod[..., Any], args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        options = bound.options_
        route = self.routes.known(bound)
        expires = math.inf
        if options is not NO_CALL_OPTIONS and options.timeout is not None:
            expires = self.environment.now() + options.timeout
        elif self.call_timeout is not None and not bound.address.name.startswith("@"):
            expires = self.environment.now() + self.call_timeout
        if (
            route is None
            or options.retry is not None
            or (self.lines.all and self.lines.ahead_of(bound))
            or (route.link is not None and not route.link.has_room)
        ):
            return await LongCall(self, bound, args, kwargs, expires, self.numbers()).run(None, None)
        task = trio.lowlevel.current_task()
        attempt = FIRST
        if self._running or self._starts:
            self.refuse_self_call(task, bound)
            chain = self.chain(task)
            if chain is not None:
                attempt = Attempt(0, False, False, None, chain)
        deadline = effective_deadline(task)
        if deadline != math.inf and deadline <= self.environment.now():
            await trio.lowlevel.checkpoint()
        if self.faults is not None:
            await self.faults.slow_down(bound.definition.name)
        call: Waiting = PendingCall(self.numbers(), route.place, task)
        self.post(call, route, bound, args, kwargs, 0, expires if expires < deadline else deadline, attempt)
        if call.finished:
            await trio.lowlevel.checkpoint()
        elif expires == math.inf:
            await trio.lowlevel.wait_task_rescheduled(partial(self._give_up, call, route))
        else:
            self.deadlines.add(expires, call)
            try:
                await trio.lowlevel.wait_task_rescheduled(partial(self._give_up, call, route))
            finally:
                self.deadlines.done()
            if call.expired:
                raise self.expired(call, route, bound)
        error = call.error
        if error is None:
            value, call.value = call.value, None
            return value
        if isinstance(error, MOVED) and bound.address.registered:
            # Certainly not run, and perhaps only because the actor has moved.
            return await LongCall(self, bound, args, kwargs, expires, call.number).run(route, error)
        if isinstance(error, DeadlineExceededError) and deadline < expires:
            # It is the caller's own deadline that is too near: that ends the call, as trio has it.
            await trio.sleep_until(deadline)
            await trio.lowlevel.checkpoint()
        raise error

    def _give_up(self, call: Waiting, route: Route, raise_cancel: Callable[[], object]) -> trio.lowlevel.Abort:
        """The waiting task was cancelled, and so is the call."""
        call.waiter = None
        self.withdraw(call, route)
        return trio.lowlevel.Abort.SUCCEEDED

    def post(
        self,
        call: Waiting,
        route: Route,
        bound: Bound,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        flags: int,
        deadline: float,
        attempt: Attempt = FIRST,
    ) -> None:
        """Hand the request to the actor's node, or to this one's own host. Its answer finishes `call`, perhaps at once.

        Raises EncodeError for arguments that cannot be sent.
        """
        link = route.link
        if link is None:
            assert self._local is not None
            self._local.begin(call, route.address, bound, args, kwargs, deadline, attempt)
            return
        calls = route.calls
        assert calls is not None
        segments: list[Buffer] = []
        arguments = NO_ARGUMENTS if not args and not kwargs else None if kwargs else self._codec.encode_scalars(args)
        if arguments is None:
            segments = Outgoing(link.peer.identity)
            arguments = self._encoded(bound, args, kwargs, segments)
        remaining = None if deadline == math.inf else deadline - self.environment.now()
        first = 0 if not attempt.first or not (attempt.elsewhere or attempt.first != call.number) else attempt.first
        kept_as = None if attempt.anchor is None else (attempt.anchor.identity[2], attempt.anchor.version)
        frame = call_frame(call.number, flags, route.prefix, arguments, segments, remaining, first, kept_as, attempt.chain)
        alone = not calls.pending
        calls.pending[call.number] = call
        if self.faults is None:
            call.ticket = link.post(frame, tuple(segments), lane=route.place.actor, at_once=alone)
        else:
            self._post_faultily(call, route, frame, tuple(segments), flags)
        if segments:
            call.lends = not all(isinstance(segment, bytes) for segment in segments)
        if link.ended is not None:
            calls.take(call.number)
            call.fail(self._answers.lost(link, call))

    def _post_faultily(self, call: Waiting, route: Route, frame: bytes, segments: tuple[Buffer, ...], flags: int) -> None:
        """Like the end of `post`, with what tests have asked for."""
        faults, link, calls, method = self.faults, route.link, route.calls, route.place.method
        assert faults is not None
        assert link is not None
        assert calls is not None
        if faults.strike("request-lost", method):
            # Sent, as far as anyone here can tell.
            call.ticket = link.post(encode_frame(Kind.EMPTY, b""))
        else:
            call.ticket = link.post(frame, segments, lane=call.place.actor)
            if flags & REPEATABLE and faults.strike("request-repeated", method):
                link.post(as_repeat(frame), kept(segments), lane=call.place.actor)
        if faults.strike("cut", method):
            link.drop_connection()
        if faults.strike("in-flight", method):
            calls.take(call.number)
            text = f"the connection was lost while {call.place.actor}.{method} was in flight"
            call.fail(ConnectionLostError(text, **facts(call.place)))

    def withdraw(self, call: Waiting, route: Route) -> None:
        """Nobody waits for the call any more: tell whoever runs it, and drop its answer should one come."""
        if call.finished:
            return
        call.finished = True
        link = route.link
        if link is None:
            assert self._local is not None
            call.recalled = self._local.withdraw(call)
            call.ticket = 0
        elif route.calls is not None and route.calls.take(call.number) is not None:
            call.recalled = link.abandon(call.ticket)
            if not call.recalled:
                link.post(encode_frame(Kind.CANCEL, array_head(1, call.number)), lane=call.place.actor)
                if call.lends:
                    link.own(call.ticket)

    def expired(self, call: Waiting, route: Route, bound: BoundMethod[..., Any]) -> CallError:
        """What to raise for a call whose timeout has passed; it is withdrawn."""
        self.withdraw(call, route)
        if call.recalled:
            return DeadlineExceededError(
                f"{call.place.actor}.{call.place.method} could not be handed to node {call.place.node} within its timeout of "
                f"{self.timeout(bound):g} s; it did not run and will not",
                **facts(call.place),
            )
        return CallTimeoutError(
            f"{call.place.actor}.{call.place.method} gave no answer within its timeout of {self.timeout(bound):g} s; it was told to "
            "stop, but may have taken effect",
            **facts(call.place),
        )

    def timeout(self, bound: Bound) -> float:
        """Seconds that a call may take by its options, or else by those of the node."""
        own = bound.options_.timeout
        return own if own is not None else self.call_timeout or math.inf

    def confirm(self, call: Waiting, link: Link) -> None:
        """A repeatable call will not be made again under its number: let its peer forget it."""
        confirmations = self.confirmations.get((link.peer.name, link.peer.incarnation))
        if confirmations is not None and confirmations.end(call.number) and link.ended is None:
            watermark, beyond = confirmations.take()
            nothing: list[Buffer] = []
            everywhere = b"\x1b" + self.open_calls.watermark.to_bytes(8, "big")
            link.post(encode_frame(Kind.FORGET, array_head(3, watermark) + self._codec.encode(beyond, nothing) + everywhere, nothing))

    def repeatable_number(self, link: Link) -> int:
        """The number of a call that may be made again over `link`, or over what follows it to the same incarnation."""
        number = self.numbers()
        self.confirmations.setdefault((link.peer.name, link.peer.incarnation), Confirmations()).begin(number)
        return number

    def over(self, first: int, actor: str) -> None:
        """The call whose first attempt had this number will not be made again by anybody."""
        self.open_calls.end(first)
        assert self._local is not None
        self._local.over(first, actor, self.open_calls.watermark)

    def budget(self, target: str, tokens: float = BUDGET_TOKENS) -> RetryBudget:
        """The retry budget of an actor, for policies that give it so many tokens."""
        budget = self.budgets.get((target, tokens))
        if budget is None:
            budget = self.budgets[target, tokens] = RetryBudget(tokens=tokens)
            if len(self.budgets) > MOST_BUDGETS:
                del self.budgets[next(iter(self.budgets))]
        return budget

    def refuse_self_call(self, task: trio.lowlevel.Task, bound: Bound) -> None:
        """Raises `SelfCallError` if the method that runs in `task` would wait for itself."""
        job = self._running.get(task)
        if (
            job is not None
            # What another actor's start calls from within that method is told with the whole chain.
            and task not in self._starts
            and job.cell.address.name == bound.address.name
            and not (bound.definition.concurrent or job.definition.concurrent or job.definition.reentrant)
        ):
            name = bound.address.name
            raise SelfCallError(
                f"{name}.{job.definition.name} awaited {name}.{bound.definition.name}: it would wait for itself for ever. "
                f"Call self.{bound.definition.name}(...) instead, mark one of the two as concurrent, or {job.definition.name} as reentrant",
                actor=name,
                method=bound.definition.name,
            )

    @property
    def has_methods_running(self) -> bool:
        """False if no method and no start runs on this node, so that none can make a call."""
        return bool(self._running or self._starts)

    def chain(self, task: trio.lowlevel.Task) -> Chain | None:
        """Who waits for a call that is made in `task`; see `Turns.chain`."""
        return self._turns.chain(task) if self._turns is not None else None

    def ended(self, peer: tuple[str, int]) -> None:
        """That incarnation is no more: nothing needs to be confirmed to it."""
        self.confirmations.pop(peer, None)
