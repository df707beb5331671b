"""The call sender: posts calls and withdraws them; the trio shell around the tables of outgoing
calls.

A call to an actor whose place is known takes the fast path: it costs no task, scope or event, but
one encoded frame and one parked task. With a retry policy its first attempt is little more, see
`runtime.calls.first_attempts`. Every other call is made by a `RetryingCall`, which finds the actor,
waits while it is being restarted and makes the call again where that is allowed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from threading import get_ident
from typing import Any, TypeAlias, cast

import trio

from actors.call_context import CURRENT
from actors.class_names import class_name
from actors.documentation import A_CALL, shown_as
from actors.errors import (
    ActorNotFoundError,
    CallError,
    CallTimeoutError,
    ConnectionLostError,
    DeadlineExceededError,
    EncodeError,
    NodeDrainingError,
    NodeUnreachableError,
    RemoteError,
    SelfCallError,
    StaleEpochError,
    UnderstudyError,
    WrongDoorError,
)
from actors.filters import Call
from actors.identifiers import NodeId
from actors.method import Bound, BoundMethod
from actors.options import NO_CALL_OPTIONS
from actors.retry import BUDGET_TOKENS, GiveUp, Retry, RetryBudget, RetryPolicy
from runtime.calls.arguments import refused_in_call
from runtime.calls.call_queues import CallQueues, is_service
from runtime.calls.deadlines import Deadlines, Waiting, effective_deadline, wake
from runtime.calls.local_calls import LocalCalls
from runtime.calls.pending_calls import Confirmations, OpenCalls, OutgoingRequest, PendingCall
from runtime.calls.protocol import (
    REPEATABLE,
    TELL_DEPTH,
    as_repeat,
    call_frame,
    cancel_frame,
    forget_frame,
    own_copies,
    send_control,
)
from runtime.calls.reply_handler import ReplyHandler, facts
from runtime.calls.routes import Route, Routes, left_meanwhile
from runtime.calls.timed_out import TimedOut
from runtime.environment import Environment
from runtime.faults import Faults
from runtime.hosting.cell import Invocation
from runtime.hosting.chains import Chain
from runtime.hosting.host import ActorHost
from runtime.hosting.timeline_recorder import TimelineRecorder
from runtime.links.link import Link
from runtime.links.spinner import Spinner
from runtime.references.manager import ReferenceManager
from runtime.statistics.call_statistics import (
    CallStatistics,
    CallTimer,
    MethodStatistics,
    reason_of,
)
from runtime.user_errors import end_with_users_part
from runtime.wire.arrays import EMPTY_ARRAY
from runtime.wire.codec import Codec
from runtime.wire.frames import Buffer, Kind, Outgoing, encode_frame

MOVED = (StaleEpochError, ActorNotFoundError, NodeUnreachableError, NodeDrainingError)
"""Refusals of a call that perhaps only came to where its actor no longer is."""

Args: TypeAlias = tuple[object, ...]

Kwargs: TypeAlias = dict[str, object]

CONFIRM_SECONDS = 0.5
"""Seconds after which the end of a repeatable call is confirmed, if few others have ended since. So
long its peer may keep an answer for nothing.
"""

CLOCK_SHARE = 0.01
"""The share of a timeout by which the clock of a callee may be ahead of that of the caller."""

MOST_BUDGETS = 10_000
"""Targets whose failures are remembered; with more, those that failed first are forgiven."""


class CallSender(ABC):
    """Sends the calls of one node, and withdraws them. `numbers` gives each call its number, unique
    in this incarnation and growing. `host` has the node's own actors, `local` makes calls to them,
    and `references` keeps track of results that stay with their owners.
    """

    def __init__(
        self,
        environment: Environment,
        codec: Codec,
        routes: Routes,
        reply_handler: ReplyHandler,
        deadlines: Deadlines,
        numbers: Callable[[], int],
        faults: Faults | None,
        host: ActorHost,
        local: LocalCalls,
        references: ReferenceManager,
        nursery: trio.Nursery,
        call_timeout: float | None = None,
        store_identity: str = "",
    ) -> None:
        # A call that another thread made would have its task woken from this loop, which trio
        # forbids: it would end the link, and with it the calls of others.
        self._thread = get_ident()
        self.environment = environment
        self.routes = routes
        self.lines = CallQueues(routes, environment)
        """The calls that wait for their actors."""
        self.numbers = numbers
        self.budgets: dict[tuple[str, float], RetryBudget] = {}
        """Of actors that calls failed at, by their names and the budgets' tokens."""
        self.confirmations: dict[NodeId, Confirmations] = {}
        """Which of the repeatable calls to a peer have ended."""
        self._unconfirmed: dict[Link, Confirmations] = {}
        """Those that have something to confirm, and the links to the peers that it is for."""
        self._confirming = False
        """True while a task waits to send what is in `_unconfirmed`."""
        self.open_calls = OpenCalls()
        self.codec = codec
        self._reply_handler = reply_handler
        self.deadlines = deadlines
        self.faults = faults
        self.call_timeout = call_timeout
        """Seconds for a call that is awaited and has no timeout of its own; None for no limit. The
        runtime's own calls have others.
        """
        self.store_identity = store_identity
        """What tells its cluster from others; "" if that is not known."""
        self.nursery = nursery
        """The nursery of tasks that belong to calls, and not to their callers."""
        self.references = references
        self._local = local
        self.statistics: CallStatistics | None = None
        """Counts the outcomes of calls; None while nothing is measured."""
        self._token: object = None
        """The token of the statistics: bound methods keep where their calls were counted last."""
        # An attribute and not a method, so that what is not recorded costs nothing; see `record`.
        self.call: Callable[
            [BoundMethod[..., Any], tuple[object, ...], dict[str, object]], Coroutine[Any, Any, Any]
        ] = self._call
        """Make the call and wait for its outcome. See `BoundMethod.__call__`."""
        self.post: Callable[[Waiting, Route, OutgoingRequest], None] = self._post
        """Hand an attempt to the actor's node; see `_post`."""
        self.spinner = host.workers.spinner
        """What the node's connections share that may spin; None if none may."""
        self._recorder: TimelineRecorder | None = None
        self._counts = host.counts
        self._running: Mapping[trio.lowlevel.Task, Invocation] = host.workers.running
        self._starts: Mapping[trio.lowlevel.Task, object] = host.turns.starts
        self._turns = host.turns

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. Looks at every call: for tests and
        simulations.
        """
        self.lines.check_invariants()
        self.open_calls.check_invariants()
        for confirmations in self.confirmations.values():
            confirmations.check_invariants()
        for table in self.routes.tables.values():
            table.check_invariants()

    def count_attempt(self, error: CallError, decision: Retry | GiveUp) -> None:
        """Count an attempt that failed with `error`."""
        if isinstance(decision, Retry):
            self._counts.attempts.add(reason_of(error))
        elif decision.why == "budget used up":
            self._counts.budget_empty += 1

    def measure(self, statistics: CallStatistics | None) -> None:
        """Count in `statistics` the outcomes of calls that begin from now on; None: stop."""
        self.statistics = statistics
        self._token = None if statistics is None else statistics.token

    def record(self, recorder: TimelineRecorder | None) -> None:
        """Record the calls that begin from now on; None: stop."""
        self._recorder = recorder
        self.post = self._post if recorder is None else partial(self._post_recorded, recorder)
        self.call = self._call if recorder is None else partial(self._recorded, recorder)

    def _counters(self, bound: BoundMethod[..., Any]) -> MethodStatistics:
        """Return where a call is counted, and keep it for the next calls of `bound`. A method that
        was not called before gets its place when this call has ended; see `_time`.
        """
        assert self.statistics is not None
        found = self.statistics.known(bound._address, bound._definition.name)
        if found is None:
            return self.statistics.new(bound._address, bound._definition.name)
        bound._counted = found
        return found

    def _note_failure(
        self, counted: MethodStatistics | None, timer: CallTimer | None, error: BaseException
    ) -> None:
        """Count a call that raises `error` at its caller, where it is handled now."""
        if isinstance(error, UnderstudyError):
            # Its text says what happened, to which actor and which argument: the frames of the
            # codec, and those of retries, say no more.
            end_with_users_part(error)
        if counted is not None:
            counted.fail(error)
        if timer is not None:
            self._time(timer)

    def _time(self, timer: CallTimer) -> None:
        """A call that is timed has ended. If its method was not called before, this makes known
        what was counted.
        """
        timer.answered(self.environment.stopwatch())
        if self.statistics is not None:
            self.statistics.enter(timer.method)

    @shown_as(A_CALL)
    async def _recorded(
        self,
        recorder: TimelineRecorder,
        bound: BoundMethod[..., Any],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        seen: Call | None = None,
    ) -> Any:
        made = recorder.begin_call(bound._address, bound._definition.name, kwargs)
        if made is None:
            return await self._call(bound, args, kwargs, seen)
        outcome = "returned"
        try:
            return await self._call(bound, args, kwargs, seen)
        except BaseException as error:
            outcome = class_name(type(error))
            if isinstance(error, RemoteError):
                # Its class is called as that of the exception which the method has raised.
                outcome = f"raised {outcome}"
            raise
        finally:
            recorder.end_call(made, kwargs, outcome)

    def _post_recorded(
        self, recorder: TimelineRecorder, call: Waiting, route: Route, request: OutgoingRequest
    ) -> None:
        recorder.posted(
            call.number,
            route.address,
            request.bound._definition.name,
            request.kwargs,
            request.chain,
        )
        self._post(call, route, request)

    def attempt(
        self,
        bound: BoundMethod[..., Any],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        seen: Call,
    ) -> Coroutine[Any, Any, Any]:
        """Like `call`, for filters, which have the call as `seen`: its deadline counts, and each
        attempt is noted in it.
        """
        if self._recorder is None:
            return self._call(bound, args, kwargs, seen)
        return self._recorded(self._recorder, bound, args, kwargs, seen)

    def _expiry(self, bound: Bound) -> float:
        """When a call that is made now times out, on the node's clock."""
        options = bound._options
        if options is not NO_CALL_OPTIONS and options.timeout is not None:
            return self.environment.now() + options.timeout
        if self.call_timeout is not None and not bound._address.name.startswith("@"):
            return self.environment.now() + self.call_timeout
        return math.inf

    @shown_as(A_CALL)
    @trio.lowlevel.enable_ki_protection
    async def send(
        self, bound: BoundMethod[..., Any], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        """Hand a one-way call to the connection. See `BoundMethod.send`."""
        self.check_thread(bound)
        await trio.lowlevel.checkpoint_if_cancelled()
        route, number = self.lines.free(bound), self.numbers()
        request = OutgoingRequest(bound, args, kwargs, math.inf, context=CURRENT.get())
        if route is None or (route.link is not None and route.link.is_crowded):
            await self.lines.in_turn(bound, number, partial(self.post_one_way, request, number))
        elif route.link is None:
            self.post_one_way(request, number, route)
        else:
            if not route.one_way:
                self.routes.note_one_way(route)
            frame, segments = self._one_way(request, number, route, route.link)
            # No task waits for the answer: what bounds the memory that large ones take is room for
            # them.
            await route.link.room(sum(map(len, segments)))
            route.link.post(frame, own_copies(segments), lane=route.place.actor)
        # Not cancellable: the call has left, and a cancellation would suggest that it has not.
        await trio.lowlevel.cancel_shielded_checkpoint()

    def check_thread(self, bound: Bound) -> None:
        """Raises `WrongDoorError` in another thread than that of the node."""
        if get_ident() == self._thread:
            return
        name = f"{bound._address.name}.{bound._definition.name}"
        raise WrongDoorError(
            f"{name} was called outside of the thread whose event loop its node runs in: call it "
            "there, with trio.from_thread.run, or connect with runtime.blocking or runtime.aio",
            actor=bound._address.name,
            method=bound._definition.name,
        )

    def post_one_way(self, request: OutgoingRequest, number: int, route: Route) -> None:
        """Hand a one-way call to its actor's node, whether the connection has room or not. Raises
        EncodeError.
        """
        link = route.link
        if not route.one_way:
            self.routes.note_one_way(route)
        if link is None:
            self._local.send(route.address, request, number)
        else:
            frame, segments = self._one_way(request, number, route, link)
            link.post(frame, own_copies(segments), lane=route.place.actor)

    def _one_way(
        self, request: OutgoingRequest, number: int, route: Route, link: Link
    ) -> tuple[bytes, list[Buffer]]:
        segments: list[Buffer] = Outgoing(link.peer.identity)
        arguments = self._encoded(request, segments)
        control = send_control(number, route.prefix, arguments, request.context, request.attempt)
        return encode_frame(Kind.SEND, control, segments), segments

    def _encoded(self, request: OutgoingRequest, segments: list[Buffer]) -> bytes:
        """The arguments as they travel. Raises EncodeError, which names the parameter."""
        args, kwargs = request.args, request.kwargs
        try:
            return self.codec.encode_arguments(args, kwargs, segments)
        except EncodeError as error:
            raise refused_in_call(
                self.codec, error, request.bound, args, kwargs
            ) from error.__cause__

    # Ctrl-C may not come between the entry of a call and the wait for its answer, which would wake
    # a task that is not parked; nor while a link numbers and queues what is posted. It goes to
    # trio's main task, at its next checkpoint.
    @shown_as(A_CALL)
    @trio.lowlevel.enable_ki_protection
    async def _call(
        self, bound: BoundMethod[..., Any], args: Args, kwargs: Kwargs, seen: Call | None = None
    ) -> Any:
        if get_ident() != self._thread:
            self.check_thread(bound)
        counted: Any = None
        timer: CallTimer | None = None
        # Inline, because it is for each call. The node may have begun to count anew since the last.
        if self._token is not None:
            counted = bound._counted
            if counted is None or counted.token is not self._token:
                counted = self._counters(bound)
            sampler = counted.made
            left = sampler.left = sampler.left - 1
            if not left:
                timer = counted.timed(sampler, self.environment.stopwatch())
        try:
            options, route = bound._options, self.routes.known(bound)
            policy = options.retry
            expires = seen.deadline if seen is not None else math.inf
            if seen is None and (options is not NO_CALL_OPTIONS or self.call_timeout is not None):
                expires = self._expiry(bound)
            # What has to wait for its actor takes the slow path.
            if route is None or (self.lines.all and self.lines.ahead_of(bound)):
                value = await self.make_again(bound, args, kwargs, expires, self.numbers(), seen)
            elif policy is not None:
                first = (bound, args, kwargs, expires, seen, route, counted, timer)
                value = await self.make_first_attempt(*first)
            else:
                task = trio.lowlevel.current_task()
                chain = self.chain_of(task, bound) if self._running or self._starts else None
                deadline = effective_deadline(task)
                # A deadline that has passed ends the call before anything is sent.
                if deadline != math.inf and deadline <= self.environment.now():
                    await trio.lowlevel.checkpoint()
                if self.faults is not None:
                    await self.faults.slow_down(bound._definition.name)
                call: Waiting = PendingCall(self.numbers(), route.place, task)
                soon = expires if expires < deadline else deadline
                flags = 0 if bound._load is None else TELL_DEPTH
                request = OutgoingRequest(bound, args, kwargs, soon, flags, chain, CURRENT.get())
                if counted is not None:
                    request.counted, request.timer = True, timer
                if seen is not None:
                    seen.attempted(1, route.address.node, addresses_of(route))
                self.post_in_turn(call, route, request)
                spinner = self.spinner
                if call.finished:
                    await trio.lowlevel.checkpoint()
                elif expires == math.inf and (spinner is None or spinner.current is None):
                    await trio.lowlevel.wait_task_rescheduled(partial(self.give_up, call, route))
                else:
                    await self.answered(call, route, expires, spinner)
                # The heap of timeouts may keep the call for long: it must not keep the value.
                value, call.value = call.value, None
                if call.error is not None or call.expired:
                    value = await self._failed(call, route, request, expires, seen)
        except BaseException as error:
            self._note_failure(counted, timer, error)
            raise
        if counted is not None:
            counted.value += 1
            if timer is not None:
                self._time(timer)
        return value

    @trio.lowlevel.enable_ki_protection
    async def answered(
        self, call: Waiting, route: Route, expires: float, spinner: Spinner | None
    ) -> None:
        """Wait until a call has finished, or has expired at `expires`: first by polling in place of
        the reader of its link, if that spins.
        """
        link = route.link
        if expires != math.inf:
            self.deadlines.add(expires, call)
        try:
            if link is not None and spinner is not None and spinner.current is link.socket:
                # Not parked, so that nothing may reschedule it.
                task, call.waiter = call.waiter, None
                await spinner.poll(lambda: call.finished or call.expired)
                if call.finished or call.expired:
                    return
                call.waiter = task
            await trio.lowlevel.wait_task_rescheduled(partial(self.give_up, call, route))
        except BaseException:
            # Cancelled while it polled: `give_up` does this for a task that is parked.
            self.withdraw(call, route)
            raise
        finally:
            if expires != math.inf:
                self.deadlines.done(call)

    async def _failed(
        self,
        call: Waiting,
        route: Route,
        request: OutgoingRequest,
        expires: float,
        seen: Call | None,
    ) -> Any:
        """Make a call without a retry policy again whose only attempt so far has failed, if it may
        be. Else raise.
        """
        bound = cast("BoundMethod[..., Any]", request.bound)
        # The answer and the timeout may come in the same pass: the first of the two decides.
        if call.expired:
            raise self.expired(call, route, bound)
        # The frames of the traceback must not refer to the error, nor to a call that does: each
        # error would stay until the cyclic garbage collector runs.
        error, call.error = call.error, None
        assert error is not None
        try:
            if isinstance(error, MOVED) and bound._address.registered:
                # It certainly did not run, and perhaps only because the actor has moved.
                args, kwargs, number = request.args, request.kwargs, call.number
                return await self.make_again(
                    bound, args, kwargs, expires, number, seen, route, error
                )
            if (
                isinstance(error, DeadlineExceededError | CallTimeoutError)
                and request.deadline < expires
            ):
                # It is the deadline of the caller's own scope that is too near, or was noticed
                # first where the method ran: that ends the call, as trio has it.
                await trio.sleep_until(request.deadline)
                await trio.lowlevel.checkpoint()
            if self.is_timed_out(error, bound, expires):
                error = self.timed_out(call, bound)
            raise error
        finally:
            del error

    @abstractmethod
    async def make_again(
        self,
        bound: BoundMethod[..., Any],
        args: Args,
        kwargs: Kwargs,
        expires: float,
        order: int,
        seen: Call | None,
        route: Route | None = None,
        error: CallError | None = None,
    ) -> Any:
        """Make a call that may take several attempts; see `RetryingCall`, which has these
        parameters. `error`: of an attempt over `route` that was made already.
        """

    @abstractmethod
    def make_first_attempt(
        self,
        /,
        bound: BoundMethod[..., Any],
        args: Args,
        kwargs: Kwargs,
        expires: float,
        seen: Call | None,
        route: Route,
        counted: MethodStatistics | None,
        timer: CallTimer | None,
    ) -> Coroutine[Any, Any, Any]:
        """Make a call with a retry policy over `route`; see `runtime.calls.first_attempts`."""

    def give_up(
        self, call: Waiting, route: Route, raise_cancel: Callable[[], object]
    ) -> trio.lowlevel.Abort:
        """The waiting task was cancelled, and so is the call: what trio calls for a parked task."""
        # First: an answer that arrives from here on must not wake a task that is not parked.
        call.waiter = None
        # The task is woken at once: it does not wait until the method has stopped.
        self.withdraw(call, route)
        return trio.lowlevel.Abort.SUCCEEDED

    def post_in_turn(self, call: Waiting, route: Route, request: OutgoingRequest) -> None:
        """Like `post`, for a call whose task waits for its outcome in any case: while its link is
        crowded, it is only entered, and encoded when its turn comes. Then an EncodeError is raised
        in that task.
        """
        link, calls = route.link, route.calls
        if link is not None and link.is_crowded:
            assert calls is not None
            deferred = link.defer(
                partial(self._post_deferred, call, route, request), urgent=is_service(request.bound)
            )
            if deferred is not None:
                calls.pending[call.number] = call
                call.ticket = deferred
                return
        self.post(call, route, request)

    def _post_deferred(self, call: Waiting, route: Route, request: OutgoingRequest) -> None:
        # A peer may answer what it was not asked.
        if call.finished:
            return
        assert route.calls is not None
        bound = request.bound
        if bound._address.registered and self.lines.free(bound) is not route:
            # The actor has moved; or calls that were made before this one have come back and wait
            # for its place, and this one joins them.
            route.calls.take(call.number)
            call.fail(left_meanwhile(route.place))
            wake(call)
            return
        try:
            self.post(call, route, request)
        except BaseException as error:  # noqa: ASYNC103  raised where the call was made
            route.calls.take(call.number)
            call.fail_unsent(error)
        if call.finished:
            wake(call)

    def _post(self, call: Waiting, route: Route, request: OutgoingRequest) -> None:
        """Hand the request to the actor's node, or to this one's own host. Its answer finishes
        `call`, perhaps at once.

        Raises EncodeError for arguments that cannot be sent.
        """
        link = route.link
        if link is None:
            self._local.begin(call, route.address, request)
            return
        calls = route.calls
        assert calls is not None
        args, kwargs, flags, deadline = (
            request.args,
            request.kwargs,
            request.flags,
            request.deadline,
        )
        segments: list[Buffer] = []
        arguments = (
            EMPTY_ARRAY
            if not args and not kwargs
            else None
            if kwargs
            else self.codec.encode_scalars(args)
        )
        if arguments is None:
            segments = Outgoing(link.peer.identity)
            arguments = self._encoded(request, segments)
        remaining = None if deadline == math.inf else deadline - self.environment.now()
        first, state = request.first, request.state
        # The number itself says so already: nothing is added to the frame.
        if first == call.number and not request.elsewhere:
            first = 0
        kept_as = None if state is None else (state.identity[2], state.version)
        frame = call_frame(
            call.number,
            flags,
            route.prefix,
            arguments,
            segments,
            remaining,
            first,
            kept_as,
            request.chain,
            request.context,
            request.attempt,
        )
        # With no other call under way there is nothing to gather this frame with: it is sent at
        # once.
        alone = not calls.pending
        calls.pending[call.number] = call
        if self.faults is None:
            call.ticket = link.post(frame, tuple(segments), lane=route.place.actor, at_once=alone)
        else:
            self._post_faultily(call, route, frame, tuple(segments), flags)
        if segments:
            call.lends = not all(isinstance(segment, bytes) for segment in segments)
        # The link has ended already: no later event would fail this call.
        if link.ended is not None:
            calls.take(call.number)
            call.fail(self._reply_handler.lost(link, call))

    def _post_faultily(
        self, call: Waiting, route: Route, frame: bytes, segments: tuple[Buffer, ...], flags: int
    ) -> None:
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
                link.post(as_repeat(frame), own_copies(segments), lane=call.place.actor)
        if faults.strike("cut", method):
            link.drop_connection()
        if faults.strike("in-flight", method):
            calls.take(call.number)
            text = f"the connection was lost while {call.place.actor}.{method} was in flight"
            call.fail(ConnectionLostError(text, **facts(call.place)))

    def withdraw(self, call: Waiting, route: Route) -> None:
        """Withdraw a call that no task waits for any more: cancel it where it runs, and drop its
        answer if one comes.
        """
        if call.finished:
            return
        call.finished = True
        link = route.link
        if link is None:
            call.recalled = self._local.withdraw(call)
            call.ticket = 0
        elif route.calls is not None and route.calls.take(call.number) is not None:
            # The entry is gone, so an answer that is on its way is dropped. If the request has
            # left, the far side gets a CANCEL.
            call.recalled = link.abandon(call.ticket) and not call.left
            if not call.recalled:
                link.post(cancel_frame(call.number), lane=call.place.actor)
                # The caller gets its arrays back now, and may change them before the peer has them.
                if call.lends:
                    link.own(call.ticket)

    def expired(self, call: Waiting, route: Route, bound: BoundMethod[..., Any]) -> CallError:
        """Withdraw a call whose timeout has passed, and return the error to raise."""
        self.withdraw(call, route)
        if not call.recalled:
            return self.timed_out(call, bound)
        name, timeout = f"{call.place.actor}.{call.place.method}", self.timeout(bound)
        what = f"could not be handed to node {call.place.node}"
        late = TimedOut(name, timeout, False, what, why_unreached(route))
        return late.error(**facts(call.place))

    def timed_out(self, call: Waiting, bound: BoundMethod[..., Any]) -> CallError:
        """Return the error of a call that was made and whose timeout has passed."""
        name, timeout = f"{call.place.actor}.{call.place.method}", self.timeout(bound)
        return TimedOut(name, timeout, may_have_run=True).error(**facts(call.place))

    def is_timed_out(
        self, error: BaseException, bound: BoundMethod[..., Any], expires: float
    ) -> bool:
        """True for an answer by which a call that expires at `expires` has ended at its timeout:
        where it ran, or here, as whichever of the two noticed it first has it. The caller gets the
        same error of both, and only here is known what timeout it had.
        """
        if type(error) is not CallTimeoutError or expires == math.inf:
            return False
        timeout = self.timeout(bound)
        # An error of this class that came earlier says something else.
        return timeout != math.inf and (self.environment.now() >= expires - CLOCK_SHARE * timeout)

    def why_unmade(self, bound: Bound, route: Route | None) -> str:
        """Return the end of a text about a call that was not made in time: why its node is not
        reached, or why its actor does not run; "" if neither is known.
        """
        return why_unreached(route) or self.routes.directory.why_absent(bound._address.name)

    def timeout(self, bound: Bound) -> float:
        """Seconds that a call may take by its options, or else by those of the node."""
        own = bound._options.timeout
        return own if own is not None else self.call_timeout or math.inf

    def confirm(self, call: Waiting, link: Link) -> None:
        """A repeatable call will not be made again under its number: let its peer forget it."""
        confirmations = self.confirmations.get(link.peer.identity)
        if confirmations is None:
            return
        due = confirmations.end(call.number) or call.large_answer
        if link.ended is not None:
            return
        if due:
            self._post_confirmation(link, confirmations)
        else:
            # Most often the next calls take it along.
            self._unconfirmed[link] = confirmations
            if not self._confirming:
                self._confirming = True
                self.nursery.start_soon(self._confirm_soon, name="confirmations")

    def _post_confirmation(self, link: Link, confirmations: Confirmations) -> None:
        self._unconfirmed.pop(link, None)
        link.post(forget_frame(*confirmations.take(), self.open_calls.watermark))

    async def _confirm_soon(self) -> None:
        """Confirm the calls that are followed by too few others for a message of their own."""
        await trio.sleep(CONFIRM_SECONDS)
        self._confirming = False
        for link, confirmations in list(self._unconfirmed.items()):
            # Over one that has ended meanwhile nothing is sent: the next one takes it along, or the
            # peer gives the calls up by itself.
            if link.ended is None:
                self._post_confirmation(link, confirmations)
        self._unconfirmed.clear()

    def repeatable_number(self, link: Link) -> int:
        """The number of a call that may be made again over `link`, or over what follows it to the
        same incarnation.
        """
        number, identity = self.numbers(), link.peer.identity
        confirmations = self.confirmations.get(identity)
        if confirmations is None:
            confirmations = self.confirmations[identity] = Confirmations()
        confirmations.begin(number)
        return number

    def over(self, first: int, actor: str) -> None:
        """The call whose first attempt had this number will not be made again."""
        self.open_calls.end(first)
        self._local.over(first, actor, self.open_calls.watermark)

    def budget(self, target: str, tokens: float = BUDGET_TOKENS) -> RetryBudget:
        """Return the retry budget of an actor for policies with so many `tokens`."""
        budget = self.budgets.get((target, tokens))
        if budget is None:
            budget = self.budgets[target, tokens] = RetryBudget(tokens=tokens)
            # Bounded: the oldest target starts again with a full budget.
            if len(self.budgets) > MOST_BUDGETS:
                del self.budgets[next(iter(self.budgets))]
        return budget

    def replenish(self, bound: BoundMethod[..., Any], policy: RetryPolicy) -> None:
        """A call with this policy succeeded at once. Budgets that no failure was charged to are not
        there: they are full.
        """
        if policy.max_retries and policy.budget is not None:
            budget = self.budgets.get((bound._address.name, policy.budget))
            if budget is not None:
                budget.succeeded()

    def refuse_self_call(self, task: trio.lowlevel.Task, bound: Bound) -> None:
        """Raises `SelfCallError` if the method that runs in `task` would wait for itself."""
        invocation = self._running.get(task)
        if (
            invocation is not None
            # A call that another actor's start makes from within that method is reported with the
            # whole chain.
            and task not in self._starts
            and invocation.cell.address.name == bound._address.name
            and not (
                bound._definition.concurrent
                or invocation.definition.concurrent
                or invocation.definition.reentrant
            )
        ):
            name = bound._address.name
            raise SelfCallError(
                f"{name}.{invocation.definition.name} awaited {name}.{bound._definition.name}: it "
                f"would wait for itself. Call self.{bound._definition.name}(...) instead, mark one "
                f"of the two as concurrent, or {invocation.definition.name} as reentrant",
                actor=name,
                method=bound._definition.name,
            )

    @property
    def has_methods_running(self) -> bool:
        """False if no method and no start runs on this node, so that none can make a call."""
        return bool(self._running or self._starts)

    def chain(self, task: trio.lowlevel.Task) -> Chain | None:
        """Return the methods that wait for a call made in `task`; see `ActorTurns.chain`."""
        return self._turns.chain(task)

    def chain_of(self, task: trio.lowlevel.Task, bound: Bound) -> Chain | None:
        """Like `chain`, for a call of `bound`. Raises `SelfCallError`."""
        if task in self._running:
            self.refuse_self_call(task, bound)
        return self._turns.chain(task)

    def on_peer_ended(self, peer: NodeId) -> None:
        """Note that an incarnation has ended: drop the confirmations for it."""
        self.confirmations.pop(peer, None)


def why_unreached(route: Route | None) -> str:
    """Return the end of a text about a call that has not left: why its node is not reached; "" if
    it is, or that is not known.
    """
    link = None if route is None else route.link
    if link is None or link.connected or not (why := link.undialled()):
        return ""
    return f". Node {link.peer.name} is not reached: {why}"


def addresses_of(route: Route) -> tuple[str, ...]:
    """Return the addresses of the node that a route leads to; empty for the own node."""
    return () if route.link is None else route.link.peer.addresses


def repeats_unknown(bound: BoundMethod[..., Any], policy: RetryPolicy) -> bool:
    """True if a call with this policy is made again although it may have run. Its attempts carry
    one number then, by which its peer knows them.
    """
    return policy.max_retries > 0 and (bound._definition.idempotent or policy.repeat_unknown)
