"""A call whose outcome goes to a function: what a door makes for a thread, or for a task of another
event loop. Over the fast path it takes no task of trio's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, cast

from actors.errors import CallError
from actors.method import BoundMethod
from runtime.calls.call_sender import MOVED, CallSender
from runtime.calls.deadlines import Waiting
from runtime.calls.pending_calls import OutgoingRequest, PendingCall
from runtime.calls.retrying_call import RetryingCall
from runtime.calls.routes import Route
from runtime.statistics.call_statistics import MethodStatistics


class CallbackCall:
    """One such call, made by `CallSender.begin`. Its `ended` is called with it, once, when it is
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
        caller: CallSender,
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
            caller.post_in_turn(call, self._route, self._request)
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
        elif error is not None and caller.is_timed_out(error, bound, self._expires):
            error = caller.timed_out(call, bound)
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
            self._caller.deadlines.done(self._call)

    async def _make_again(self, error: CallError) -> object:
        request, number = self._request, self._call.number
        bound = cast("BoundMethod[..., Any]", request.bound)
        try:
            again = RetryingCall(
                self._caller, bound, request.args, request.kwargs, self._expires, number
            )
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
