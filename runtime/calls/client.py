"""The call client: makes calls for handles. The trio shell around the tables of outgoing calls.

The short way, taken by a call without a retry policy to an actor whose place is known, costs no
task, scope or event: one encoded frame, one parked task. Everything else goes the long way
(`RetryingCall`): that finds the actor, waits while it is being restarted and makes the call again
where that is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from threading import get_ident
from typing import Any, TypeAlias, TypeVar, cast

import trio

from actors.call_context import CURRENT, CallContext
from actors.class_names import class_name
from actors.documentation import A_CALL, shown_as
from actors.errors import (
    ActorDiedError,
    ActorNotFoundError,
    CallError,
    CallTimeoutError,
    ConnectionLostError,
    DeadlineExceededError,
    DirectoryUnavailableError,
    EncodeError,
    NodeDiedError,
    NodeDrainingError,
    NodeUnreachableError,
    NotExecutedError,
    OutcomeUnknownError,
    OwnerDiedError,
    RemoteError,
    SelfCallError,
    StaleEpochError,
    WrongDoorError,
    outcome_of,
)
from actors.filters import Call
from actors.method import Bound, BoundMethod, BoundStream, Stream
from actors.options import NO_CALL_OPTIONS
from actors.peers import VerifiedPeer
from actors.reference import Reference
from actors.retry import (
    BUDGET_TOKENS,
    WAIT_FOR_ACTOR,
    GiveUp,
    Retry,
    RetryBudget,
    RetryPolicy,
    RetrySchedule,
)
from runtime.calls.actor_loads import ActorLoad
from runtime.calls.arguments import refused_in_call
from runtime.calls.call_queues import CallQueues, Occupancy, where
from runtime.calls.deadlines import Deadlines, Waiting, effective_deadline, wake
from runtime.calls.error_codec import CallPlace, described, place_of, set_attempts
from runtime.calls.local_calls import LocalCalls
from runtime.calls.pending_calls import Confirmations, OpenCalls, OutgoingRequest, PendingCall
from runtime.calls.protocol import (
    KEEP_RESULT,
    NO_ARGUMENTS,
    REPEAT,
    REPEATABLE,
    STREAM,
    TELL_DEPTH,
    TENTATIVE,
    array_head,
    as_repeat,
    call_frame,
    credit_frame,
    kept,
    send_control,
)
from runtime.calls.reply_handler import ReplyHandler, StreamCall, facts
from runtime.calls.routes import Route, Routes
from runtime.environment import Environment
from runtime.faults import Faults
from runtime.hosting.cell import Invocation
from runtime.hosting.chains import Chain
from runtime.hosting.host import ActorHost
from runtime.hosting.timeline_recorder import TimelineRecorder
from runtime.identifiers import NodeId
from runtime.links.link import Link
from runtime.links.transports import Spinner
from runtime.references.manager import ReferenceManager
from runtime.references.table import ReferenceState
from runtime.references.values import FailedValue
from runtime.statistics.call_statistics import (
    CallStatistics,
    CallTimer,
    MethodStatistics,
    reason_of,
)
from runtime.wire.codec import Codec
from runtime.wire.exceptions import annotate
from runtime.wire.frames import Buffer, Kind, Outgoing, encode_frame

# The long way of a call: finding its actor, waiting while it is being restarted, and making the
# call again where that is allowed.
#
# All attempts at one incarnation of a node carry the same number, so that there the call runs once
# however often it is sent. One that is made to another epoch of the actor, or to another node, says
# what the number of the first was: actors save states with the calls that led to them. One deadline
# spans everything. Decisions are `RetrySchedule`'s; here they are carried out.

MOVED = (StaleEpochError, ActorNotFoundError, NodeUnreachableError, NodeDrainingError)
"""Refusals of a call that perhaps only came to where its actor no longer is."""


Args: TypeAlias = tuple[object, ...]

Kwargs: TypeAlias = dict[str, object]


NO_RETRIES = RetryPolicy(max_retries=0, initial_delay=WAIT_FOR_ACTOR.initial_delay)


class Denials:
    """Denials of one call: refusals by nodes that the store names as owner but that do not have the
    actor, or not any more.
    """

    __slots__ = ("_by", "_since")

    def __init__(self) -> None:
        self._by: Occupancy | None = None
        self._since: float | None = None

    def are_worth_a_wait(
        self, route: Route | None, error: CallError, now: float, patience: float
    ) -> bool:
        """True if by this error the actor seems to be on its way to another place, or another life,
        and that has not gone on for longer than `patience`.

        That the name has no owner is final: looking it up waited while there was hope.
        """
        # Without a route the lookup itself has failed. It has waited already, so that the name has
        # no owner is final.
        if not (
            isinstance(error, MOVED)
            and (route is not None or isinstance(error, NodeUnreachableError))
        ):
            self._since = None
            return False
        by = None if route is None else where(route)
        if self._since is None or self._by != by:
            # The call may have run for long before, or have waited for a restart: another owner of
            # the name is given its time anew.
            self._by, self._since = by, now
        return now < self._since + patience


class RetryingCall:
    """One call that may take several attempts. `expires`: when its own timeout passes, on the
    node's clock. `order`: its place in the order of this node's calls, from the same counter as
    the numbers of calls.
    """

    def __init__(
        self,
        caller: CallClient,
        bound: BoundMethod[..., Any],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        expires: float,
        order: int,
        kept: _RetainedCall | None = None,
        seen: Call | None = None,
    ) -> None:
        self._seen = seen
        policy = bound._options.retry or NO_RETRIES
        self._caller = caller
        self._bound = bound
        self._args = args
        self._kwargs = kwargs
        self._kept = kept
        self._expires = expires
        self._order = order
        self._look_at = -math.inf
        """When it looks for its actor by itself again, if that was not where it was thought
        to be.
        """
        # The runtime's own calls wait for as long as it takes: they keep the peace by their
        # back-off alone.
        throttled = policy.max_retries > 0 and not bound._address.name.startswith("@")
        self._budget = (
            caller.budget(bound._address.name, policy.budget)
            if throttled and policy.budget is not None
            else None
        )
        self._repeats = policy.max_retries > 0 and (
            bound._definition.idempotent or policy.repeat_unknown
        )
        self._chain = (
            caller.chain(trio.lowlevel.current_task())
            if caller.has_methods_running and kept is None
            else None
        )
        self._context = CURRENT.get() if kept is None else kept.context
        self._call: Waiting | None = None
        self._route: Route | None = None
        self._attempted: Route | None = None
        """The route of the running attempt; None before it is made."""
        self._denied_by: Occupancy | None = None
        self._denied_for_good = True
        self._sent = False
        self._first = 0
        self._may_have_run: set[Occupancy] = set()
        """The places of attempts that may have run."""
        deadline = min(trio.current_effective_deadline(), expires)
        self._schedule = RetrySchedule(
            policy,
            idempotent=bound._definition.idempotent,
            deadline=deadline,
            now=caller.environment.now(),
        )
        self._denials = Denials()

    async def run(self, route: Route | None, missed: CallError | None) -> object:
        """Make the call until it succeeds or must be given up. `missed`: the error of an attempt
        over `route` that was made already.
        """
        try:
            if self._expires == math.inf:
                return await self._run(route, missed)
            with trio.move_on_at(self._expires):
                return await self._run(route, missed)
            # Read before `_end`, which withdraws the call and learns whether it could be recalled.
            posted, call = self._sent, self._call
            self._end()
            raise self._timed_out(ran=posted and call is not None and not call.recalled)
        finally:
            self._end()

    async def _run(self, route: Route | None, error: CallError | None) -> object:
        if error is None:
            route, error = await self._try()
        while error is not None:
            await self._before_the_next(route, error)
            # The answer of the last attempt came during the back-off: no further attempt.
            if self._answered():
                break
            route, error = await self._try()
        call = self._call
        assert call is not None
        if self._budget is not None:
            self._budget.succeeded()
        return call.value

    def _answered(self) -> bool:
        """True if the answer to an attempt given up as too slow has come after all."""
        return self._call is not None and self._call.finished and self._call.error is None

    async def _try(self) -> tuple[Route | None, CallError | None]:
        """Make one attempt. Returns its route, None if it was not sent, and its error, None if it
        succeeded.
        """
        caller, bound = self._caller, self._bound
        self._attempted = None
        try:
            caller.refuse_self_call(trio.lowlevel.current_task(), bound)
            if caller.faults is not None:
                await caller.faults.slow_down(bound._definition.name)
            limit = self._schedule.attempt_limit
            route = caller.lines.free(bound)
            if route is not None:
                self._post(route)
            else:
                denied, self._denied_by = self._denied_by, None
                await caller.lines.through(
                    bound,
                    self._order,
                    self._post,
                    not_before=self._look_at,
                    limit=limit,
                    denied=denied,
                    over=self._denied_for_good,
                )
            call = self._call
            assert call is not None
            if limit == math.inf or self._cannot_be_lost():
                await _finished(call)
                return self._attempted, call.error
            # The call stays in the table after this time: a late answer is still taken, in
            # `_before_the_next`.
            with trio.move_on_at(self._schedule.attempt_deadline):
                await _finished(call)
                return self._attempted, call.error
        except CallError as error:
            return self._attempted, error
        # Where the whole call's deadline came first, it is that which ends it.
        await trio.lowlevel.checkpoint_if_cancelled()
        route = self._attempted
        assert route is not None
        if self._taken_back(route):
            return route, NodeUnreachableError(
                f"there was no connection to node {route.address.node} within the attempt_timeout "
                f"of {limit:g} s; {self._name} did not run",
                actor=bound._address.name,
                method=bound._definition.name,
                node=route.address.node,
                epoch=route.address.epoch,
            )
        return route, CallTimeoutError(
            f"{self._name} gave no answer within its attempt_timeout of {limit:g} s",
            actor=bound._address.name,
            method=bound._definition.name,
            node=route.address.node,
            epoch=route.address.epoch,
        )

    def _cannot_be_lost(self) -> bool:
        """True for a call of the runtime to a service of its own node: neither the request nor the
        answer can be lost.

        So it is not repeated. Repeats would cost the more, the more such calls wait for the node.
        """
        return (
            self._attempted is not None
            and self._attempted.link is None
            and self._bound._address.name.startswith("@")
        )

    def _taken_back(self, route: Route) -> bool:
        """Withdraw a request that still waits for a connection; return whether that was possible.
        A large one of which a part was sent goes on.
        """
        call = self._call
        if (
            call is None
            or route.link is None
            or not isinstance(call.ticket, int)
            or not route.link.abandon(call.ticket)
        ):
            return False
        # 0 is the ticket of no frame: whatever happens to the link, this attempt did not run.
        call.ticket = 0
        return True

    def _post(self, route: Route) -> None:
        """Send an attempt over `route`. If this raises, the attempt was not made."""
        self._attempted = route
        # The time of an attempt is not that of the search before it.
        self._schedule.begin(self._caller.environment.now())
        call = self._enter(route)
        flags = (
            0
            if self._kept is None
            else KEEP_RESULT | TENTATIVE
            if self._schedule.policy.retry_on
            else KEEP_RESULT
        )
        if self._repeats and route.link is not None:
            flags |= REPEATABLE | REPEAT if self._sent else REPEATABLE
        if route.link is None and self._sent:
            # The call still runs on this node: the repeat waits for the same run.
            return
        self._sent = True
        request = OutgoingRequest(
            self._bound,
            self._args,
            self._kwargs,
            self._schedule.deadline,
            flags,
            self._chain,
            self._context,
            self._schedule.total + 1,
        )
        if self._first:
            # What this attempt says of those before it.
            request.first = self._first
            request.repeated = bool(self._may_have_run)
            request.elsewhere = bool(self._may_have_run - {where(route)})
        if self._kept is not None:
            request.state = self._kept.state_at(route)
        if self._seen is not None:
            self._seen.attempted(request.attempt, route.address.node, _addresses(route))
        self._caller.post(call, route, request)
        if self._kept is not None:
            self._kept.posted()

    def _enter(self, route: Route) -> Waiting:
        """Return the pending call for an attempt over `route`: that of the attempt before, if it
        went to the same incarnation.
        """
        before = self._route
        call = self._call
        if call is not None and before is not None:
            same = (before.address.node, before.address.incarnation) == (
                route.address.node,
                route.address.incarnation,
            )
            local_again = route.link is None and call.finished
            if (
                same
                and not local_again
                and not (call.error is not None and outcome_of(call.error) == "raised")
            ):
                call.place = route.place
                call.finished = False
                call.error = None
                self._route = route
                return call
            self._let_go()
        # A new number for another incarnation, for a new run on this node, and after the method
        # raised: under the old number the peer's record would return the same exception again.
        number = (
            self._caller.repeatable_number(route.link)
            if self._repeats and route.link is not None
            else self._caller.numbers()
        )
        if self._repeats and self._bound._address.registered and not self._may_have_run:
            # A node that knows it under another number did not run it. What has no name of its own
            # saves nothing.
            if self._first:
                self._caller.open_calls.end(self._first)
            self._first = number
            self._caller.open_calls.begin(number)
        self._call = PendingCall(number, route.place, None)
        self._route = route
        self._sent = False
        return self._call

    async def _before_the_next(self, route: Route | None, error: CallError) -> None:
        """Wait until the next attempt is due. Raises the error of the whole call if there is to be
        none.
        """
        environment = self._caller.environment
        bound = self._bound
        now = environment.now()
        if outcome_of(error) != "not executed" and route is not None:
            self._may_have_run.add(where(route))
        if outcome_of(error) == "not executed":
            # Refused, so not on record: the next attempt is as good as the first.
            self._sent = False
        # The name's owner denies it, or its node is going or gone: it is being moved, unless that
        # goes on for long.
        patience = environment.timings.denial_patience
        moving = (
            self._denials.are_worth_a_wait(route, error, now, patience)
            and bound._address.registered
        )
        died = isinstance(error, ActorDiedError) and bound._address.registered
        if (moving or died) and bound._route is route:
            # Otherwise another call has found the actor meanwhile. Of an epoch that died the same
            # would be heard again and again.
            bound._moved = True
            bound._route = None
        # However many calls are with an actor when it dies, that is one failure.
        incident = (
            where(route)
            if isinstance(error, ActorDiedError | NodeDiedError) and route is not None
            else None
        )
        outcome = outcome_of(error)
        decision = self._schedule.failed(
            outcome,
            error,
            now,
            environment.random(),
            self._budget,
            uncounted=moving,
            incident=incident,
        )
        if isinstance(error, DirectoryUnavailableError) and bound._address.name.startswith("@"):
            # The runtime's own calls have no end of retries: their caller is to learn that the
            # store had its time.
            decision = GiveUp("not repeatable")
        self._caller.count_attempt(error, decision)
        if not isinstance(decision, Retry):
            deadline = trio.current_effective_deadline()
            if isinstance(error, DeadlineExceededError) and deadline < self._expires:
                # As for a call that is made once: the caller's own deadline ends it.
                await trio.sleep_until(deadline)
                await trio.lowlevel.checkpoint()
            raise self._final(error, decision)
        call = self._call
        if moving and (call is None or call.finished):
            # It waits in line, where it keeps its place among the calls that were made before and
            # after it.
            self._look_at = decision.at
            self._denied_by = None if route is None else where(route)
            self._denied_for_good = not isinstance(error, NodeDrainingError)
            return
        if call is None or call.finished:
            await trio.sleep_until(decision.at)
        else:
            # Its last attempt was only too slow: the answer may still come.
            with trio.move_on_at(decision.at):
                await _finished(call)
        if not self._schedule.begin(environment.now()):
            raise self._final(error, GiveUp("deadline"))

    def _final(self, last: CallError, decision: GiveUp) -> CallError:
        """Return the error of the whole call. Its outcome is that of all attempts: an earlier one
        may have run although the last one was not executed.
        """
        schedule = self._schedule
        set_attempts(last, schedule.total)
        unsure = schedule.outcome == "unknown" and outcome_of(last) != "unknown"
        why = f"({decision.why}), for {schedule.explain(decision, self._budget)}"
        if isinstance(last, RemoteError):
            # It is what the method raised, down to its type, and stays that.
            if schedule.total > 1 or (
                schedule.policy.max_retries and decision.why != "not repeatable"
            ):
                annotate(
                    last, f"{schedule.total} attempts, then given up {why}:\n{schedule.history()}"
                )
            return last
        if schedule.total > 1 or unsure:
            what = (
                "may have run in one of its"
                if schedule.outcome == "unknown"
                else "was not executed in any of its"
            )
            text = (
                f"{self._name} {what} {schedule.total} attempts {why}; the last: "
                f"{last}\n{schedule.history()}"
            )
        elif schedule.policy.max_retries and (
            decision.why != "not repeatable" or schedule.outcome == "unknown"
        ):
            # A caller that asked for retries is to learn why there was none.
            text = f"{last}; it was made once and not repeated {why}"
        else:
            return last
        error = (OutcomeUnknownError if unsure else type(last))(
            text,
            actor=self._bound._address.name,
            method=self._bound._definition.name,
            node=last.node,
            epoch=last.epoch,
            attempts=schedule.total,
        )
        error.__cause__ = last
        return error

    def _timed_out(self, *, ran: bool) -> CallError:
        """The error of a call whose timeout has passed; `ran`: its last attempt may have run."""
        schedule = self._schedule
        what = (
            f"{self._name} gave no answer within its timeout of "
            f"{self._caller.timeout(self._bound):g} s"
        )
        cls: type[CallError]
        if ran or schedule.outcome == "unknown":
            cls, what = CallTimeoutError, f"{what}; it was cancelled, but may have taken effect"
        else:
            cls, what = DeadlineExceededError, f"{what}; it did not run and will not"
        error = cls(
            what,
            actor=self._bound._address.name,
            method=self._bound._definition.name,
            node=self._bound._address.node,
            epoch=self._bound._address.epoch,
            attempts=schedule.total + self._sent,
        )
        if schedule.total:
            error.add_note(schedule.history())
        return error

    def _end(self) -> None:
        """End the call: it will not be made again."""
        if self._first:
            self._caller.over(self._first, self._bound._address.name)
        self._let_go()

    def _let_go(self) -> None:
        """The call will not be made again under its number."""
        call, route = self._call, self._route
        if call is None or route is None:
            return
        self._call = None
        self._caller.withdraw(call, route)
        # Only now may the peer forget its record: until here a repeat could have arrived.
        if self._repeats and route.link is not None:
            self._caller.confirm(call, route.link)

    @property
    def _name(self) -> str:
        return f"{self._bound._address.name}.{self._bound._definition.name}"


async def _finished(call: Waiting) -> None:
    """Wait until the call is finished. If the wait is cancelled, the call goes on."""
    if call.finished:
        await trio.lowlevel.checkpoint()
        return
    # No await since the look above: an answer in between would find no task to wake.
    call.waiter = trio.lowlevel.current_task()

    def unpark(raise_cancel: object) -> trio.lowlevel.Abort:
        call.waiter = None
        return trio.lowlevel.Abort.SUCCEEDED

    await trio.lowlevel.wait_task_rescheduled(unpark)


# Calls whose results stay with their owners, at the caller: no task waits for them, and their
# outcome goes to their references.


class RetainedCalls:
    """Makes such calls for one node. Those that must be made again are made in `nursery`."""

    def __init__(
        self, caller: CallClient, references: ReferenceManager, codec: Codec, nursery: trio.Nursery
    ) -> None:
        self._caller = caller
        self._references = references
        self._codec = codec
        self._nursery = nursery

    @shown_as(A_CALL)
    async def remote(
        self, bound: BoundMethod[..., Any], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Reference[Any]:
        """Make the call and return a reference to its result, which stays on the node that ran the
        call. Raises like the call itself if it was not sent.
        """
        caller, options = self._caller, bound._options
        caller.check_thread(bound)
        await trio.lowlevel.checkpoint_if_cancelled()
        expires = (
            math.inf if options.timeout is None else caller.environment.now() + options.timeout
        )
        order = caller.numbers()
        # Read here: the queue may begin the call from another task.
        context = CURRENT.get()
        begun: list[tuple[_RetainedCall, Reference[Any]]] = []

        def begin(route: Route) -> None:
            # Called in the turn of the queue, without an await: the order of calls is that of
            # `order`.
            owner = NodeId(route.address.node, route.address.incarnation)
            state = self._references.make(owner, f"{bound._address.name}.{bound._definition.name}")
            state.is_open = True
            result = _RetainedCall(self, bound, args, kwargs, state, expires, order, context)
            if options.retry is None:
                result.post(route)
            begun.append((result, self._references.reference(state)))

        with trio.move_on_at(expires):
            if caller.faults is not None:
                await caller.faults.slow_down(bound._definition.name)
            route = caller.lines.free(bound)
            if route is not None:
                begin(route)
            else:
                await caller.lines.through(bound, order, begin)
        if not begun:
            await trio.lowlevel.checkpoint()
            raise DeadlineExceededError(
                f"{bound._address.name}.{bound._definition.name} could not be handed to its node "
                "within its timeout of "
                f"{options.timeout:g} s; it did not run and will not",
                actor=bound._address.name,
                method=bound._definition.name,
            )
        result, reference = begun[0]
        if options.retry is not None:
            await result.start_retrying()
        else:
            # Not cancellable: the call was made, and its reference must reach the caller.
            await trio.lowlevel.cancel_shielded_checkpoint()
        return reference

    # What follows is for `_RetainedCall`.

    @property
    def caller(self) -> CallClient:
        """The node's call client."""
        return self._caller

    @property
    def references(self) -> ReferenceManager:
        """The node's references."""
        return self._references

    def start(self, result: _RetainedCall, route: Route | None, error: CallError | None) -> None:
        """Make a call as often as it may be made; see `_RetainedCall.run_retrying`."""
        self._nursery.start_soon(result.run_retrying, route, error)

    def ended(
        self,
        state: ReferenceState,
        place: CallPlace,
        error: CallError | None,
        *,
        tentative: bool = False,
    ) -> None:
        """Note that the call for `state` has ended and is not repeated. `tentative`: the owner
        keeps failures open, because the call may be repeated if the method raises.
        """
        if error is None:
            self._references.on_call_ended(state, None)
        elif isinstance(error, NodeDiedError) and state.owner == place.node:
            if not state.is_settled:
                state.error = OwnerDiedError(f"{error}; its result is lost with that node")
            self._references.on_call_ended(state, None)
        else:
            # Or the owner had ended, and given the value to another node before: that one knows.
            code, plain = described(error, self._codec.size_of)
            # What a method raised may have attributes of these names itself.
            told = place_of(error) or CallPlace(
                error.actor or place.actor, "", error.node or place.node, error.epoch or place.epoch
            )
            failure = FailedValue(code, plain, told.actor, place.method, told.node, told.epoch)
            self._references.on_call_ended(
                state, failure, agreed=isinstance(error, RemoteError) and not tentative
            )


