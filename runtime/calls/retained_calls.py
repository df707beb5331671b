"""Calls whose results stay with their owners, at the caller: no task waits for them, and their
outcome goes to their references.
"""

from __future__ import annotations

import math
from typing import Any, cast

import trio

from actors.call_context import CURRENT, CallContext
from actors.documentation import A_CALL, shown_as
from actors.errors import (
    CallError,
    NodeDiedError,
    NotExecutedError,
    OwnerDiedError,
    RemoteError,
)
from actors.method import BoundMethod
from actors.reference import Reference
from runtime.calls.actor_loads import ActorLoad
from runtime.calls.call_sender import MOVED, CallSender
from runtime.calls.deadlines import Waiting
from runtime.calls.error_codec import CallPlace, described, place_of
from runtime.calls.pending_calls import OutgoingRequest, PendingCall
from runtime.calls.protocol import KEEP_RESULT, TELL_DEPTH
from runtime.calls.reply_handler import facts
from runtime.calls.retrying_call import Retention, RetryingCall
from runtime.calls.routes import Route
from runtime.calls.timed_out import TimedOut
from runtime.references.table import ReferenceState
from runtime.references.values import FailedValue


@shown_as(A_CALL)
async def call_retained(
    caller: CallSender,
    bound: BoundMethod[..., Any],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> Reference[Any]:
    """Make a call and return a reference to its result, which stays on the node that ran the call.
    Raises like the call itself if it was not sent.
    """
    options = bound._options
    caller.check_thread(bound)
    await trio.lowlevel.checkpoint_if_cancelled()
    expires = math.inf if options.timeout is None else caller.environment.now() + options.timeout
    order = caller.numbers()
    # Read here: the queue may begin the call from another task.
    context = CURRENT.get()
    begun: list[tuple[RetainedCall, Reference[Any]]] = []

    def begin(route: Route) -> None:
        # Called in the turn of the queue, without an await: the order of calls is that of
        # `order`.
        owner = route.address.node_id
        state = caller.references.make(owner, f"{bound._address.name}.{bound._definition.name}")
        state.is_open = True
        result = RetainedCall(caller, bound, args, kwargs, state, expires, order, context)
        if options.retry is None:
            result.post(route)
        begun.append((result, caller.references.reference(state)))

    with trio.move_on_at(expires):
        if caller.faults is not None:
            await caller.faults.slow_down(bound._definition.name)
        await caller.lines.in_turn(bound, order, begin)
    if not begun:
        await trio.lowlevel.checkpoint()
        assert options.timeout is not None, "without one it waits on"
        name = f"{bound._address.name}.{bound._definition.name}"
        late = TimedOut(name, options.timeout, False, "could not be handed to its node")
        raise late.error(actor=bound._address.name, method=bound._definition.name)
    result, reference = begun[0]
    if options.retry is not None:
        await result.start_retrying()
    else:
        # Not cancellable: the call was made, and its reference must reach the caller.
        await trio.lowlevel.cancel_shielded_checkpoint()
    return reference


class RetainedCall:
    """One call whose result stays at its owner."""

    def __init__(
        self,
        caller: CallSender,
        bound: BoundMethod[..., Any],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        state: ReferenceState,
        expires: float,
        order: int,
        context: CallContext | None,
    ) -> None:
        self._context = context
        self._caller = caller
        self._bound = bound
        self._args = args
        self._kwargs = kwargs
        self._state = state
        self._expires = expires
        self._order = order
        self._route: Route | None = None
        self._waiting: trio.Event | None = None
        self._is_elsewhere = False
        """True once an attempt was refused by `_state_at`: the call is not made again."""
        self._load = cast("ActorLoad | None", bound._load)
        self._statistics = caller.statistics
        self._began = caller.environment.stopwatch() if self._statistics else 0.0

    def post(self, route: Route) -> None:
        """Hand the call to the owner, and return. Raises EncodeError."""
        caller = self._caller
        call: Waiting = PendingCall(caller.numbers(), route.place, None)
        self._route = route
        request = OutgoingRequest(
            self._bound,
            self._args,
            self._kwargs,
            self._expires,
            KEEP_RESULT if self._load is None else KEEP_RESULT | TELL_DEPTH,
            context=self._context,
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
        self._caller.nursery.start_soon(self.run_retrying, None, None)
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
                self._caller,
                self._bound,
                self._args,
                self._kwargs,
                self._expires,
                self._order,
                kept=Retention(
                    self._context,
                    self._state_at,
                    self._posted,
                    lambda: self._is_elsewhere,
                    self._is_lost,
                ),
            ).run(route, error)
        except CallError as last:
            outcome = last
        finally:
            self._posted()
            policy = self._bound._options.retry
            self._count(outcome)
            self._settle(place, outcome, tentative=policy is not None and bool(policy.retry_on))
            # No circle with this frame, which the traceback has.
            outcome = None

    def _state_at(self, route: Route) -> ReferenceState:
        """Return the state of its reference, whose owner is to be the node at the end of that
        route. Raises CallError if the result cannot be there.
        """
        owner = route.address.node_id
        if owner != self._state.owner_id and self._state.is_forwarded:
            self._is_elsewhere = True
            raise NotExecutedError(
                f"{route.place.actor} is on node {route.place.node} now, but other nodes "
                "expect its result on node "
                f"{self._state.owner}; call it again",
                **facts(route.place),
            )
        if not self._state.is_forwarded:
            self._caller.references.redirect(self._state, owner)
        return self._state

    def _is_lost(self) -> bool:
        """True if other nodes look for the result at a node that has ended: they have learned that
        it is lost, and no attempt elsewhere can change that.
        """
        state = self._state
        return state.is_forwarded and self._caller.references.has_ended(state.owner_id)

    def _posted(self) -> None:
        """Note that an attempt was made."""
        if self._waiting is not None:
            self._waiting.set()

    def _ended(self, ended: PendingCall[trio.lowlevel.Task]) -> None:
        call, route = ended, cast("Route", self._route)
        assert call.finished or call.expired, "a call ends by its answer or its timeout"
        caller = self._caller
        call.ended = None
        if self._expires != math.inf:
            caller.deadlines.done(call)
        error = call.error
        if call.expired and not call.finished:
            error = caller.expired(call, route, self._bound)
        elif error is not None and caller.is_timed_out(error, self._bound, self._expires):
            error = caller.timed_out(call, self._bound)
        if (
            isinstance(error, MOVED)
            and self._bound._address.registered
            and not self._state.is_forwarded
        ):
            # Certainly not run, and perhaps only because the actor has moved.
            self._state.failure = None
            caller.nursery.start_soon(self.run_retrying, route, error)
        else:
            self._count(error)
            self._settle(route.place, error)

    def _settle(
        self, place: CallPlace, error: CallError | None, *, tentative: bool = False
    ) -> None:
        """Give the outcome to the reference: the call is not repeated. `tentative`: the owner keeps
        failures open, because the call may be repeated if the method raises.
        """
        references, state = self._caller.references, self._state
        agreed = isinstance(error, RemoteError) and not tentative
        # For the node of the last attempt, the table of references may learn of its end only after
        # this.
        if error is None:
            references.on_call_ended(state, None)
        elif (isinstance(error, NodeDiedError) and state.owner == (error.node or place.node)) or (
            self._is_lost() and not agreed
        ):
            if not state.is_settled:
                state.error = OwnerDiedError(f"{error}; its result is lost with that node")
            references.on_call_ended(state, None)
        else:
            # Or the owner had ended, and given the value to another node before: that one knows.
            code, plain = described(error, self._caller.codec.size_of)
            # What a method raised may have attributes of these names itself.
            ran_at = place_of(error) or CallPlace(
                error.actor or place.actor, "", error.node or place.node, error.epoch or place.epoch
            )
            failure = FailedValue(
                code, plain, ran_at.actor, place.method, ran_at.node, ran_at.epoch
            )
            references.on_call_ended(state, failure, agreed=agreed)

    def _count(self, error: CallError | None) -> None:
        """The call has ended, and is not made again."""
        if self._load is not None:
            self._load.on_ended()
        statistics, address = self._statistics, self._bound._address
        if statistics is None:
            return
        seconds = self._caller.environment.stopwatch() - self._began
        if error is None:
            statistics.returned(address, self._bound._definition.name, seconds)
        else:
            statistics.failed(address, self._bound._definition.name, error, seconds)
