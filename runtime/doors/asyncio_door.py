"""What both sides of asyncio share: requests that a task of asyncio waits for, and the handles,
streams and references that make them.
"""

from __future__ import annotations

import asyncio
import copy
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

from actors.documentation import A_CALL
from actors.errors import NotAMemberError, WrongDoorError
from actors.handle import Handle, moved
from actors.method import BoundMethod, BoundStream, Caller, Stream
from actors.reference import (
    Reference,
    ReferencedValue,
    ReferenceSource,
    RemoteMethod,
    RemoteValue,
)
from actors.short_repr import short_repr
from runtime.calls.filtered_calls import FilteredCaller, belong_together
from runtime.calls.own_cluster import check_own_cluster
from runtime.doors.portal import MethodCall, Portal, Request, next_of

R = TypeVar("R")
T = TypeVar("T")


class AsyncioRequest(Request[T]):
    """A request that a task of asyncio waits for. `on_lost(value)` is called, in any thread, if the
    task was cancelled while the value was on its way to it.
    """

    __slots__ = ("_on_lost", "future", "loop")

    def __init__(
        self,
        function: Callable[[], Awaitable[T]],
        loop: asyncio.AbstractEventLoop,
        on_lost: Callable[[T], object],
    ) -> None:
        super().__init__(function)
        self.loop = loop
        self.future: asyncio.Future[T] = loop.create_future()
        self._on_lost = on_lost

    def ended(self, value: T | None, error: BaseException | None) -> None:
        """Give the outcome to the asyncio task that waits for it, in its loop."""
        try:
            self.loop.call_soon_threadsafe(self._finish, value, error)
        except RuntimeError:
            # That loop is closed, and none of its tasks waits any more.
            if error is None:
                self._on_lost(cast("T", value))

    def _finish(self, value: T | None, error: BaseException | None) -> None:
        if self.future.done():
            # Its task was cancelled, while this was on its way to the loop.
            if error is None:
                self._on_lost(cast("T", value))
        elif error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(cast("T", value))

    def given_up(self) -> None:
        """The task that waits has got an exception instead of the outcome: the error of the
        function, or its own cancellation, which may come in the same pass as a value.
        """
        if self.future.done() and not self.future.cancelled() and not self.future.exception():
            self._on_lost(self.future.result())