class _RetainedCall:
    """One call whose result stays at its owner."""

    def __init__(
        self,
        results: RetainedCalls,
        bound: BoundMethod[..., Any],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        state: ReferenceState,
        expires: float,
        order: int,
        context: CallContext | None,
    ) -> None:
        self.context = context
        self._results = results
        self._bound = bound
        self._args = args
        self._kwargs = kwargs
        self._state = state
        self._expires = expires
        self._order = order
        self._route: Route | None = None
        self._waiting: trio.Event | None = None
        self._load = cast("ActorLoad | None", bound._load)
        self._statistics = results.caller.statistics
        self._began = results.caller.environment.stopwatch() if self._statistics else 0.0

    def post(self, route: Route) -> None:
        """Hand the call to the owner, and return. Raises EncodeError."""
        caller = self._results.caller
        call: Waiting = PendingCall(caller.numbers(), route.place, None)
        self._route = route
        request = OutgoingRequest(
            self._bound,
            self._args,
            self._kwargs,
            self._expires,
            KEEP_RESULT if self._load is None else KEEP_RESULT | TELL_DEPTH,
            context=self.context,
            state=self._state,
        )
        caller.post(call, route, request)
        if self._load is not None:
            self._load.on_begun()
        if call.finished:
            self._ended(call)
            return
        call.ended = self._ended
        if self._expires != math.inf:
            caller.deadlines.add(self._expires, call)

    async def start_retrying(self) -> None:
        """Begin to make the call with its retry policy. Return once it was handed to the owner for
        the first time, or has failed.
        """
        self._waiting = trio.Event()
        if self._load is not None:
            self._load.on_begun()
        self._results.start(self, None, None)
        await self._waiting.wait()

    async def run_retrying(self, route: Route | None, error: CallError | None) -> None:
        """Make the call as often as it may be made. `error`: of an attempt over `route` that was
        made already.
        """
        place = CallPlace(
            self._bound._address.name, self._bound._definition.name, self._state.owner, 0
        )
        outcome: CallError | None = None
        try:
            await RetryingCall(
                self._results.caller,
                self._bound,
                self._args,
                self._kwargs,
                self._expires,
                self._order,
                self,
            ).run(route, error)
        except CallError as last:
            outcome = last
        finally:
            self.posted()
            policy = self._bound._options.retry
            self._count(outcome)
            self._results.ended(
                self._state, place, outcome, tentative=policy is not None and bool(policy.retry_on)
            )

    def state_at(self, route: Route) -> ReferenceState:
        """Return the state of its reference, whose owner is to be the node at the end of that
        route. Raises CallError if the result cannot be there.
        """
        owner = NodeId(route.address.node, route.address.incarnation)
        if owner != self._state.owner_id and self._state.is_forwarded:
            raise NotExecutedError(
                f"{route.place.actor} is on node {route.place.node} now, but other nodes "
                "expect its result on node "
                f"{self._state.owner}; call it again",
                **facts(route.place),
            )
        if not self._state.is_forwarded:
            self._results.references.redirect(self._state, owner)
        return self._state

    def posted(self) -> None:
        """Note that an attempt was made."""
        if self._waiting is not None:
            self._waiting.set()

    def _ended(self, ended: PendingCall[trio.lowlevel.Task]) -> None:
        call, route = ended, cast("Route", self._route)
        caller = self._results.caller
        call.ended = None
        if self._expires != math.inf:
            caller.deadlines.done()
        error = call.error
        if call.expired and not call.finished:
            error = caller.expired(call, route, self._bound)
        if (
            isinstance(error, MOVED)
            and self._bound._address.registered
            and not self._state.is_forwarded
        ):
            # Certainly not run, and perhaps only because the actor has moved.
            self._state.failure = None
            self._results.start(self, route, error)
        else:
            self._count(error)
            self._results.ended(self._state, route.place, error)

    def _count(self, error: CallError | None) -> None:
        """The call has ended, and is not made again."""
        if self._load is not None:
            self._load.on_ended()
        statistics, address = self._statistics, self._bound._address
        if statistics is None:
            return
        seconds = self._results.caller.environment.stopwatch() - self._began
        if error is None:
            statistics.returned(address, self._bound._definition.name, seconds)
        else:
            statistics.failed(address, self._bound._definition.name, error, seconds)


