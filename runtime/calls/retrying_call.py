"""A call that may take several attempts: it finds its actor, waits while that is being restarted,
and is made again where that is allowed.

All attempts at one incarnation of a node carry the same number, so that there the call runs once
however often it is sent. One that is made to another epoch of the actor, or to another node, says
what the number of the first was: actors save states with the calls that led to them. One deadline
spans everything. Decisions are `RetrySchedule`'s; here they are carried out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs
import trio

from actors.call_context import CURRENT, CallContext
from actors.errors import (
    ActorDiedError,
    CallError,
    CallTimeoutError,
    DeadlineExceededError,
    DirectoryUnavailableError,
    NodeDiedError,
    NodeDrainingError,
    NodeUnreachableError,
    OutcomeUnknownError,
    RemoteError,
    outcome_of,
)
from actors.filters import Call
from actors.method import BoundMethod
from actors.retry import WAIT_FOR_ACTOR, GiveUp, Retry, RetryPolicy, RetrySchedule
from runtime.calls.call_queues import Occupancy, where
from runtime.calls.call_sender import (
    MOVED,
    CallSender,
    addresses_of,
    repeats_unknown,
)
from runtime.calls.deadlines import Waiting, effective_deadline, wait_woken
from runtime.calls.error_codec import set_attempts
from runtime.calls.pending_calls import OutgoingRequest, PendingCall
from runtime.calls.protocol import KEEP_RESULT, REPEAT, REPEATABLE, TENTATIVE
from runtime.calls.routes import Route
from runtime.calls.timed_out import TimedOut
from runtime.links.transfers import QueuedFrame
from runtime.references.table import ReferenceState
from runtime.service_calls import SERVICE_ENDED
from runtime.wire.exceptions import annotate

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


@attrs.frozen
class Retention:
    """What a retrying call needs of a call whose result stays with its owner. `state_at(route)`
    gives the state of its reference, if the result can be at the end of that route; else it raises
    CallError, and `is_elsewhere()` is true from then on. `posted()` notes that an attempt was made.
    `is_lost()`: whatever a further attempt did, its result would be lost with its owner.
    """

    context: CallContext | None
    state_at: Callable[[Route], ReferenceState]
    posted: Callable[[], None]
    is_elsewhere: Callable[[], bool]
    is_lost: Callable[[], bool]


class RetryingCall:
    """One call that may take several attempts. `expires`: when its own timeout passes, on the
    node's clock. `order`: its place in the order of this node's calls, from the same counter as
    the numbers of calls.
    """

    def __init__(
        self,
        caller: CallSender,
        bound: BoundMethod[..., Any],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        expires: float,
        order: int,
        kept: Retention | None = None,
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
        self._repeats = repeats_unknown(bound, policy)
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
        self._judged = False
        """True if the schedule knows the error with which `_call` has finished."""
        self._late = False
        """True if the next error that the schedule is given is the answer to an attempt of which it
        knows that there was none in its time.
        """
        self._first = 0
        self._may_have_run: set[Occupancy] = set()
        """The places of attempts that may have run."""
        deadline = min(effective_deadline(trio.lowlevel.current_task()), expires)
        self._schedule = RetrySchedule(
            policy,
            idempotent=bound._definition.idempotent,
            deadline=deadline,
            now=caller.environment.now(),
        )
        self._denials = Denials()

    def adopt(self, call: Waiting, route: Route, first: int, started: float) -> None:
        """Take over the first attempt, which was made at `started` and has failed, or has had no
        answer for as long as an attempt may take. `first`: its number, if it is entered among the
        open calls; else 0.
        """
        assert call.waiter is None, "no other task waits for it"
        assert not call.timed, "no entry of its timeout is left"
        call.expired = False
        self._call, self._route, self._attempted = call, route, route
        self._first, self._sent = first, True
        self._schedule.begin(started)

    def failed_attempt(self) -> tuple[Route, CallError]:
        """Return the route and the error of the attempt that was adopted."""
        call, route = self._call, self._route
        assert call is not None
        assert route is not None
        if not call.finished:
            return route, self._unanswered(route)
        error = call.error
        assert error is not None
        return route, error

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
            posted, call, route = self._sent, self._call, self._route
            self._end()
            ran = posted and call is not None and not call.recalled
            raise self._timed_out(ran=ran, why=self._caller.why_unmade(self._bound, route))
        finally:
            # No circles with this frame and this object, which the traceback of the error has: the
            # arguments would stay until the cyclic garbage collector runs.
            missed = None
            self._schedule.attempts.clear()
            self._end()

    async def _run(self, route: Route | None, error: CallError | None) -> object:
        try:
            if error is None:
                route, error = await self._try()
            while error is not None:
                if self._kept is not None and self._kept.is_lost():
                    # The policy has no say: there is nothing to repeat it for.
                    self._caller.count_attempt(error, GiveUp("not repeatable"))
                    raise error
                await self._before_the_next(route, error)
                if self._is_answered:
                    # The answer to the last attempt came during the back-off: no further attempt.
                    # What the method has raised is judged as if it had come in its time.
                    call = self._call
                    assert call is not None
                    error, self._late = call.error, call.error is not None
                    continue
                route, error = await self._try()
        finally:
            # As in `run`.
            del error
        call = self._call
        assert call is not None
        if self._budget is not None:
            self._budget.succeeded()
        return call.value

    @property
    def _is_answered(self) -> bool:
        """True if the answer to an attempt given up as too slow has come after all: what the method
        has returned or raised. Another attempt would run it once more. Or, of a service, that its
        node has left: another attempt would say less.
        """
        call = self._call
        return (
            call is not None
            and call.finished
            and not self._judged
            and (
                call.error is None
                or outcome_of(call.error) == "raised"
                or (self._is_service and isinstance(call.error, SERVICE_ENDED))
            )
        )

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
            if limit == math.inf or call.finished or self._cannot_be_lost():
                await _finished(call)
                call.raise_unsent()
                return self._attempted, call.error
            # The call stays in the table after this time: a late answer is still taken, in
            # `_before_the_next`.
            with trio.move_on_at(self._schedule.attempt_deadline):
                await _finished(call)
                call.raise_unsent()
                return self._attempted, call.error
        except CallError as error:
            return self._attempted, error
        # Where the whole call's deadline came first, it is that which ends it.
        await trio.lowlevel.checkpoint_if_cancelled()
        route = self._attempted
        assert route is not None
        return route, self._unanswered(route)

    def _unanswered(self, route: Route) -> CallError:
        """Return the error of an attempt that got no answer in its time; take its request back if
        that still waits for a connection.
        """
        address, method = self._bound._address, self._bound._definition.name
        cls: type[CallError] = CallTimeoutError
        limit = f"attempt_timeout of {self._schedule.attempt_limit:g} s"
        what = f"{self._name} gave no answer within its {limit}"
        if self._taken_back(route):
            cls = NodeUnreachableError
            reached = route.link is not None and route.link.connected
            lacks = "no room on the" if reached else "no"
            what = (
                f"there was {lacks} connection to node {route.address.node} within the {limit}; "
                f"{self._name} did not run"
            )
        return cls(
            what,
            actor=address.name,
            method=method,
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
            or isinstance(call.ticket, QueuedFrame)
            or not route.link.abandon(call.ticket)
        ):
            return False
        # 0 is the ticket of no frame: whatever happens to the link, this attempt did not run.
        call.ticket = 0
        # One before it may be on record, and run.
        self._sent = call.left
        return True

    def _post(self, route: Route) -> None:
        """Send an attempt over `route`. If this raises, the attempt was not made."""
        self._attempted = route
        if self._is_answered:
            # While this attempt waited in line.
            call = self._call
            assert call is not None
            self._late = call.error is not None
            return
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
        # This may raise.
        state = None if self._kept is None else self._kept.state_at(route)
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
        request.state = state
        if self._seen is not None:
            self._seen.attempted(request.attempt, route.address.node, addresses_of(route))
        self._caller.post_in_turn(call, route, request)
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
                if call.lends and before.link is not None and before.link.ended is None:
                    # From here on the call knows only the frame of the next attempt.
                    before.link.own(call.ticket)
                    call.lends = False
                call.place = route.place
                call.left = self._sent
                call.finished = self._judged = False
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
        self._sent = self._judged = False
        return self._call

    async def _before_the_next(self, route: Route | None, error: CallError) -> None:
        """Wait until the next attempt is due. Raises the error of the whole call if there is to be
        none.
        """
        environment = self._caller.environment
        now = environment.now()
        answered = self._call
        self._judged = answered is not None and answered.finished and answered.error is error
        late, self._late = self._late, False
        if outcome_of(error) != "not executed" and route is not None:
            self._may_have_run.add(where(route))
        if outcome_of(error) == "not executed" and self._judged:
            # Refused, so not on record: the next attempt is as good as the first. Of one that was
            # not sent nothing follows for those before it.
            self._sent = False
        moving = self._is_moving(route, error, now)
        # However many calls are with an actor when it dies, that is one failure.
        incident: Occupancy | None = None
        if isinstance(error, ActorDiedError | NodeDiedError) and route is not None:
            incident = where(route)
        outcome = outcome_of(error)
        decision = self._schedule.failed(
            outcome,
            error,
            now,
            environment.random(),
            self._budget,
            uncounted=moving,
            late=late,
            incident=incident,
        )
        if self._is_final(error):
            decision = GiveUp("not repeatable")
        self._caller.count_attempt(error, decision)
        if not isinstance(decision, Retry):
            # It waited for its actor, which may well be there soon: what ends it is its time, as
            # when that passes during the wait. The refusal alone would say that there is no actor.
            waited = moving and decision.why == "deadline"
            deadline = trio.current_effective_deadline()
            if decision.why == "deadline" and self._is_service and await self._has_late_answer():
                return
            if deadline < self._expires and (waited or self._is_too_late(error)):
                # As for a call that is made once: the caller's own deadline ends it.
                await trio.sleep_until(deadline)
                await trio.lowlevel.checkpoint()
            try:
                why = self._caller.why_unmade(self._bound, route)
                if waited:
                    raise self._timed_out(ran=False, why=why)
                if self._caller.is_timed_out(error, self._bound, self._expires):
                    # As when this node notices it first; see `run`.
                    raise self._timed_out(ran=True)
                raise self._final(error, decision)
            finally:
                # No circle with this frame, which the traceback has; see `CallSender._failed`.
                del error
        call = self._call
        if moving and (call is None or call.finished):
            # It waits in line, where it keeps its place among the calls that were made before and
            # after it.
            self._look_at = decision.at
            self._denied_by = None if route is None else where(route)
            self._denied_for_good = not isinstance(error, NodeDrainingError)
            return
        await self._back_off(decision.at)
        if not self._is_answered and not self._schedule.begin(environment.now()):
            try:
                raise self._final(error, GiveUp("deadline"))
            finally:
                del error

    def _is_final(self, error: CallError) -> bool:
        """True if a repeat would end in the same way, whatever the policy allows."""
        if self._is_service:
            # The runtime's own calls have no end of retries: their caller is to learn that the
            # store had its time.
            return isinstance(error, (DirectoryUnavailableError, *SERVICE_ENDED))
        return self._kept is not None and self._kept.is_elsewhere()

    async def _back_off(self, until: float) -> None:
        """Wait for the next attempt, or for the answer to the last one, which was only too slow."""
        call = self._call
        if call is None or call.finished:
            await trio.sleep_until(until)
        else:
            with trio.move_on_at(until):
                await _finished(call)

    def _is_moving(self, route: Route | None, error: CallError, now: float) -> bool:
        """Return True if the owner of the name denies it, or its node is going or gone: the actor
        is being moved, unless that goes on for long. Forgets a route that leads to it no more.
        """
        bound, patience = self._bound, self._caller.environment.timings.denial_patience
        registered = bound._address.registered
        moving = registered and self._denials.are_worth_a_wait(route, error, now, patience)
        died = registered and isinstance(error, ActorDiedError)
        if (moving or died) and bound._route is route:
            # Otherwise another call has found the actor meanwhile. Of an epoch that died the same
            # would be heard again and again.
            bound._moved = True
            bound._route = None
        return moving

    @property
    def _is_service(self) -> bool:
        """True for a call of the runtime's own."""
        return self._bound._address.name.startswith("@")

    async def _has_late_answer(self) -> bool:
        """Wait for the answer to the last attempt at a call of the runtime's own, for which no time
        is left to repeat it: users know nothing of such attempts, and must not get an error about
        them before their own deadline. False if there is nothing to wait for.
        """
        call = self._call
        if call is None or call.finished:
            await trio.lowlevel.checkpoint()
            return False
        with trio.move_on_at(self._schedule.deadline):
            await _finished(call)
            return self._schedule.begin(self._caller.environment.now())
        # The deadline of the caller raises here, unless its scope has got another one meanwhile.
        await trio.lowlevel.checkpoint()
        return False

    def _is_too_late(self, error: CallError) -> bool:
        """Return True if the node of the actor has ended the call at its deadline. An attempt that
        had no answer in its own time has a CallTimeoutError of this node.
        """
        if isinstance(error, DeadlineExceededError):
            return True
        answered = self._call is not None and self._call.error is error
        return answered and isinstance(error, CallTimeoutError)

    def _final(self, last: CallError, decision: GiveUp) -> CallError:
        """Return the error of the whole call. Its outcome is that of all attempts: an earlier one
        may have run although the last one was not executed.
        """
        schedule = self._schedule
        set_attempts(last, schedule.total)
        unsure = schedule.outcome == "unknown" and outcome_of(last) != "unknown"
        why = f"({decision.why}), because {schedule.explain(decision, self._budget)}"
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
            if not schedule.policy.max_retries and schedule.outcome == "not executed":
                # Its caller asked for no repeats, and has made one attempt: the others found out
                # where the actor is now.
                text = f"{self._name} was not executed: {last}\n{schedule.history()}"
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
        # Its own frames are those of the runtime's tasks, and say nothing.
        error.__cause__ = last.with_traceback(None)
        return error

    def _timed_out(self, *, ran: bool, why: str = "") -> CallError:
        """The error of a call whose timeout has passed; `ran`: its last attempt may have run;
        `why`: why its node was not reached, or its actor does not run.
        """
        schedule = self._schedule
        may_have_run = ran or schedule.outcome == "unknown"
        facts = TimedOut(self._name, self._caller.timeout(self._bound), may_have_run, why=why)
        error = facts.error(
            actor=self._bound._address.name,
            method=self._bound._definition.name,
            node=self._bound._address.node,
            epoch=self._bound._address.epoch,
            attempts=schedule.total + self._sent,
        )
        if schedule.attempts:
            error.add_note(schedule.history())
            error.__cause__ = schedule.attempts[-1].error
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
    await wait_woken(call)
