"""A portal: threads that run no trio have functions run in the trio run of another thread.

A request is one such function. Its outcome comes back in the trio thread, by `ended`, and it can be
cancelled from any thread; a call that is cancelled so is cancelled where it runs.
"""

from __future__ import annotations

import sys
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import Context, copy_context
from typing import Generic, TypeVar, cast

import attrs
import trio

from actors.errors import NotAMemberError, OutcomeUnknownError
from runtime.environment import unwrap

T = TypeVar("T")

CONNECT_AGAIN = "connect again"
"""What to do when a connection is of no use any more."""


class Request(Generic[T]):
    """Something to be run in trio, in the context (`contextvars`) of its caller."""

    __slots__ = ("context", "function", "scope")

    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        self.function = function
        self.context: Context = copy_context()
        self.scope = trio.CancelScope()

    @abstractmethod
    def ended(self, value: T | None, error: BaseException | None) -> None:
        """Called once, in the trio thread, with the value, or with the error if it is not None."""

    async def run(self, begun: Callable[[], None]) -> None:
        """Run it as a task. `begun` is called before anything of it runs."""
        begun()
        value: T | None = None
        error: BaseException | None
        try:
            with self.scope:
                value = await self.function()
            error = (
                OutcomeUnknownError("the call was cancelled by its caller")
                if self.scope.cancelled_caught
                else None
            )
        except trio.Cancelled:
            # Not by its caller: the portal closes.
            self.ended(
                None,
                OutcomeUnknownError(
                    "the connection was closed while this call was under way; it may have run"
                ),
            )
            raise
        except BaseException as caught:
            # Its caller gets it, in the other thread.
            error = unwrap(caught)
            if type(error) is NotAMemberError and CONNECT_AGAIN not in str(error):
                # The node says it before its block has ended, and knows of no connections.
                error = NotAMemberError(
                    f"{error}; {CONNECT_AGAIN}",
                    actor=error.actor,
                    method=error.method,
                    node=error.node,
                    epoch=error.epoch,
                    attempts=error.attempts,
                )
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
        """See `Request.ended`."""
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

    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        super().__init__(function)
        self.future: Future[T] = Future()

    def ended(self, value: T | None, error: BaseException | None) -> None:
        """See `Request.ended`."""
        # False if it was cancelled. From now on it cannot be: `cancel` returns False.
        if not self.future.set_running_or_notify_cancel():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(cast("T", value))


@attrs.define(eq=False)
class Portal:
    """Where the requests of one door run: a nursery of a trio run. `what` names it in errors, and
    `why` says there, once it is set, for what reason it was closed.
    """

    token: trio.lowlevel.TrioToken
    nursery: trio.Nursery
    what: str
    closed: bool = False
    why: str = ""
    _starting: bool = False
    _waiting: deque[Request[object]] = attrs.field(factory=deque)

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
            # At once where that can be seen; where it is closed in this moment, `_start` says it.
            raise self._gone()
        self.soon(self._start, request)

    def cancel(self, request: Request[T]) -> None:
        """Cancel it, or do nothing if it has ended."""
        try:
            # After its start, because what is handed over here runs in order.
            self.soon(request.scope.cancel)
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

    def close(self) -> None:
        """Cancel all that runs; what comes from now on ends with NotAMemberError. In the trio
        thread.
        """
        self.closed = True
        self.nursery.cancel_scope.cancel()
        while self._waiting:
            self._waiting.popleft().ended(None, self._gone())

    def _gone(self) -> NotAMemberError:
        because = f" because {self.why}" if self.why else ""
        return NotAMemberError(f"{self.what} was closed{because}; {CONNECT_AGAIN}")

    def _start(self, request: Request[object]) -> None:
        # One at a time: trio starts tasks that are ready together in any order, and calls of one
        # thread start in the order in which they were made.
        if self.closed:
            request.ended(None, self._gone())
        elif self._starting:
            self._waiting.append(request)
        else:
            self._spawn(request)

    def _spawn(self, request: Request[object]) -> None:
        self._starting = True
        # The new task copies the context in which this runs.
        request.context.run(self.nursery.start_soon, request.run, self._begun)

    def _begun(self) -> None:
        self._starting = False
        if self._waiting:
            self._spawn(self._waiting.popleft())