# Calls whose outcome goes to a function: what a door makes for a thread, or for a task of another
# event loop. Over the fast path they take no task of trio's.


class CallbackCall:
    """One such call, made by `CallClient.begin`. Its `ended` is called with it, once, when it is
    `over`: then `error` says how it has failed; or `again` is there, to be run by a task, because
    the call has to be made again; or `value` is its result.
    """

    __slots__ = (
        "_began",
        "_call",
        "_caller",
        "_counted",
        "_ended",
        "_expires",
        "_request",
        "_route",
        "_weight",
        "again",
        "error",
        "over",
        "value",
    )

    def __init__(
        self,
        caller: CallClient,
        route: Route,
        request: OutgoingRequest,
        expires: float,
        ended: Callable[[CallbackCall], object],
        counted: MethodStatistics | None,
    ) -> None:
        self._caller = caller
        self._route = route
        self._request = request
        self._expires = expires
        self._ended = ended
        self._counted = counted
        self._began, self._weight = 0.0, 0
        self.over = False
        self.value: object = None
        self.error: BaseException | None = None
        self.again: Callable[[], Coroutine[Any, Any, object]] | None = None
        self._call: Waiting = PendingCall(caller.numbers(), route.place, None)

    def begin(self) -> None:
        """Hand the request to the actor's node. Raises EncodeError."""
        caller, call, counted = self._caller, self._call, self._counted
        if counted is not None:
            sampler = counted.made
            left = sampler.left = sampler.left - 1
            if not left:
                self._began = caller.environment.stopwatch()
                self._weight = sampler.take(self._began)
        try:
            caller.post(call, self._route, self._request)
        except BaseException as error:
            self._count(error)
            raise
        call.ended = self._on_ended
        if self._expires != math.inf:
            caller.deadlines.add(self._expires, call)
        # The link had ended already.
        if call.finished:
            self._on_ended(call)

    def withdraw(self) -> None:
        """Give it up, and cancel it where it runs. `ended` is not called any more."""
        if not self.over:
            self._end()
            self._caller.withdraw(self._call, self._route)
            self._count(None, given_up=True)

    def _on_ended(self, call: Waiting) -> None:
        caller, bound = self._caller, cast("BoundMethod[..., Any]", self._request.bound)
        self._end()
        error: BaseException | None = call.error
        if call.expired and not call.finished:
            error = caller.expired(call, self._route, bound)
        if isinstance(error, MOVED) and bound._address.registered:
            # Certainly not run, and perhaps only because the actor has moved.
            self.again = partial(self._make_again, error)
        else:
            self.value, self.error = call.value, error
            self._count(error)
        # The heap of timeouts may keep the call for long: it must keep neither of them.
        call.value = call.error = None
        self._ended(self)

    def _end(self) -> None:
        assert not self.over, "a call ends once"
        self.over = True
        self._call.ended = None
        if self._expires != math.inf:
            self._caller.deadlines.done()

    async def _make_again(self, error: CallError) -> object:
        request, number = self._request, self._call.number
        bound = cast("BoundMethod[..., Any]", request.bound)
        rest = (self._expires, number, None, None)
        try:
            again = RetryingCall(self._caller, bound, request.args, request.kwargs, *rest)
            value = await again.run(self._route, error)
        except BaseException as last:
            self._count(last)
            raise
        self._count(None)
        return value

    def _count(self, error: BaseException | None, *, given_up: bool = False) -> None:
        counted = self._counted
        if counted is None:
            return
        if error is not None or given_up:
            counted.fail(error)
        else:
            counted.value += 1
        if self._weight:
            counted.client.add(self._caller.environment.stopwatch() - self._began, self._weight)


