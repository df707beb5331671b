"""Pools at asyncio's door: for programs that have connected, and for actors under asyncio."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Callable,
    Hashable,
    Iterable,
)
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import attrs

from actors.documentation import documented_as
from actors.errors import NotAMemberError
from actors.groups import Answer
from actors.method import Stream
from actors.pools import MapChanges, MapCounts, MapSettings, NotReturned, Routing
from actors.reference import Reference
from runtime.doors.asyncio_door import AioDoor, running_loop
from runtime.doors.asyncio_sources import asyncio_source
from runtime.doors.item_sources import plain_source
from runtime.doors.portal import next_of
from runtime.pools.map_run import MapResults
from runtime.pools.pool import Pool, no_attribute

P = ParamSpec("P")
A = TypeVar("A")
T = TypeVar("T")
R = TypeVar("R")


class AioResults(Stream[R]):
    """The results of a map: `async for image in pool.map(Resizer.run, paths)`, once. Leaving
    `async with`, `aclose` or cancellation cancels what runs.
    """

    def __init__(
        self, door: AioDoor, make: Callable[[], MapResults[R]], *, keep: bool | None = False
    ) -> None:
        self._door = door
        self._make = make
        self._keep = keep
        self._results: MapResults[R] | None = None

    async def __anext__(self) -> R:
        """Return the next result. Raises StopAsyncIteration at the end, and, if `on_error` is
        "raise", the error of an item.
        """
        found = await self._door.wait(self._next)
        if not found:
            raise StopAsyncIteration
        (value,) = found
        if self._keep and isinstance(value, Reference):
            # To be waited for in the loop of its reader.
            return cast("R", self._door.reference(cast("Reference[object]", value)))
        return value

    async def _next(self) -> tuple[R] | tuple[()]:
        return await next_of(self._begun())

    def _begun(self) -> MapResults[R]:
        # Called at the first use, in the loop of the connections.
        if self._results is None:
            self._results = self._make()
        return self._results

    @documented_as(MapResults.counts)
    async def counts(self) -> MapCounts:
        """How far it has come."""
        return await self._door.now(lambda: self._begun().counts())

    @documented_as(MapResults.progress)
    async def progress(self, every: float = 0.5) -> AsyncGenerator[MapCounts, None]:
        """How far it has come, each `every` seconds, until all items are done."""
        states = await self._door.now(lambda: self._begun().progress(every))

        async def state() -> MapCounts | None:
            return await anext(states, None)

        while (counts := await self._door.wait(state)) is not None:
            yield counts

    async def aclose(self) -> None:
        """Read no more: cancel what runs. Closing twice is closing once."""
        if self._results is None:
            return
        try:
            await self._door.wait(self._results.aclose)
        except NotAMemberError:
            # Its connection was closed, which has ended the map as well.
            return


@documented_as(Pool)
class AioPool(Generic[A]):
    """A pool, for tasks of asyncio. `async with pool` stops it at the end of the block."""

    def __init__(self, door: AioDoor, pool: Pool[A]) -> None:
        self._door = door
        self._pool = pool

    if not TYPE_CHECKING:  # to a type checker a pool has no other methods

        def __getattr__(self, name):
            raise no_attribute(None if name.startswith("_") else self._pool._actor, name)

    @property
    def name(self) -> str:
        """The pool's name, unique in the cluster."""
        return self._pool.name

    @overload
    def map(
        self,
        method: Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        *,
        keep: Literal[True],
        on_error: NotReturned = ...,
        **options: Unpack[MapSettings],
    ) -> AioResults[Reference[R]]: ...
    @overload
    def map(
        self,
        method: Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        *,
        keep: Literal[False] = ...,
        on_error: Literal["return"],
        **options: Unpack[MapSettings],
    ) -> AioResults[R | Exception]: ...
    @overload
    def map(
        self,
        method: Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        *,
        keep: Literal[False] = ...,
        on_error: NotReturned = ...,
        **options: Unpack[MapSettings],
    ) -> AioResults[R]: ...
    @overload
    def map(
        self,
        method: Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        **options: Unpack[MapChanges],
    ) -> AioResults[Any]: ...
    @documented_as(Pool.map)
    def map(
        self,
        method: Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        **options: Unpack[MapChanges],
    ) -> AioResults[Any]:
        """The results of a method for each item. An iterable is read in a thread, an asynchronous
        one in the running loop.
        """
        source = self._source(items)
        return AioResults(
            self._door,
            lambda: self._pool.map(method, source(), **options),
            keep=options.get("keep"),
        )

    @overload
    def starmap(
        self,
        method: Callable[..., R],
        items: Iterable[Iterable[object]] | AsyncIterable[Iterable[object]],
        *,
        keep: Literal[True],
        on_error: NotReturned = ...,
        **options: Unpack[MapSettings],
    ) -> AioResults[Reference[R]]: ...
    @overload
    def starmap(
        self,
        method: Callable[..., R],
        items: Iterable[Iterable[object]] | AsyncIterable[Iterable[object]],
        *,
        keep: Literal[False] = ...,
        on_error: Literal["return"],
        **options: Unpack[MapSettings],
    ) -> AioResults[R | Exception]: ...
    @overload
    def starmap(
        self,
        method: Callable[..., R],
        items: Iterable[Iterable[object]] | AsyncIterable[Iterable[object]],
        *,
        keep: Literal[False] = ...,
        on_error: NotReturned = ...,
        **options: Unpack[MapSettings],
    ) -> AioResults[R]: ...
    @overload
    def starmap(
        self,
        method: Callable[..., R],
        items: Iterable[Iterable[object]] | AsyncIterable[Iterable[object]],
        **options: Unpack[MapChanges],
    ) -> AioResults[Any]: ...
    def starmap(
        self,
        method: Callable[..., R],
        items: Iterable[Iterable[object]] | AsyncIterable[Iterable[object]],
        **options: Unpack[MapChanges],
    ) -> AioResults[Any]:
        """Like `map`, for methods of several arguments: each item is a tuple of them."""
        source = self._source(items)
        return AioResults(
            self._door,
            lambda: self._pool.starmap(method, source(), **options),
            keep=options.get("keep"),
        )

    def _source(
        self, items: Iterable[T] | AsyncIterable[T]
    ) -> Callable[[], Iterable[T] | AsyncIterable[T]]:
        loop = running_loop()
        if isinstance(items, AsyncIterable):
            return lambda: asyncio_source(items, loop)
        return lambda: plain_source(items)

    @documented_as(Pool.submit)
    async def submit(
        self, method: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Reference[R]:
        """Call a method of the member with the least to do."""
        kept = await self._door.wait(lambda: self._pool.submit(method, *args, **kwargs))
        return self._door.reference(kept)

    @documented_as(Pool.call_all)
    async def call_all(
        self, method: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> list[Answer[R]]:
        """Call a method of all members, side by side, and wait for all answers."""
        answers = await self._door.wait(lambda: self._pool.call_all(method, *args, **kwargs))
        return [attrs.evolve(one, member=self._door.handle(one.member)) for one in answers]

    @documented_as(Pool.choose)
    async def choose(self, routing: Routing = "least-loaded", *, key: Hashable = None) -> A:
        """The handle of one member."""
        chosen = await self._door.now(lambda: self._pool.choose(routing, key=key))
        return cast("A", self._door.handle_of_pool(chosen))

    async def members(self) -> tuple[A, ...]:
        """Handles of the members as they are now."""
        found = await self._door.now(self._pool.members)
        return tuple(cast("A", self._door.handle_of_pool(one)) for one in found)

    @documented_as(Pool.resize)
    async def resize(
        self,
        size: int | None = None,
        *,
        per_node: int | None = None,
        min: int | None = None,
        max: int | None = None,
    ) -> None:
        """Have another size from now on."""
        await self._door.wait(lambda: self._pool.resize(size, per_node=per_node, min=min, max=max))

    @documented_as(Pool.remove_journal)
    async def remove_journal(self, name: str) -> bool:
        """Remove the journal of a map."""
        return await self._door.wait(lambda: self._pool.remove_journal(name))

    @documented_as(Pool.stop)
    async def stop(self) -> None:
        """Stop it for all that use it."""
        await self._door.wait(self._pool.stop)

    async def __aenter__(self) -> Self:
        """The pool itself, stopped when the block is left."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()  # noqa: ASYNC102  a cancelled task of asyncio may await

    def __repr__(self) -> str:
        return f"<asyncio {repr(self._pool).removeprefix('<')}"
