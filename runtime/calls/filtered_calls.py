"""Calls with filters around them, where they are made.

Filters are a node's, or those of the actor's class inside of these. They are looked up when a
handle is made. One without any has the call client itself, so its calls do not even look for them.
"""

from __future__ import annotations

import math
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, cast

import trio

from actors.call_context import CURRENT, CallContext
from actors.errors import CallTimeoutError, DeadlineExceededError
from actors.filters import Call, CallKind, Filter
from actors.method import Bound, BoundMethod, BoundStream, Caller, Stream
from actors.reference import Reference
from runtime.error_to_raise import ErrorToRaise
from runtime.hosting.filtered_run import FilteredRun
from runtime.user_errors import is_cancellation, is_interrupt

if TYPE_CHECKING:
    from runtime.calls.client import CallClient

R = TypeVar("R")
T = TypeVar("T")


class FilteredCaller:
    """Makes calls through filters; the `actors.method.Caller` of a node's handles. What the filters
    go on to is made by `client`, and once, with all attempts that it takes.
    """

    def __init__(
        self, client: CallClient, filters: tuple[Filter, ...], of_class: tuple[Filter, ...] = ()
    ) -> None:
        assert filters or of_class, "calls without filters have no such caller"
        self.client = client
        self.of_node = filters
        self.filters = (*filters, *of_class)

    async def call(
        self, bound: BoundMethod[..., R], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Any:
        """Make the call within the client-side filters. The call's timeout covers the filters as
        well.
        """
        timeout = self.client.timeout(bound)
        expires = self.client.environment.now() + timeout
        call = self._seen("call", bound, args, kwargs, expires)
        if timeout == math.inf:
            run = FilteredRun(
                self.filters, call, lambda: self.client.attempt(bound, args, kwargs, call)
            )
            return await run.run_alone()
        return await self._within(expires, call, bound, args, kwargs)

    async def _within(
        self,
        expires: float,
        call: Call,
        bound: BoundMethod[..., Any],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        scope = trio.CancelScope(deadline=expires)

        async def last() -> object:
            # The client ends it at the same moment, and knows better how it has ended.
            scope.deadline = math.inf
            try:
                return await self.client.attempt(bound, args, kwargs, call)
            finally:
                scope.deadline = expires

        run = FilteredRun(self.filters, call, last)
        with scope:
            return await run.run_alone()
        # Only a filter can have taken too long.
        cls = CallTimeoutError if run.reached else DeadlineExceededError
        then = "the method has run" if run.reached else "the method did not run and will not"
        raise cls(
            f"{call.actor}.{call.method}: its filters took longer than its timeout of "
            f"{self.client.timeout(bound):g} s; {then}",
            actor=call.actor,
            method=call.method,
            node=call.node,
            epoch=call.epoch,
        )

    async def send(
        self, bound: BoundMethod[..., R], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        """Make the one-way call within the client-side filters."""
        call = self._seen("send", bound, args, kwargs)
        run = FilteredRun(self.filters, call, lambda: self.client.send(bound, args, kwargs))
        await run.run_alone()

    def remote(
        self, bound: BoundMethod[..., R], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Coroutine[Any, Any, Reference[R]]:
        """Make the call within the client-side filters, and return a reference to its result."""
        call = self._seen("remote", bound, args, kwargs)
        run = FilteredRun(self.filters, call, lambda: self.client.remote(bound, args, kwargs))
        return cast("Coroutine[Any, Any, Reference[R]]", run.run_alone())

    def stream(
        self, bound: BoundStream[..., T], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Stream[T]:
        """Return the items of a generator method, requested within the client-side filters."""
        call = self._seen("stream", bound, args, kwargs)
        return FilteredStream(self, call, bound, args, kwargs)

    def _seen(
        self,
        kind: CallKind,
        bound: Bound,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        deadline: float = math.inf,
    ) -> Call:
        address = bound._address
        return Call(
            side="client",
            kind=kind,
            actor=address.name,
            class_path=address.class_path,
            method=bound._definition.name,
            node=address.node,
            epoch=address.epoch,
            incarnation=address.incarnation,
            args=args,
            kwargs=kwargs,
            deadline=deadline,
        )


def caller_for(caller: Caller, cls: object) -> Caller:
    """Return the caller for handles of the class `cls`: `caller`, which all handles of a node have,
    with the filters of the class inside of the node's filters. An unknown class, None, has none.
    """
    own: tuple[Filter, ...] = getattr(cls, "__client_filters__", ()) if cls is not None else ()
    if not own:
        return caller
    if isinstance(caller, FilteredCaller):
        return FilteredCaller(caller.client, caller.of_node, own)
    return FilteredCaller(cast("CallClient", caller), (), own)


def caller_of_node(caller: Caller) -> Caller:
    """The same without filters of a class."""
    if not isinstance(caller, FilteredCaller) or caller.filters == caller.of_node:
        return caller
    return FilteredCaller(caller.client, caller.of_node) if caller.of_node else caller.client


def belong_together(one: Caller, other: Caller) -> bool:
    """True if the two make calls by the same client, whatever filters are around them."""
    return _client_of(one) is _client_of(other)


def _client_of(caller: Caller) -> Caller:
    return caller.client if isinstance(caller, FilteredCaller) else caller


class _StreamFilters:
    """The filters around one stream. They run in a task of their own, because the stream's items
    are read in between; it must not refer to the stream, which ends it when it is dropped.
    """

    def __init__(self, filters: tuple[Filter, ...], call: Call) -> None:
        self._run = FilteredRun(filters, call, self._around)
        self.context: CallContext | None = None
        self.ready = trio.Event()
        """Set when they have gone on, or will not any more."""
        self.over = trio.Event()
        self.error: ErrorToRaise | None = None
        """What they have raised, which is raised at the reader."""
        self._scope = trio.CancelScope()
        self._items_over = trio.Event()
        self._items_error: ErrorToRaise | None = None

    @property
    def has_gone_on(self) -> bool:
        """True once the stream may be opened."""
        return self._run.reached

    async def run(self) -> None:
        """The task."""
        try:
            with self._scope:
                await self._run.run_alone()
        except BaseException as error:  # noqa: ASYNC103  cancellations and interrupts go on
            if is_cancellation(error) or is_interrupt(error):
                raise
            self.error = ErrorToRaise(error)
        finally:
            self.ready.set()
            self.over.set()

    def end(self, error: BaseException | None, within: float) -> None:
        """The stream is over, by this error if there is one. The filters may take until `within`,
        on trio's clock. May be called again, with less time: of the errors only the first counts.
        """
        if not self._items_over.is_set():
            self._items_error = None if error is None else ErrorToRaise(error)
            self._items_over.set()
        # Also of filters that run on already: their reader, which waited for them, was cancelled.
        self._scope.deadline = min(self._scope.deadline, within)

    async def _around(self) -> None:
        self.context = CURRENT.get()
        self.ready.set()
        await self._items_over.wait()
        if self._items_error is not None:
            self._items_error.raise_it()


class FilteredStream(Stream[T]):
    """A stream with filters around the whole of it."""

    __slots__ = (
        "_args",
        "_bound",
        "_call",
        "_caller",
        "_filters",
        "_items",
        "_kwargs",
        "_over",
        "_reading",
        "_token",
    )

    def __init__(
        self,
        caller: FilteredCaller,
        call: Call,
        bound: BoundStream[..., T],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> None:
        self._caller = caller
        self._call = call
        self._bound = bound
        self._args = args
        self._kwargs = kwargs
        self._filters: _StreamFilters | None = None
        self._items: Stream[T] | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._over = False
        self._reading = False

    async def __anext__(self) -> T:
        """Return the next item. The first request runs the filters. Raises StopAsyncIteration at
        the end, and the error that ended the stream.
        """
        if self._reading:
            raise trio.BusyResourceError(
                "another task waits for the next item of this stream; one task reads it at a time"
            )
        if self._over:
            await trio.lowlevel.checkpoint()
            raise StopAsyncIteration
        self._reading = True
        try:
            if self._items is None:
                self._items = await self._open()
            return await self._items.__anext__()
        except StopAsyncIteration:
            # A cancellation of the wait for the filters is worth more than the end.
            await self._finished(None)  # noqa: ASYNC120
            raise
        except Exception as error:
            await self._finished(error)  # noqa: ASYNC120  as above
            raise
        except BaseException:
            # The reader was cancelled: for the filters the stream just ends.
            self._end(None)
            raise
        finally:
            self._reading = False

    async def aclose(self) -> None:
        """Stop the stream, and let its filters end. It may be closed again."""
        self._end(None)
        if self._items is not None:
            await self._items.aclose()
        else:
            # Not cancellable, like `StreamReader.aclose`: the stream has been closed already.
            await trio.lowlevel.cancel_shielded_checkpoint()

    def __del__(self) -> None:
        filters, token = self._filters, self._token
        if filters is not None and token is not None and not self._over:
            # A collector may run this in the middle of anything, in any thread.
            try:
                token.run_sync_soon(filters.end, None, -math.inf)
            except trio.RunFinishedError:
                pass

    async def _open(self) -> Stream[T]:
        """Run the filters until they go on. Raises what they raise instead."""
        client = self._caller.client
        self._token = trio.lowlevel.current_trio_token()
        filters = self._filters = _StreamFilters(self._caller.filters, self._call)
        client.nursery.start_soon(filters.run, name=f"filters of a stream of {self._call.actor}")
        timeout = self._bound._options.timeout
        with trio.move_on_after(math.inf if timeout is None else timeout):
            await filters.ready.wait()
        if filters.error is not None:
            # Raised here, and not once more when the stream is finished.
            self._over = True
            filters.error.raise_it()
        if not filters.has_gone_on:
            self._end(None)
            if filters.over.is_set():
                # A filter has returned without going on: to the reader there are no items.
                raise StopAsyncIteration
            raise DeadlineExceededError(
                f"{self._call.actor}.{self._call.method}: its filters did not go on within its "
                f"timeout of {timeout:g} s; it did not run and will not",
                actor=self._call.actor,
                method=self._call.method,
            )
        return client.stream_in(filters.context, self._bound, self._args, self._kwargs)

    async def _finished(self, error: Exception | None) -> None:
        """End the filters, and wait for them. Raises what they raise, unless it is `error`."""
        filters = self._filters
        if self._over or filters is None:
            return
        self._over = True
        filters.end(error, math.inf)
        try:
            await filters.over.wait()
        finally:
            # If the wait was cancelled: no task waits for what they do.
            filters.end(None, -math.inf)
        if filters.error is not None and not filters.error.is_of(error):
            filters.error.raise_it()

    def _end(self, error: Exception | None) -> None:
        """End the filters without waiting for them."""
        self._over = True
        if self._filters is not None:
            client = self._caller.client
            cleanup = client.environment.timings.stream_cleanup
            self._filters.end(error, client.environment.now() + cleanup)