# Streams where they are read: the shell around a `StreamCall`.
#
# A stream finds its actor as a call does, and waits while that is being restarted; what certainly
# did not run is asked for again, until the first item has come.

T = TypeVar("T")


class StreamReader(Stream[T]):
    """The reading end of a stream. Nothing is sent before the first item is requested."""

    __slots__ = (
        "_args",
        "_began",
        "_bound",
        "_call",
        "_caller",
        "_chain",
        "_context",
        "_expires",
        "_kwargs",
        "_over",
        "_peer",
        "_reading",
        "_route",
        "_statistics",
        "_token",
    )

    def __init__(
        self,
        caller: CallClient,
        bound: BoundStream[..., T],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        context: CallContext | None = None,
        peer: VerifiedPeer | None = None,
    ) -> None:
        self._caller = caller
        self._bound = bound
        self._args = args
        self._kwargs = kwargs
        self._peer = peer
        self._expires = math.inf
        self._call: StreamCall | None = None
        """There while the stream is open."""
        self._chain: Chain | None = None
        """The chain of methods that wait for its items; None outside of methods."""
        self._context = context
        """If none is given, the context of the code that asked for the first item."""
        self._route: Route | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._over = False
        self._reading = False
        self._statistics: CallStatistics | None = None
        """Set while it is open, if it is measured."""
        self._began = 0.0

    async def __anext__(self) -> T:
        """Return the next item, and grant the producer more credit. Raises StopAsyncIteration at
        the end, and the error that ended the stream.
        """
        # Two readers would share one `waiter`, and one of them would never wake.
        if self._reading:
            raise trio.BusyResourceError(
                "another task waits for the next item of this stream; one task reads it at a time"
            )
        if self._over:
            await trio.lowlevel.checkpoint()
            raise StopAsyncIteration
        self._reading = True
        try:
            call = self._call
            if call is None:
                call = await self._open()
            elif call.items:
                await trio.lowlevel.checkpoint_if_cancelled()
            elif not call.finished:
                await self._wait(call)
            if call.items:
                return self._take(call)
            await trio.lowlevel.checkpoint_if_cancelled()
            if call.error is not None:
                raise call.error
            if call.value is not None:
                text = (
                    f"{call.place.actor}.{call.place.method} answered with one value; it is no "
                    "stream where it ran"
                )
                raise OutcomeUnknownError(text, **facts(call.place))
            raise StopAsyncIteration
        except BaseException as error:
            self._count(error)
            self._end()
            raise
        finally:
            self._reading = False

    async def aclose(self) -> None:
        """Stop the stream: the producer is cancelled. Does not wait for it. Closing twice is no
        error.
        """
        self._count(None)
        self._end()
        await trio.lowlevel.cancel_shielded_checkpoint()

    def __del__(self) -> None:
        call, token = self._call, self._token
        if call is not None and token is not None and not call.finished:
            # A collector may run this in the middle of anything, in any thread: what it does must
            # wait until the loop comes round.
            try:
                token.run_sync_soon(_abandon, self._caller, call, self._route)
            except trio.RunFinishedError:
                pass

    def _end(self) -> None:
        """End the stream: wake the task that waits for an item, and withdraw the call, so that the
        producer stops.
        """
        self._over = True
        call, self._call = self._call, None
        if call is not None:
            _abandon(self._caller, call, self._route)

    def _count(self, error: BaseException | None) -> None:
        """Count the end of the stream; None: its reader closed it early."""
        statistics, self._statistics = self._statistics, None
        if statistics is None:
            return
        seconds = self._caller.environment.stopwatch() - self._began
        address, method = self._bound._address, self._bound._definition.name
        if isinstance(error, StopAsyncIteration):
            statistics.returned(address, method, seconds)
        else:
            failure = error if isinstance(error, Exception) else None
            statistics.failed(address, method, failure, seconds)

    def _take(self, call: StreamCall) -> T:
        item: T = call.items.popleft()
        # Credit is granted for half a window at once, not for each item.
        if call.window.consume() and not call.finished:
            consumed = call.window.grant()
            route = self._route
            if route is not None and route.link is not None:
                route.link.post(credit_frame(call.number, consumed))
            elif isinstance(call.ticket, Invocation) and call.ticket.stream_output is not None:
                call.ticket.stream_output.grant(consumed)
        return item

    async def _open(self) -> StreamCall:
        """Have the generator started, and wait until it answers."""
        self._caller.check_thread(self._bound)
        self._statistics = self._caller.statistics
        if self._statistics is not None:
            self._began = self._caller.environment.stopwatch()
        self._token = trio.lowlevel.current_trio_token()
        if self._context is None:
            self._context = CURRENT.get()
        timeout = self._bound._options.timeout
        if timeout is None:
            return await self._begin()
        self._expires = self._caller.environment.now() + timeout
        with trio.move_on_at(self._expires):
            return await self._begin()
        raise self._timed_out()

    async def _begin(self) -> StreamCall:
        caller, bound = self._caller, self._bound
        # Its retries are only those of an actor that is being moved, and these are not counted.
        schedule = RetrySchedule(
            NO_RETRIES, idempotent=False, deadline=self._expires, now=caller.environment.now()
        )
        denials, order, look_at = Denials(), caller.numbers(), -math.inf
        denied: Occupancy | None = None
        patience = caller.environment.timings.denial_patience
        while True:
            try:
                call = await self._attempt(order, look_at, denied)
                if call.items or call.error is None:
                    return call
                error = call.error
            except CallError as raised:
                error = raised
            route, now = self._route, caller.environment.now()
            # After the first item nothing is repeated: the loop has been left by then.
            if self._over or not (
                denials.are_worth_a_wait(route, error, now, patience) and bound._address.registered
            ):
                raise error
            if bound._route is route:
                # Otherwise another call has found the actor meanwhile.
                bound._moved = True
                bound._route = None
            decision = schedule.failed(
                outcome_of(error), error, now, caller.environment.random(), uncounted=True
            )
            if not isinstance(decision, Retry):
                raise error
            look_at, denied = decision.at, None if route is None else where(route)
            # An attempt that fails before it waits for anything must not keep the loop.
            await trio.lowlevel.checkpoint()

    async def _attempt(self, order: int, look_at: float, denied: Occupancy | None) -> StreamCall:
        """Ask for the stream; returns when its first item is there, or its end."""
        caller, bound = self._caller, self._bound
        self._route = None
        task = trio.lowlevel.current_task()
        caller.refuse_self_call(task, bound)
        self._chain = caller.chain(task) if caller.has_methods_running else None
        if caller.faults is not None:
            await caller.faults.slow_down(bound._definition.name)
        route = caller.lines.free(bound)
        if route is not None:
            self._post(route)
        else:
            await caller.lines.through(bound, order, self._post, not_before=look_at, denied=denied)
        call = self._call
        if call is None:
            # Closed by another task while this one looked for the actor.
            assert self._route is not None
            call = StreamCall(caller.numbers(), self._route.place)
            call.finished = True
            return call
        await _arrival(call)
        return call

    def _post(self, route: Route) -> None:
        self._route = route
        if not self._over:
            call = self._call = StreamCall(self._caller.numbers(), route.place)
            request = OutgoingRequest(
                self._bound,
                self._args,
                self._kwargs,
                self._expires,
                STREAM,
                self._chain,
                self._context,
                peer=self._peer,
            )
            # On another node the call would have the rights of this one.
            assert self._peer is None or route.link is None, "calls are passed on within a node"
            self._caller.post(call, route, request)

    async def _wait(self, call: StreamCall) -> None:
        """Wait for the next item, or the end."""
        if self._expires == math.inf:
            await _arrival(call)
            return
        with trio.move_on_at(self._expires):
            await _arrival(call)
            return
        raise self._timed_out()

    def _timed_out(self) -> CallError:
        address, method = self._bound._address, self._bound._definition.name
        call, timeout = self._call, self._bound._options.timeout
        self._end()
        if call is not None and call.recalled:
            text = (
                f"{address.name}.{method} did not begin within its timeout of {timeout:g} s, "
                "and will not"
            )
            return DeadlineExceededError(text, **facts(call.place))
        return CallTimeoutError(
            f"{address.name}.{method} did not end within its timeout of {timeout:g} s; it was "
            "cancelled",
            actor=address.name,
            method=method,
            node=address.node,
            epoch=address.epoch,
            attempts=1,
        )


