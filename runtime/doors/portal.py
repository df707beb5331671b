"""A portal, through which threads without trio run functions in the trio run of another thread.

A request is one such function. Its outcome comes back in the trio thread, by `ended`, and it can be
cancelled from any thread; a call that is cancelled so is cancelled where it runs.
"""

from __future__ import annotations

import sys
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future
from contextvars import Context, copy_context
from functools import partial
from typing import Generic, TypeVar, cast

import attrs
import trio

from actors.errors import NotAMemberError, NotExecutedError, OutcomeUnknownError
from actors.method import BoundMethod, Caller
from runtime.calls.callback_call import CallbackCall
from runtime.calls.client import CallClient
from runtime.doors.futures import LoopFuture
from runtime.doors.handoff import Handoff
from runtime.environment import unwrap
from runtime.user_errors import is_cancellation

T = TypeVar("T")

CONNECT_AGAIN = "connect again"
"""What to do when a connection is of no use any more."""


MOST_IN_ONE_TASK = 32
"""Requests that follow each other in one task. Then comes a new one, because requests that wait for
nothing would leave the other tasks of the loop no turn.
"""


async def next_of(items: AsyncIterator[T]) -> tuple[T] | tuple[()]:
    """Return the next item in a tuple, or an empty tuple at the end: a StopAsyncIteration cannot be
    the outcome of a request, because coroutines and futures may not raise it.
    """
    try:
        return (await anext(items),)
    except StopAsyncIteration:
        return ()


