"""The `concurrent.futures.Executor` of a cluster: functions run in its worker processes.

A function that waits for a place has a pending future, which can be cancelled; a function that was
handed to the cluster is running. A worker process that dies ends only its own call.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

import attrs

from actors.errors import CallError, OutcomeUnknownError
from actors.options import SpawnOptions
from actors.short_repr import short_repr
from runtime.doors.blocking_door import BlockingDoor, refuse_loops
from runtime.doors.futures import LoopFuture
from runtime.functions.caller import FunctionCaller
from runtime.functions.function_names import FunctionCall

P = ParamSpec("P")
T = TypeVar("T")


@attrs.define(eq=False)
class _Item:
    """A function that was submitted, and the future that the program has of it."""

    call: FunctionCall
    future: Future[Any] = attrs.field(factory=LoopFuture)


class ClusterExecutor(Executor):
    """Runs functions in the worker processes of a cluster; see `BlockingCluster.executor`. May be
    used by any thread.
    """

    def __init__(
        self,
        door: BlockingDoor,
        functions: FunctionCaller,
        options: SpawnOptions,
        max_workers: int,
    ) -> None:
        if isinstance(max_workers, bool) or not isinstance(max_workers, int):
            raise TypeError(f"max_workers must be a whole number, not {short_repr(max_workers)}")
        if max_workers < 1:
            raise ValueError(f"max_workers must be at least 1, not {short_repr(max_workers)}")
        self._door = door
        self._functions = functions
        self._options = options
        self._max_workers = max_workers
        self._changed = threading.Condition()
        # What follows is under that lock.
        self._waiting: deque[_Item] = deque()
        """Not bounded, like the queue of every executor of `concurrent.futures`."""
        self._running: set[Future[Any]] = set()
        """The futures of the door, of what was handed to the cluster."""
        self._starting = 0
        """Functions that were taken out of the queue and are not in `_running` yet: they count as
        running, or two threads would start more than `max_workers`.
        """
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function; see `RunsFunctions.run`. What `run` would refuse is refused here. Raises
        RuntimeError after `shutdown`.
        """
        # Before the lock: in a fork another thread may have held it.
        self._door.check()
        item = _Item(FunctionCall.checked(fn, args, kwargs, self._options))
        with self._changed:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._waiting.append(item)
        self._start_more()
        return cast("Future[T]", item.future)

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """The results in order; see `concurrent.futures.Executor.map`. `buffersize`: how many items
        are taken in advance, so that endless iterables can be mapped; None: all. `chunksize` makes
        no difference.
        """
        if buffersize is None:
            return super().map(fn, *iterables, timeout=timeout)
        if buffersize < 1:
            raise ValueError(f"buffersize must be at least 1 or None, not {short_repr(buffersize)}")
        if timeout is not None:
            raise ValueError("give map a timeout or a buffersize, or a timeout to options(...)")
        arguments = zip(*iterables, strict=False)
        submitted = deque(self.submit(fn, *each) for each in islice(arguments, buffersize))

        def results() -> Iterator[T]:
            try:
                while submitted:
                    result = submitted.popleft().result()
                    for each in islice(arguments, 1):
                        submitted.append(self.submit(fn, *each))
                    yield result
            finally:
                for future in submitted:
                    future.cancel()

        return results()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more functions. `wait`: block until all have ended. `cancel_futures`: cancel what
        has not started. Raises WrongDoorError instead of blocking an event loop.
        """
        if wait:
            refuse_loops()
        with self._changed:
            self._closed = True
            cancelled = [*self._waiting] if cancel_futures else []
        for item in cancelled:
            item.future.cancel()
        # Cancelled futures are taken from the queue by the same code as the others.
        self._start_more()
        # Until its future has its outcome, a function is in one of these three.
        if wait:
            with self._changed:
                self._changed.wait_for(
                    lambda: not (self._waiting or self._running or self._starting)
                )

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        if exc_type is not None and not issubclass(exc_type, Exception):
            # Ctrl-C: the program does not want the results any more.
            self._cancel_all()
        self.shutdown(wait=True)

    def _cancel_all(self) -> None:
        with self._changed:
            self._closed = True
            futures = [*(item.future for item in self._waiting), *self._running]
        for future in futures:
            future.cancel()

    def _start_more(self) -> None:
        """Hand over to the cluster as many as it may run at once."""
        while True:
            with self._changed:
                if not self._waiting or (
                    len(self._running) + self._starting >= self._max_workers
                    and not self._waiting[0].future.cancelled()
                ):
                    return
                item = self._waiting.popleft()
                self._starting += 1
            # Outside of the lock: callbacks of the future are code of the user's.
            self._start(item)

    def _start(self, item: _Item) -> None:
        running: Future[Any] | None = None
        try:
            if not item.future.set_running_or_notify_cancel():
                return
            try:
                running = self._door.future(partial(self._functions.run, item.call))
            except CallError as error:
                # The connection is closed.
                item.future.set_exception(error)
        finally:
            with self._changed:
                assert self._starting > 0, "it was counted as it was taken out of the queue"
                self._starting -= 1
                if running is not None:
                    self._running.add(running)
                self._changed.notify_all()
        # Added before the callback is: that may run at once, and removes the future again.
        if running is not None:
            running.add_done_callback(partial(self._ended, item))

    def _ended(self, item: _Item, running: Future[Any]) -> None:
        """In the loop's thread."""
        try:
            if running.cancelled():
                item.future.set_exception(_cancelled(item))
            elif (error := running.exception()) is not None:
                item.future.set_exception(error)
            else:
                item.future.set_result(running.result())
        finally:
            # After the outcome: `shutdown` returns only when every future has its own.
            with self._changed:
                self._running.discard(running)
                self._changed.notify_all()
        self._start_more()


def _cancelled(item: _Item) -> CallError:
    return OutcomeUnknownError(
        f"{item.call.path} was cancelled while it ran, because its executor was left by an "
        "exception such as Ctrl-C; it may have run"
    )
