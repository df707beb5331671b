"""Tasks and generators of asyncio that trio waits for: streams of actors under asyncio, and sources
of a pool's items in asyncio programs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine
from contextvars import copy_context
from typing import Any, Generic, Protocol, TypeVar

import trio

from runtime.error_to_raise import ErrorToRaise

T = TypeVar("T")


class AsyncioTask(Generic[T]):
    """A coroutine as a task of the actor's loop, for a task of trio that waits for its end."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], token: trio.lowlevel.TrioToken) -> None:
        self._coroutine = coroutine
        self._token = token
        self._context = copy_context()
        self._task: asyncio.Task[None] | None = None
        self._error: ErrorToRaise | None = ErrorToRaise(
            RuntimeError("its asyncio loop has ended before it")
        )
        self._value: T
        self.done = trio.Event()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the task. Call it in the loop's thread."""
        assert self._task is None, "a coroutine is run once"
        self._task = loop.create_task(self._run(), context=self._context)
        self._task.add_done_callback(self._ended)

    def drop(self) -> None:
        """Close the coroutine, which is never run. Call it in place of `start`."""
        assert self._task is None, "what has started ends by itself"
        self._coroutine.close()
        self._ended(None)

    def cancel(self) -> None:
        """Cancel the task. Call it in the loop's thread, after `start`."""
        if self._task is not None:
            self._task.cancel()

    def result(self) -> T:
        """Return or raise the outcome of the task, once it is done."""
        if self._error is not None:
            self._error.raise_it()
        return self._value

    async def _run(self) -> None:
        try:
            self._value = await self._coroutine
            self._error = None
        except BaseException as error:  # noqa: ASYNC103  raised by `result`
            # Kept from the task of asyncio: that would end its loop by SystemExit and
            # KeyboardInterrupt, and with it all the others. The task of trio decides.
            self._error = ErrorToRaise(error)

    def _ended(self, _: asyncio.Task[None] | None) -> None:
        try:
            self._token.run_sync_soon(self.done.set)
        except trio.RunFinishedError:
            # No task waits any more.
            return


class TaskLoop(Protocol):
    """A loop of asyncio as trio sees it: of an actor under asyncio, or of the program."""

    async def begin(self, task: AsyncioTask[Any]) -> None:
        """Have the task started."""
        ...

    def soon(self, function: Callable[..., object], *args: object) -> bool:
        """Call a function in the loop's thread, after what was begun. False if it has ended."""
        ...

    async def check(self) -> None:
        """Raise an error if the loop has ended before its time: outcomes of tasks mean nothing."""
        ...


class ProgramLoop:
    """The loop of an asyncio program, which may end at any time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    async def begin(self, task: AsyncioTask[Any]) -> None:
        """Have the task started. Raises RuntimeError if the loop is closed."""
        await trio.lowlevel.checkpoint()
        self._loop.call_soon_threadsafe(task.start, self._loop)

    def soon(self, function: Callable[..., object], *args: object) -> bool:
        """Call a function in the loop's thread; False if the loop is closed."""
        return soon_in(self._loop, function, *args)

    async def check(self) -> None:
        """Do nothing: the end of the program's loop is the end of its sources."""


def soon_in(
    loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object
) -> bool:
    """Call a function in the thread of a loop soon; False if the loop is closed."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        return False
    return True


async def items_in_trio(
    generator: AsyncGenerator[T, None], loop: TaskLoop, token: trio.lowlevel.TrioToken
) -> AsyncGenerator[T, None]:
    """The items of a generator that runs in `loop`, for the trio run of `token`. The generator is
    closed when this one is.
    """
    pump = _Pump(generator, token)
    task = AsyncioTask(pump.run(), token)
    await loop.begin(task)
    try:
        while found := await pump.next(task.done):
            yield found[0]
            # Only now: the generator does not run ahead of its reader by more than one item.
            loop.soon(pump.wanted.set)
        await loop.check()
        # Raises what the generator has raised.
        task.result()
    finally:
        # A loop that is closed has ended all its tasks, or never came to start this one.
        if loop.soon(pump.end, task):
            with trio.CancelScope(shield=True):
                await task.done.wait()


def asyncio_source(
    items: AsyncIterable[T], loop: asyncio.AbstractEventLoop
) -> AsyncGenerator[T, None]:
    """The items for a map of an asynchronous iterable of `loop`, which runs there in one task. Call
    it in the loop of the connections.
    """

    async def each() -> AsyncGenerator[T, None]:
        async for item in items:
            yield item

    generator = items if isinstance(items, AsyncGenerator) else each()
    return items_in_trio(generator, ProgramLoop(loop), trio.lowlevel.current_trio_token())


class _Pump(Generic[T]):
    """Hands the items of a generator over, one at a time. It runs in one task of asyncio, because a
    generator may rely on that.
    """

    def __init__(self, generator: AsyncGenerator[T, None], token: trio.lowlevel.TrioToken) -> None:
        self._generator = generator
        self._token = token
        self._item: tuple[T] | None = None
        self._there = trio.Event()
        self._over = False
        """Set in the loop's thread."""
        self.wanted = asyncio.Event()

    async def run(self) -> None:
        """Take the items from the generator, each when it is wanted. Runs under asyncio."""
        try:
            async for item in self._generator:
                if self._over:
                    # The generator has caught its cancellation, and no task wants its items any
                    # more.
                    return
                self._token.run_sync_soon(self._arrived, item)
                await self.wanted.wait()
                self.wanted.clear()
        finally:
            await self._generator.aclose()

    def end(self, task: AsyncioTask[None]) -> None:
        """Take no more items, and cancel `task`, which is that of `run`. Call it in the loop's
        thread.
        """
        self._over = True
        task.cancel()

    async def next(self, done: trio.Event) -> tuple[T] | None:
        """Wait for the next item; None when there is none any more. Runs under trio. `done` is set
        when the task of `run` has ended.
        """
        async with trio.open_nursery() as nursery:

            async def look_for_the_end() -> None:
                await done.wait()
                self._there.set()

            nursery.start_soon(look_for_the_end)
            await self._there.wait()
            nursery.cancel_scope.cancel()
        # An item that came together with the end is given first; the next call finds the end.
        found, self._item, self._there = self._item, None, trio.Event()
        return found

    def _arrived(self, item: T) -> None:
        assert self._item is None, "one item is on its way at a time"
        self._item = (item,)
        self._there.set()
