"""Streams where they are read: the shell around a `StreamCall`.

A stream finds its actor as a call does, and waits while that is being restarted; what certainly
did not run is asked for again, until the first item has come.
"""

from __future__ import annotations

import math
from typing import NoReturn, TypeVar

import trio

from actors.call_context import CURRENT, CallContext
from actors.errors import (
    CallError,
    CallTimeoutError,
    DeadlineExceededError,
    OutcomeUnknownError,
    outcome_of,
)
from actors.method import BoundStream, Stream
from actors.peers import VerifiedPeer
from actors.retry import Retry, RetrySchedule
from runtime.calls.call_queues import Occupancy, where
from runtime.calls.call_sender import CallSender
from runtime.calls.deadlines import wait_woken, wake
from runtime.calls.pending_calls import OutgoingRequest
from runtime.calls.protocol import STREAM, credit_frame
from runtime.calls.reply_handler import StreamCall, facts
from runtime.calls.retrying_call import NO_RETRIES, Denials
from runtime.calls.routes import Route
from runtime.hosting.cell import Invocation
from runtime.hosting.chains import Chain
from runtime.statistics.call_statistics import CallStatistics

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
        caller: CallSender,
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
                _raise_error(call)
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
        # A checkpoint as of every async function, but not cancellable: the stream is closed
        # already.
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
        while True:  # noqa: ASYNC913  each attempt waits, or the checkpoint does
            try:
                call = await self._attempt(order, look_at, denied)
                if call.items or call.error is None:
                    return call
                error, call.error = call.error, None
            except CallError as raised:
                error = raised
            route, now = self._route, caller.environment.now()
            # After the first item nothing is repeated: the loop has been left by then.
            if self._over or not (
                denials.are_worth_a_wait(route, error, now, patience) and bound._address.registered
            ):
                try:
                    raise error
                finally:
                    # No circle with this frame, which the traceback has.
                    del error, schedule
            if bound._route is route:
                # Otherwise another call has found the actor meanwhile.
                bound._moved = True
                bound._route = None
            decision = schedule.failed(
                outcome_of(error), error, now, caller.environment.random(), uncounted=True
            )
            if not isinstance(decision, Retry):
                # Its actor may be there soon: what ends it is its timeout, not the refusal.
                assert decision.why == "deadline"
                self._call = None
                try:
                    raise self._timed_out() from error
                finally:
                    # No circle with this frame, which the traceback has.
                    del error, schedule
            look_at, denied = decision.at, None if route is None else where(route)
            if self._call is None:
                # An attempt that fails before it waits for anything must not keep the loop. One
                # that was refused joins the queue in this pass: calls made later wait for no more.
                await trio.lowlevel.checkpoint()

    async def _attempt(self, order: int, look_at: float, denied: Occupancy | None) -> StreamCall:
        """Ask for the stream; returns when its first item is there, or its end."""
        caller, bound = self._caller, self._bound
        self._route = self._call = None
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
            self._caller.post_in_turn(call, route, request)

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
        # Without a call it waits for its actor, which has refused each attempt so far; but another
        # task may just have closed it.
        waits = call is None and not self._over
        self._end()
        cls: type[CallError] = CallTimeoutError
        text = f"did not end within its timeout of {timeout:g} s; it was cancelled"
        if waits or (call is not None and call.recalled):
            cls = DeadlineExceededError
            why = self._caller.why_unmade(self._bound, None)
            text = f"did not begin within its timeout of {timeout:g} s, and will not{why}"
        return cls(
            f"{address.name}.{method} {text}",
            actor=address.name,
            method=method,
            node=address.node if call is None else call.place.node,
            epoch=address.epoch if call is None else call.place.epoch,
            attempts=1,
        )


def _raise_error(call: StreamCall) -> NoReturn:
    """Raise the error of a call, which must not keep it: it is in the frames of the traceback."""
    error, call.error = call.error, None
    assert error is not None
    try:
        raise error
    finally:
        del error


async def _arrival(call: StreamCall) -> None:
    """Wait until an item is there, or no more will come."""
    if call.items or call.finished:
        await trio.lowlevel.checkpoint()
        return
    await wait_woken(call)


def _abandon(caller: CallSender, call: StreamCall, route: Route | None) -> None:
    """Withdraw the call of a stream that has no reader any more, and wake a task that waits on
    it.
    """
    call.items.clear()
    if route is not None:
        caller.withdraw(call, route)
    wake(call)
