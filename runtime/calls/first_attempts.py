"""The first attempt of a call with a retry policy.

Nearly all such calls succeed at once. So this costs little more than a call without a policy: one
number that identifies the call over all its attempts, and one entry in a heap if attempts have a
time limit. What decides whether the call is made again (`RetryingCall`) is made only when the first
attempt has failed, or has got no answer in its time. It goes on with the same pending call, so that
the answer to the first attempt may still come.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from actors.call_context import CURRENT
from actors.filters import Call
from actors.method import BoundMethod
from runtime.calls.call_sender import CallSender, addresses_of, repeats_unknown
from runtime.calls.deadlines import Waiting, effective_deadline
from runtime.calls.pending_calls import OutgoingRequest, PendingCall
from runtime.calls.protocol import REPEATABLE, TELL_DEPTH
from runtime.calls.retrying_call import RetryingCall
from runtime.calls.routes import Route

if TYPE_CHECKING:
    from runtime.statistics.call_statistics import CallTimer, MethodStatistics


@trio.lowlevel.enable_ki_protection
async def make_first_attempt(
    caller: CallSender,
    /,
    bound: BoundMethod[..., Any],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    expires: float,
    seen: Call | None,
    route: Route,
    counted: MethodStatistics | None,
    timer: CallTimer | None,
) -> Any:
    """Make a call with a retry policy over `route`, and make it again as the policy says."""
    policy, environment = bound._options.retry, caller.environment
    task = trio.lowlevel.current_task()
    assert policy is not None
    chain = caller.chain_of(task, bound) if caller.has_methods_running else None
    deadline, started = effective_deadline(task), environment.now()
    # A deadline that has passed ends the call before anything is sent.
    if deadline <= started:
        await trio.lowlevel.checkpoint()
    if caller.faults is not None:
        await caller.faults.slow_down(bound._definition.name)
        started = environment.now()
    attempt_ends = expires
    if policy.attempt_timeout is not None:
        attempt_ends = _attempt_ends(policy.attempt_timeout, bound, route, started, expires)
    repeats = repeats_unknown(bound, policy)
    soon = expires if expires < deadline else deadline
    flags = 0 if bound._load is None or repeats else TELL_DEPTH
    request = OutgoingRequest(bound, args, kwargs, soon, flags, chain, CURRENT.get())
    request.counted, request.timer = counted is not None, timer
    # No await from here to the wait for the answer: numbers are entered as they grow, and whatever
    # ends the call finds it entered.
    call = _entered(caller, route, request, task, repeats=repeats)
    again: RetryingCall | None = None
    try:
        if seen is not None:
            seen.attempted(1, route.address.node, addresses_of(route))
        caller.post_in_turn(call, route, request)
        spinner = caller.spinner
        if call.finished:
            # It was refused at once: this task is not parked on it.
            call.waiter = None
            await trio.lowlevel.checkpoint()
        elif attempt_ends == math.inf and (spinner is None or spinner.current is None):
            await trio.lowlevel.wait_task_rescheduled(partial(caller.give_up, call, route))
        else:
            await caller.answered(call, route, attempt_ends, spinner)
        if call.expired and attempt_ends == expires:
            # The answer and the timeout may come in the same pass: the first of the two decides.
            raise caller.expired(call, route, bound)
        if call.finished and call.error is None:
            value, call.value = call.value, None
            # Budgets that no failure was charged to are not there.
            if caller.budgets:
                caller.replenish(bound, policy)
            return value
        call.raise_unsent()
        # It ends the call from here on.
        again = RetryingCall(caller, bound, args, kwargs, expires, call.number, seen=seen)
        again.adopt(call, route, request.first, started)
    finally:
        if again is None:
            _end(caller, call, route, request)
    # What it raises has this frame in its traceback, which must not lead to the error again.
    del call
    assert again is not None
    return await again.run(*again.failed_attempt())


def _attempt_ends(
    seconds: float, bound: BoundMethod[..., Any], route: Route, started: float, expires: float
) -> float:
    """When an attempt of so many `seconds` has had its time; at `expires` the whole call has."""
    # A call of the runtime to a service of its own node cannot be lost; see `RetryingCall`.
    if route.link is None and bound._address.name.startswith("@"):
        return expires
    return min(expires, started + seconds)


def _entered(
    caller: CallSender,
    route: Route,
    request: OutgoingRequest,
    task: trio.lowlevel.Task,
    *,
    repeats: bool,
) -> Waiting:
    """Return the pending call. `repeats`: it may be made again although it may have run, so all its
    attempts carry the number that is noted here as open.
    """
    link = route.link
    if not repeats:
        return PendingCall(caller.numbers(), route.place, task)
    if link is None:
        number = caller.numbers()
    else:
        number = caller.repeatable_number(link)
        request.flags |= REPEATABLE
    # What has no name of its own saves nothing.
    if request.bound._address.registered:
        request.first = number
        caller.open_calls.begin(number)
    return PendingCall(number, route.place, task)


def _end(caller: CallSender, call: Waiting, route: Route, request: OutgoingRequest) -> None:
    """The call is over, and will not be made again under its number."""
    if request.first:
        caller.over(request.first, request.bound._address.name)
    if not call.finished:
        caller.withdraw(call, route)
    # Only now may the peer forget its record: until here a repeat could have arrived.
    if request.flags & REPEATABLE and route.link is not None:
        caller.confirm(call, route.link)
