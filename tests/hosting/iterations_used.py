"""An actor and functions that let the end of an iteration out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from actors import Actor, method
from runtime.aio import AsyncioActor


def ended() -> Iterator[int]:
    """Return an iterator that has ended, with a value."""
    return iter(_ended())


def _ended() -> Iterator[int]:
    yield from ()
    return 3  # type: ignore[return-value]


async def _later() -> AsyncIterator[int]:
    numbers: list[int] = []
    for number in numbers:
        yield number


class Shelf(Actor):
    """Each method looks for a thing that is not there."""

    @method
    async def look(self) -> int:
        return next(ended())

    @method
    def look_in_thread(self) -> int:
        return next(ended())

    @method(concurrent=True)
    async def look_beside(self) -> int:
        return next(ended())

    @method(concurrent=True)
    def look_in_thread_beside(self) -> int:
        return next(ended())

    @method
    async def all(self) -> AsyncIterator[int]:
        yield 1
        yield next(ended())

    @method
    async def all_later(self) -> AsyncIterator[int]:
        yield 1
        yield await anext(_later())

    @method
    async def own(self) -> None:
        raise RuntimeError("coroutine raised StopIteration")


class AsyncioShelf(AsyncioActor):
    """The same under asyncio."""

    @method
    async def look(self) -> int:
        return next(ended())

    @method
    async def all(self) -> AsyncIterator[int]:
        yield 1
        yield next(ended())


async def look() -> int:
    """An `async def` function for `run`."""
    return next(ended())


def look_in_thread() -> int:
    """A plain function for `run`."""
    return next(ended())
