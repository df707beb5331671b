"""A trio event loop in a thread of its own, for programs without an event loop."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, TypeVar

import attrs
import trio

from runtime.environment import unwrap
from runtime.user_errors import is_cancellation

T = TypeVar("T")


class LoopEndedError(RuntimeError):
    """The event loop does not run, so it takes no calls."""


@attrs.define(eq=False)
class _ThreadCall(Generic[T]):
    function: Callable[[], Awaitable[T]]
    future: Future[T] = attrs.field(factory=Future)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    async def run(self) -> None:
        try:
            with self.scope:
                self.future.set_result(await self.function())
        except BaseException as error:  # noqa: ASYNC103  a cancellation goes on
            # Also a group that holds only cancellations, which nurseries of the function raise.
            if is_cancellation(error):
                self._end_with(
                    LoopEndedError("the event loop was stopped while this call was under way")
                )
                raise
            # The caller in the other thread gets it. Nothing here depends on this call.
            self._end_with(unwrap(error))
        else:
            self._end_with(LoopEndedError("the caller gave up"))

    def _end_with(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class LoopThread:
    """Runs `service` in an event loop; `service` must end when its event is set. Calls run beside
    it, and are cancelled when it has ended.

    The thread is a daemon, which the end of the process stops anywhere. Call `stop` before, so that
    the service can clean up.
    """

    def __init__(self, service: Callable[[trio.Event], Awaitable[None]], name: str) -> None:
        self._service = service
        self._stopping = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, and wait until its loop takes calls. Call it once."""
        self._thread.start()
        self._begun.wait()

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run `function` in the loop, and wait for its result. Call it from another thread than the
        loop's. Raises what `function` raises, and `LoopEndedError`.

        If a signal handler raises while this waits, the call is cancelled, and that error raised.
        """
        call = _ThreadCall(function)
        try:
            # Within the `try`: a signal may come at any moment, also before this has returned.
            self._soon(lambda: self._begin(call))
            return call.future.result()
        except BaseException:
            if not call.future.done():
                with suppress(LoopEndedError):
                    self._soon(call.scope.cancel)
            raise

    def stop(self, seconds: float) -> bool:
        """Stop the service and the thread; returns whether they have ended within `seconds`. May be
        called again.
        """
        try:
            self._soon(self._stopping.set)
        except LoopEndedError:
            pass
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _soon(self, function: Callable[[], object]) -> None:
        token = self._token
        if token is None:
            raise LoopEndedError("the event loop does not run; start it first")
        try:
            # From torch's thread: the loop's state is touched by the loop's thread only.
            token.run_sync_soon(function)
        except trio.RunFinishedError:
            raise LoopEndedError("the event loop has ended; make another one") from None

    def _begin(self, call: _ThreadCall[Any]) -> None:
        if self._nursery is None:
            call.future.set_exception(
                LoopEndedError("the event loop is ending and takes no more calls")
            )
        else:
            self._nursery.start_soon(call.run)

    def _run(self) -> None:
        try:
            trio.run(self._main)
        finally:
            # Also if the loop could not begin: `start` waits for this event.
            self._begun.set()

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery, self._token = nursery, trio.lowlevel.current_trio_token()
            self._begun.set()
            try:
                await self._service(self._stopping)
            finally:
                # In this order, so that no call is started in a nursery that is being cancelled.
                self._nursery = None
                nursery.cancel_scope.cancel()