class MethodCall(Generic[T]):
    """A call of a method, as the function of a request. A portal may make it without a task."""

    __slots__ = ("args", "bound", "client", "kwargs")

    def __init__(
        self,
        client: Caller,
        bound: BoundMethod[..., T],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> None:
        self.client = client
        self.bound = bound
        self.args = args
        self.kwargs = kwargs

    def __call__(self) -> Awaitable[T]:
        """Make it in a task."""
        return self.client.call(self.bound, self.args, self.kwargs)

    def begin(self, ended: Callable[[CallbackCall], object]) -> CallbackCall | None:
        """Make it without one; see `CallClient.begin`."""
        client = self.client
        if type(client) is not CallClient:
            # Filters run in a task.
            return None
        return client.begin(self.bound, self.args, self.kwargs, ended)


class InContext(Awaitable[T]):
    """Runs a coroutine in a context (`contextvars`) that is not its task's."""

    __slots__ = ("_context", "_coroutine")

    def __init__(self, coroutine: Coroutine[object, object, T], context: Context) -> None:
        self._coroutine = coroutine
        self._context = context

    def __await__(self) -> Generator[object, object, T]:
        """Each step of the coroutine, as its task makes it."""
        run, send, throw = self._context.run, self._coroutine.send, self._coroutine.throw
        try:
            asked = run(send, None)
            while True:
                try:
                    answer = yield asked
                # The coroutine gets it where it waits, also `Cancelled`, and raises it on.
                except BaseException as error:  # noqa: ASYNC103
                    asked = run(throw, error)
                else:
                    asked = run(send, answer)
        except StopIteration as stop:
            return cast("T", stop.value)


def _cancelled_by_caller() -> OutcomeUnknownError:
    return OutcomeUnknownError("the call was cancelled by its caller")


def _closed_meanwhile() -> OutcomeUnknownError:
    return OutcomeUnknownError(
        "the connection was closed while this call was under way; it may have run"
    )


def _for_caller(error: BaseException) -> BaseException:
    """Return the error that the thread of a request gets for an error of the function."""
    error = unwrap(error)
    if type(error) is NotAMemberError and CONNECT_AGAIN not in str(error):
        # The node raises this before its block has ended, and its text does not speak of
        # connections.
        error = NotAMemberError(
            f"{error}; {CONNECT_AGAIN}",
            actor=error.actor,
            method=error.method,
            node=error.node,
            epoch=error.epoch,
            attempts=error.attempts,
        )
    return error


class Request(Generic[T]):
    """A function to be run in trio, in the context (`contextvars`) of its caller."""

    __slots__ = ("cancelled", "context", "function", "scope")

    waited_for = True
    """True if a thread does nothing but wait for it, and may make its next request at once."""

    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        self.function = function
        self.context: Context = copy_context()
        self.scope: trio.CancelScope | None = None
        """Around the function while a task runs it. For the trio thread alone."""
        self.cancelled = False
        """Set from any thread."""

    @abstractmethod
    def ended(self, value: T | None, error: BaseException | None) -> None:
        """Called once, in the trio thread, with the value, or with the error if it is not None."""

    async def run(self, begun: Callable[[], None]) -> None:
        """Run it as a task. `begun` is called before anything of it runs."""
        begun()
        value: T | None = None
        error: BaseException | None
        if self.cancelled:
            # Its thread has given it up before it began.
            self.ended(None, NotExecutedError("the call was cancelled before it was made"))
            return
        try:
            with trio.CancelScope() as self.scope:
                value = await self.function()
            error = _cancelled_by_caller() if self.scope.cancelled_caught else None
        except BaseException as caught:  # noqa: ASYNC103  a cancellation goes on
            # Also a group that holds only cancellations, which nurseries of the function raise.
            if is_cancellation(caught):
                # The portal has cancelled it, because it closes; its caller has not.
                self.ended(None, _closed_meanwhile())
                raise
            error = _for_caller(caught)
        self.ended(value, error)


class BlockedRequest(Request[T]):
    """A request whose thread waits for it."""

    __slots__ = ("_done", "_error", "_value", "has_ended")

    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        super().__init__(function)
        self.has_ended = False
        self._value: T | None = None
        self._error: BaseException | None = None
        # A plain lock, which wakes its thread in half of the time that a Future takes.
        self._done = threading.Lock()
        self._done.acquire()

    def ended(self, value: T | None, error: BaseException | None) -> None:
        """Wake the thread that waits, with the outcome."""
        self._value, self._error = value, error
        self.has_ended = True
        self._done.release()

    def wait(self) -> T:
        """Block until it has ended. What a signal handler raises, such as KeyboardInterrupt, comes
        out of here.
        """
        self._done.acquire()
        if self._error is not None:
            try:
                raise self._error
            finally:
                # The error has this frame in its traceback, and must not be in a circle with it.
                self._error = None
        return cast("T", self._value)


class FutureRequest(Request[T]):
    """A request whose outcome goes to a `concurrent.futures.Future`."""

    __slots__ = ("future",)

    waited_for = False

    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        super().__init__(function)
        self.future: Future[T] = LoopFuture()

    def ended(self, value: T | None, error: BaseException | None) -> None:
        """Give the outcome to the future, unless that was cancelled."""
        # False if it was cancelled. From now on it cannot be: `cancel` returns False.
        if not self.future.set_running_or_notify_cancel():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(cast("T", value))


@attrs.define(eq=False)
class Portal:
    """Runs the requests of one door: a nursery of a trio run. `what` names it in errors, and `why`
    says there, once it is set, for what reason it was closed.
    """

    token: trio.lowlevel.TrioToken
    nursery: trio.Nursery
    what: str
    closed: bool = False
    why: str = ""
    handoff: Handoff | None = None
    """None where other tasks than those of doors run in the loop: it stands still while it waits.
    """
    without_tasks: bool = False
    """Whether calls of methods may be made without tasks: where no deadline of a task, and no
    method that runs, covers them.
    """
    _calls: dict[Request[object], CallbackCall] = attrs.field(factory=dict)
    """Calls under way that no task of the nursery makes."""
    _starting: bool = False
    """True from the start of a task until its request has begun."""
    _under_way: int = 0
    """Requests that have begun and not ended."""
    _waiting: deque[Request[object]] = attrs.field(factory=deque)
    """Requests in the loop's thread that are to start when the one before has begun."""
    _submitted: deque[Request[object]] = attrs.field(factory=deque)
    """Requests that the loop's thread has not seen yet. Threads append and the loop takes: each is
    one step under the interpreter's lock, so no other lock is needed. Not bounded here: each
    blocked thread has one, and futures and asyncio tasks are the program's own.
    """
    _batons: deque[threading.Lock] = attrs.field(factory=deque)
    """At most one: a lock that the loop waits for, which the next request releases."""

    def check(self) -> None:
        """Raises NotAMemberError once it is closed, and in destructors that run when the
        interpreter exits.
        """
        if self.closed or sys.is_finalizing():
            raise self._gone()

    def submit(self, request: Request[T]) -> None:
        """Have it run; from any thread, and from signal handlers. Raises NotAMemberError once the
        portal is closed.
        """
        if self.closed:
            # Refused at once if the portal is seen to be closed. If it closes at this moment,
            # `_start` refuses the request.
            raise self._gone()
        self._submitted.append(cast("Request[object]", request))
        try:
            baton = self._batons.pop()
        except IndexError:
            self.soon(self._take)
        else:
            # Only one thread gets the baton from `pop`. If the loop has stopped waiting meanwhile,
            # it looks at the submitted requests after that.
            baton.release()

    def cancel(self, request: Request[T]) -> None:
        """Cancel it, or do nothing if it has ended."""
        # Before its scope, which is for the loop's thread alone: a request that has not begun finds
        # this, and never runs.
        request.cancelled = True
        try:
            # After its start, because what is handed over here runs in order; if a signal came
            # before the loop was woken for it, it is taken now.
            self.soon(self._take)
            self.soon(self._cancel, request)
        except NotAMemberError:
            pass

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run it and block this thread until it has ended. It is cancelled if a signal handler
        raises meanwhile.
        """
        request = BlockedRequest(function)
        try:
            # A signal may come at any moment, also before `submit` has returned.
            self.submit(request)
            return request.wait()
        except BaseException:
            if not request.has_ended:
                self.cancel(request)
            raise

    def future(self, function: Callable[[], Awaitable[T]]) -> Future[T]:
        """Run it. The future has the outcome, and cancels it when it is cancelled."""
        request = FutureRequest(function)
        future = request.future

        def ended(_: Future[T]) -> None:
            if future.cancelled():
                self.cancel(request)

        future.add_done_callback(ended)
        self.submit(request)
        return future

    def soon(self, function: Callable[..., object], *args: object) -> None:
        """Call a function in the trio thread. Raises NotAMemberError once its run has ended."""
        if sys.is_finalizing():
            # Called by a destructor: the thread may never run again, and is not waited for.
            raise self._gone()
        try:
            self.token.run_sync_soon(function, *args)
        except trio.RunFinishedError:
            raise self._gone() from None

    @property
    def calls(self) -> int:
        """How many calls are under way that no task of the nursery makes."""
        return len(self._calls)

    def close(self) -> None:
        """Cancel all that runs; what comes from now on ends with NotAMemberError. In the trio
        thread.
        """
        # First: what is submitted or started from here on is refused.
        self.closed = True
        self.nursery.cancel_scope.cancel()
        for request in tuple(self._calls):
            self._withdraw(request, _closed_meanwhile())
        while self._waiting:
            self._waiting.popleft().ended(None, self._gone())
        # The portal is closed, so each of them ends with that error.
        self._take()

    def _gone(self) -> NotAMemberError:
        because = f" because {self.why}" if self.why else ""
        return NotAMemberError(f"{self.what} was closed{because}; {CONNECT_AGAIN}")

    def _take(self) -> None:
        """Start what was submitted, in order."""
        while self._submitted:
            if self.handoff is not None:
                self.handoff.on_request(trio.current_time())
            self._start(self._submitted.popleft())

    def _cancel(self, request: Request[T]) -> None:
        if request in self._calls:
            self._withdraw(request, _cancelled_by_caller())
        elif request.scope is not None:
            request.scope.cancel()

    def _withdraw(self, request: Request[T], error: OutcomeUnknownError) -> None:
        self._calls.pop(cast("Request[object]", request)).withdraw()
        self._under_way -= 1
        request.ended(None, error)

    def _begin_call(self, request: Request[object]) -> bool:
        """Make a call without a task; False, and nothing is done, if it takes one."""
        call = request.function
        if not self.without_tasks or not isinstance(call, MethodCall) or request.cancelled:
            return False
        self._under_way += 1
        try:
            made = request.context.run(call.begin, partial(self._on_outcome, request))
        except BaseException as error:  # noqa: ASYNC103 - no checkpoint
            self._under_way -= 1
            request.ended(None, _for_caller(error))
            return True  # noqa: ASYNC104 - no checkpoint
        if made is None:
            self._under_way -= 1
            return False
        if not made.over:
            self._calls[request] = made
        return True

    def _on_outcome(self, request: Request[object], call: CallbackCall) -> None:
        """Handle the outcome of a call. The link calls this while it still handles what it has
        received.
        """
        self._calls.pop(request, None)
        self._under_way -= 1
        if call.again is not None:
            request.function = call.again
            self._start(request)
            return
        request.ended(call.value, None if call.error is None else _for_caller(call.error))
        following = self._following(request)
        if following is not None:
            self._start(following)

    async def _run(self, request: Request[object]) -> None:
        context: Context | None = None
        for _ in range(MOST_IN_ONE_TASK):
            self._under_way += 1
            try:
                if context is None:
                    await request.run(self._begun)
                else:
                    await InContext(request.run(self._begun), context)
            finally:
                self._under_way -= 1
                assert self._under_way >= 0
            following = self._following(request)
            if following is None or self._begin_call(following):
                return
            request, context = following, following.context
        # A new task, so that the loop runs what else is ready.
        self._start(request)

    def _following(self, request: Request[object]) -> Request[object] | None:
        """The request that the thread of `request` has made at once after its outcome, to be run by
        the same task; None if there is none, or if requests overlap.
        """
        handoff = self.handoff
        if handoff is None or not request.waited_for or self._under_way or self._waiting:
            return None
        handoff.on_ended(trio.current_time())
        if not handoff.seconds:
            return None
        self._wait_for_next(handoff)
        if len(self._submitted) != 1 or self.closed or self._starting:
            self._take()
            return None
        handoff.on_request(trio.current_time())
        return self._submitted.popleft()

    def _wait_for_next(self, handoff: Handoff) -> None:
        """Let the thread that was answered run until its next request has come, or for
        `handoff.seconds`. The loop stands still meanwhile, and does not hold the interpreter.
        """
        baton = threading.Lock()
        baton.acquire()
        assert not self._batons, "the loop waits for one request at a time"
        self._batons.append(baton)
        # A request that was submitted before the baton was there has not released it.
        if not self._submitted and not baton.acquire(timeout=handoff.seconds):
            handoff.on_missed()
        # A thread that has taken the baton just now has submitted its request before: the caller
        # looks at what is submitted after this.
        self._batons.clear()

    def _start(self, request: Request[object]) -> None:
        # One at a time: trio starts tasks that are ready together in any order, and calls of one
        # thread start in the order in which they were made.
        if self.closed:
            request.ended(None, self._gone())
        elif self._starting:
            self._waiting.append(request)
        elif not self._begin_call(request):
            self._spawn(request)

    def _spawn(self, request: Request[object]) -> None:
        assert not self._starting, "requests begin one after the other"
        self._starting = True
        # The new task copies the context in which this runs.
        request.context.run(self.nursery.start_soon, self._run, request)

    def _begun(self) -> None:
        self._starting = False
        if self._waiting:
            self._spawn(self._waiting.popleft())