async def _arrival(call: StreamCall) -> None:
    """Wait until an item is there, or no more will come."""
    if call.items or call.finished:
        await trio.lowlevel.checkpoint()
        return
    # No await between the look at the items and the parking, so no wake-up is lost.
    call.waiter = trio.lowlevel.current_task()

    def unpark(raise_cancel: Any) -> trio.lowlevel.Abort:
        call.waiter = None
        return trio.lowlevel.Abort.SUCCEEDED

    await trio.lowlevel.wait_task_rescheduled(unpark)


def _addresses(route: Route) -> tuple[str, ...]:
    """Return the addresses of the node that a route leads to; empty for the own node."""
    return () if route.link is None else route.link.peer.addresses


def _abandon(caller: CallClient, call: StreamCall, route: Route | None) -> None:
    """Withdraw the call of a stream that has no reader any more, and wake a task that waits on
    it.
    """
    call.items.clear()
    if route is not None:
        caller.withdraw(call, route)
    wake(call)


R = TypeVar("R")


MOST_BUDGETS = 10_000
"""Targets whose failures are remembered; with more, those that failed first are forgiven."""


class CallClient:
    """Makes the calls of one node. `numbers` gives each call its number, unique in this incarnation
    and growing. `host` has the node's own actors, `local` makes calls to them, and results of calls
    that stay with their owners are in `table`; those that must be made again are made in `nursery`.
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
    ) -> None:
        # A call that another thread made would have its task woken from this loop, which trio
        # forbids: it would end the link, and with it the calls of others.
        self._thread = get_ident()
        self.environment = environment
        self.routes = routes
        self.lines = CallQueues(routes, environment)
        self.numbers = numbers
        self.budgets: dict[tuple[str, float], RetryBudget] = {}
        self.confirmations: dict[NodeId, Confirmations] = {}
        self.open_calls = OpenCalls()
        self._codec = codec
        self._reply_handler = reply_handler
        self.deadlines = deadlines
        self.faults = faults
        self.call_timeout = call_timeout
        """Seconds for a call that is awaited and has no timeout of its own; None for no limit. The
        runtime's own calls have others.
        """
        self.nursery = nursery
        """The nursery of tasks that belong to calls, and not to their callers."""
        self._retained = RetainedCalls(self, references, codec, nursery)
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

    def _count_failure(
        self, counted: MethodStatistics | None, timer: CallTimer | None, error: BaseException
    ) -> None:
        """Count a call that has raised `error` at its caller."""
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

    def remote(
        self, bound: BoundMethod[..., R], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Coroutine[Any, Any, Reference[R]]:
        """Make the call and keep the result with its owner. See `BoundMethod.remote`."""
        return self._retained.remote(bound, args, kwargs)

    def stream(
        self, bound: BoundStream[..., T], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Stream[T]:
        """The items of a generator method. See `BoundStream.__call__`."""
        return StreamReader(self, bound, args, kwargs)

    def stream_in(
        self,
        context: CallContext | None,
        bound: BoundStream[..., T],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> Stream[T]:
        """Like `stream`, in this call context."""
        return StreamReader(self, bound, args, kwargs, context)

    def stream_of(
        self,
        peer: VerifiedPeer | None,
        bound: BoundStream[..., T],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> Stream[T]:
        """Like `stream`, on behalf of `peer`, with whose rights the method is called: for an actor
        of this node at an address that is not looked up again.
        """
        assert not bound._address.registered, "the actor may be on another node by then"
        return StreamReader(self, bound, args, kwargs, peer=peer)

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

    def begin(
        self,
        bound: BoundMethod[..., Any],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        ended: Callable[[CallbackCall], object],
    ) -> CallbackCall | None:
        """Make a call without a task: its outcome goes to `ended`, and no deadline but its timeout
        covers it. Returns None, and has done nothing, where only a task can make it. Raises
        EncodeError.

        In the node's thread, and for no method of an actor of this node.
        """
        assert get_ident() == self._thread
        route, measured = self.routes.known(bound), self.statistics is not None
        counted: Any = bound._counted
        if (
            route is None
            or route.link is None
            or bound._options.retry is not None
            or (self.lines.all and self.lines.ahead_of(bound))
            or not route.link.has_room
            or self.faults is not None
            or self._recorder is not None
            # `_call` looks up where the calls of a method are counted.
            or (measured and (counted is None or counted.token is not self._token))
        ):
            return None
        expires = self._expiry(bound)
        flags = 0 if bound._load is None else TELL_DEPTH
        request = OutgoingRequest(bound, args, kwargs, expires, flags, context=CURRENT.get())
        counted = counted if measured else None
        made = CallbackCall(self, route, request, expires, ended, counted)
        made.begin()
        return made

    def _expiry(self, bound: Bound) -> float:
        """When a call that is made now times out, on the node's clock."""
        options = bound._options
        if options is not NO_CALL_OPTIONS and options.timeout is not None:
            return self.environment.now() + options.timeout
        if self.call_timeout is not None and not bound._address.name.startswith("@"):
            return self.environment.now() + self.call_timeout
        return math.inf

    @shown_as(A_CALL)
    async def send(
        self, bound: BoundMethod[..., R], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        """Hand a one-way call to the connection. See `BoundMethod.send`."""
        self.check_thread(bound)
        await trio.lowlevel.checkpoint_if_cancelled()
        route = self.lines.free(bound)
        context = CURRENT.get()
        if route is None:
            await self.lines.through(
                bound, self.numbers(), partial(self._send, bound, args, kwargs, context)
            )
        elif route.link is None:
            self._send(bound, args, kwargs, context, route)
        else:
            frame, segments = self._one_way(bound, args, kwargs, context, route, route.link)
            # No task waits for the answer: what bounds the memory that large ones take is room for
            # them.
            await route.link.room(sum(map(len, segments)))
            route.link.post(frame, kept(segments), lane=route.place.actor)
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

    def _send(
        self,
        bound: BoundMethod[..., Any],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        context: CallContext | None,
        route: Route,
    ) -> None:
        link = route.link
        if link is None:
            self._local.send(route.address, bound, args, kwargs, context)
        else:
            frame, segments = self._one_way(bound, args, kwargs, context, route, link)
            link.post(frame, kept(segments), lane=route.place.actor)

    def _one_way(
        self,
        bound: BoundMethod[..., Any],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        context: CallContext | None,
        route: Route,
        link: Link,
    ) -> tuple[bytes, list[Buffer]]:
        segments: list[Buffer] = Outgoing(link.peer.identity)
        arguments = self._encoded(bound, args, kwargs, segments)
        control = send_control(route.prefix, arguments, context)
        return encode_frame(Kind.SEND, control, segments), segments

    def _encoded(
        self,
        bound: Bound,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        segments: list[Buffer],
    ) -> bytes:
        """The arguments as they travel. Raises EncodeError, which names the parameter."""
        try:
            return self._codec.encode_arguments(args, kwargs, segments)
        except EncodeError as error:
            raise refused_in_call(self._codec, error, bound, args, kwargs) from error.__cause__

    @shown_as(A_CALL)
    async def _call(
        self, bound: BoundMethod[..., Any], args: Args, kwargs: Kwargs, seen: Call | None = None
    ) -> Any:
        self.check_thread(bound)
        counted: Any = None
        timer: CallTimer | None = None
        # Inline: a function of its own would cost as much again. Looked up once for many calls, but
        # the node may have begun to count anew since.
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
            expires = self._expiry(bound) if seen is None else seen.deadline
            # Everything that waits, or may be repeated, takes the slow path.
            if (
                route is None
                or options.retry is not None
                or (self.lines.all and self.lines.ahead_of(bound))
                or (route.link is not None and not route.link.has_room)
            ):
                rest = (expires, self.numbers(), None, seen)
                value = await RetryingCall(self, bound, args, kwargs, *rest).run(None, None)
            else:
                task = trio.lowlevel.current_task()
                chain = self._chain_of(task, bound) if self._running or self._starts else None
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
                    seen.attempted(1, route.address.node, _addresses(route))
                self.post(call, route, request)
                spinner = self.spinner
                if call.finished:
                    await trio.lowlevel.checkpoint()
                elif expires == math.inf and (spinner is None or spinner.current is None):
                    await trio.lowlevel.wait_task_rescheduled(partial(self._give_up, call, route))
                else:
                    await self._answered(call, route, expires, spinner)
                # The heap of timeouts may keep the call for long: it must not keep the value.
                value, call.value = call.value, None
                if call.error is not None or call.expired:
                    value = await self._failed(call, route, request, expires, deadline, seen)
        except BaseException as error:
            self._count_failure(counted, timer, error)
            raise
        if counted is not None:
            counted.value += 1
            if timer is not None:
                self._time(timer)
        return value

    async def _answered(
        self, call: Waiting, route: Route, expires: float, spinner: Spinner | None
    ) -> None:
        """Wait until a call has finished or expired: first by polling in the place of the reader of
        its link, if that spins.
        """
        link = route.link
        if expires != math.inf:
            self.deadlines.add(expires, call)
        try:
            if link is not None and spinner is not None and spinner.current is link.connection:
                # Not parked, so that nothing may reschedule it.
                task, call.waiter = call.waiter, None
                await spinner.poll(lambda: call.finished or call.expired)
                if call.finished or call.expired:
                    return
                call.waiter = task
            await trio.lowlevel.wait_task_rescheduled(partial(self._give_up, call, route))
        except BaseException:
            # Cancelled while it polled: `_give_up` does this for a task that is parked.
            self.withdraw(call, route)
            raise
        finally:
            if expires != math.inf:
                self.deadlines.done()

    async def _failed(
        self,
        call: Waiting,
        route: Route,
        request: OutgoingRequest,
        expires: float,
        deadline: float,
        seen: Call | None,
    ) -> Any:
        """Make a call again whose only attempt so far has failed, if it may be. Else raise."""
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
                # Certainly not run, and perhaps only because the actor has moved.
                args, kwargs, number = request.args, request.kwargs, call.number
                again = RetryingCall(self, bound, args, kwargs, expires, number, None, seen)
                return await again.run(route, error)
            if isinstance(error, DeadlineExceededError) and deadline < expires:
                # It is the caller's own deadline that is too near: that ends the call, as trio has
                # it.
                await trio.sleep_until(deadline)
                await trio.lowlevel.checkpoint()
            raise error
        finally:
            del error

    def _give_up(
        self, call: Waiting, route: Route, raise_cancel: Callable[[], object]
    ) -> trio.lowlevel.Abort:
        """The waiting task was cancelled, and so is the call."""
        # First: an answer that arrives from here on must not wake a task that is not parked.
        call.waiter = None
        # The task is woken at once: it does not wait until the method has stopped.
        self.withdraw(call, route)
        return trio.lowlevel.Abort.SUCCEEDED

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
            NO_ARGUMENTS
            if not args and not kwargs
            else None
            if kwargs
            else self._codec.encode_scalars(args)
        )
        if arguments is None:
            segments = Outgoing(link.peer.identity)
            arguments = self._encoded(request.bound, args, kwargs, segments)
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
                link.post(as_repeat(frame), kept(segments), lane=call.place.actor)
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
            call.recalled = link.abandon(call.ticket)
            if not call.recalled:
                link.post(
                    encode_frame(Kind.CANCEL, array_head(1, call.number)), lane=call.place.actor
                )
                # The caller gets its arrays back now, and may change them before the peer has them.
                if call.lends:
                    link.own(call.ticket)

    def expired(self, call: Waiting, route: Route, bound: BoundMethod[..., Any]) -> CallError:
        """Withdraw a call whose timeout has passed, and return the error to raise."""
        self.withdraw(call, route)
        if call.recalled:
            return DeadlineExceededError(
                f"{call.place.actor}.{call.place.method} could not be handed to node "
                f"{call.place.node} within its timeout of "
                f"{self.timeout(bound):g} s; it did not run and will not",
                **facts(call.place),
            )
        return CallTimeoutError(
            f"{call.place.actor}.{call.place.method} gave no answer within its timeout of "
            f"{self.timeout(bound):g} s; it was cancelled, but may have taken effect",
            **facts(call.place),
        )

    def timeout(self, bound: Bound) -> float:
        """Seconds that a call may take by its options, or else by those of the node."""
        own = bound._options.timeout
        return own if own is not None else self.call_timeout or math.inf

    def confirm(self, call: Waiting, link: Link) -> None:
        """A repeatable call will not be made again under its number: let its peer forget it."""
        confirmations = self.confirmations.get(link.peer.identity)
        if confirmations is not None and confirmations.end(call.number) and link.ended is None:
            watermark, beyond = confirmations.take()
            nothing: list[Buffer] = []
            everywhere = b"\x1b" + self.open_calls.watermark.to_bytes(8, "big")
            link.post(
                encode_frame(
                    Kind.FORGET,
                    array_head(3, watermark) + self._codec.encode(beyond, nothing) + everywhere,
                    nothing,
                )
            )

    def repeatable_number(self, link: Link) -> int:
        """The number of a call that may be made again over `link`, or over what follows it to the
        same incarnation.
        """
        number = self.numbers()
        self.confirmations.setdefault(link.peer.identity, Confirmations()).begin(number)
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

    def _chain_of(self, task: trio.lowlevel.Task, bound: Bound) -> Chain | None:
        """Like `chain`, for a call of `bound`. Raises `SelfCallError`."""
        self.refuse_self_call(task, bound)
        return self._turns.chain(task)

    def on_peer_ended(self, peer: NodeId) -> None:
        """Note that an incarnation has ended: drop the confirmations for it."""
        self.confirmations.pop(peer, None)