def running_loop() -> asyncio.AbstractEventLoop:
    """The loop of the running task. Raises WrongDoorError outside of any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise WrongDoorError(
            "a handle or cluster of runtime.aio was used outside of a running asyncio loop; use "
            "`from runtime.blocking import connect` where there is no event loop, and "
            "runtime.open_node in a trio program"
        ) from None


async def run_in(
    portal: Portal,
    function: Callable[[], Awaitable[T]],
    undo: Callable[[T], Awaitable[object]] | None = None,
) -> T:
    """Run a function in a portal; a task of asyncio waits for it, and is cancelled with it.
    `undo(value)`, run in the portal as well, takes back what the function has done, if the task
    was cancelled after the function had returned.
    """

    def on_lost(value: T) -> None:
        if undo is not None:
            # If the portal was closed meanwhile, what was done cannot be taken back.
            with suppress(NotAMemberError):
                portal.future(partial(undo, value))

    request = AsyncioRequest(function, running_loop(), on_lost)
    portal.submit(request)
    try:
        return await request.future
    except BaseException:
        # An error of its own, or the cancellation of this task. Cancelling what has ended does
        # nothing.
        if request.future.cancelled():
            portal.cancel(request)
        else:
            request.given_up()
        raise


class AioDoor:
    """Makes the calls of handles at asyncio's door; implements `actors.method.Caller`. `client`
    carries them out, in trio.
    """

    def __init__(self, client: Caller) -> None:
        self.client = client

    @abstractmethod
    async def wait(
        self,
        function: Callable[[], Awaitable[T]],
        undo: Callable[[T], Awaitable[object]] | None = None,
    ) -> T:
        """Run `function` in trio, and return what it returns. It is cancelled with the asyncio task
        that waits. `undo`: see `run_in`.
        """

    async def now(self, function: Callable[[], T]) -> T:
        """Call a plain function in trio's thread, and return what it returns."""

        async def called() -> T:
            return function()

        return await self.wait(called)

    def handle(self, handle: object) -> Any:
        """The handle of any door, at this one. Raises TypeError for what is no handle."""
        if not isinstance(handle, Handle):
            raise TypeError(f"a handle is expected, not {short_repr(handle)}")
        check_own_cluster(handle, self.client)
        caller = handle._caller.client if isinstance(handle._caller, AioDoor) else handle._caller
        if isinstance(caller, FilteredCaller) and belong_together(caller, self.client):
            # The class of its actor may have filters besides those of the node.
            return moved(handle, self._through(caller))
        return moved(handle, self)

    def _through(self, client: Caller) -> AioDoor:
        door = copy.copy(self)
        door.client = client
        return door

    def handle_of_pool(self, handle: object) -> Any:
        """A handle that a pool has chosen, at this door: its calls go on through its own caller,
        which counts the calls of each member of the pool.
        """
        assert isinstance(handle, Handle)
        return moved(handle, self._through(handle._caller))

    def plain(self, handle: object) -> Any:
        """The handle of any door, for trio."""
        if not isinstance(handle, Handle):
            raise TypeError(f"a handle is expected, not {short_repr(handle)}")
        check_own_cluster(handle, self.client)
        return moved(handle, self.client)

    def reference(self, reference: Reference[R]) -> AioReference[R]:
        """The reference, to be waited for here."""
        return AioReference(reference._state, reference._source, self)

    def call(
        self, bound: BoundMethod[..., R], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Coroutine[Any, Any, R]:
        """Make the call in the node's loop; the asyncio task waits for its outcome."""
        call = self.wait(MethodCall(self.client, bound, args, kwargs))
        named: Any = call
        named.__qualname__ = A_CALL
        return call

    def send(
        self, bound: BoundMethod[..., R], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Coroutine[Any, Any, None]:
        """Hand the call to the connection, in the node's loop."""
        return self.wait(lambda: self.client.send(bound, args, kwargs))

    async def remote(
        self, bound: BoundMethod[..., R], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Reference[R]:
        """Make the call in the node's loop, and return a reference to its result for tasks of
        asyncio.
        """
        kept = await self.wait(lambda: self.client.remote(bound, args, kwargs))
        return self.reference(kept)

    def stream(
        self, bound: BoundStream[..., T], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Stream[T]:
        """Return the items of a generator method for tasks of asyncio."""
        return AioStream(self, self.client.stream(bound, args, kwargs))


class AioStream(Stream[T]):
    """A stream whose items a task of asyncio waits for."""

    __slots__ = ("_door", "_stream")

    def __init__(self, door: AioDoor, stream: Stream[T]) -> None:
        self._door = door
        self._stream = stream

    async def __anext__(self) -> T:
        """Return the next item. Raises StopAsyncIteration at the end, and the error that ended the
        stream.
        """
        found = await self._door.wait(partial(next_of, self._stream))
        if not found:
            raise StopAsyncIteration
        return found[0]

    async def aclose(self) -> None:
        """Stop the stream. It may be closed again."""
        try:
            await self._door.wait(self._stream.aclose)
        except NotAMemberError:
            # Its connection was closed, which has closed the generator as well.
            return


class AioReference(Reference[R]):
    """A reference that tasks of asyncio can wait for. In messages it is one like any other."""

    __slots__ = ("_door",)

    def __init__(self, state: ReferencedValue, source: ReferenceSource, door: AioDoor) -> None:
        super().__init__(state, source)
        self._door = door

    async def fetch(self) -> R:
        """Return the value, once it exists. Raises like `Reference.fetch`."""
        return await self._door.wait(super().fetch)

    async def ready(self) -> bool:
        """Wait until the value exists. Raises like `Reference.ready`."""
        return await self._door.wait(super().ready)

    @property
    def call(self) -> AioValue:
        """The methods of the value, to be called where it is."""
        return AioValue(self._state, self._source, self._door)


class AioValue(RemoteValue):
    """The methods of a referenced value; see `actors.reference.RemoteValue`."""

    __slots__ = ("_door",)

    def __init__(self, state: ReferencedValue, source: ReferenceSource, door: AioDoor) -> None:
        super().__init__(state, source)
        self._door = door

    def __getattr__(self, name: str) -> RemoteMethod:
        return AioValueMethod(super().__getattr__(name), self._door)


class AioValueMethod(RemoteMethod):
    """One method of a referenced value."""

    __slots__ = ("_door", "_method")

    def __init__(self, method: RemoteMethod, door: AioDoor) -> None:
        self._method = method
        self._door = door

    def __call__(self, *args: object, **kwargs: object) -> Awaitable[Any]:
        """Call the method where the value is, and return its result."""
        return self._door.wait(lambda: self._method(*args, **kwargs))

    async def remote(self, *args: object, **kwargs: object) -> Reference[Any]:
        """Call the method where the value is, and return a reference to its result."""
        kept = await self._door.wait(lambda: self._method.remote(*args, **kwargs))
        return self._door.reference(kept)
