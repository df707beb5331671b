"""Pools at the blocking door."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
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

from actors.blocking import BlockingReference
from actors.documentation import documented_as
from actors.groups import Answer
from actors.handle import Handle
from actors.pools import MapChanges, MapCounts, MapSettings, NotReturned, Routing
from actors.process_bound import ProcessBound
from actors.reference import Reference
from runtime.doors.blocking_door import Blocking, BlockingDoor, BlockingHandle, BlockingItems
from runtime.doors.item_sources import plain_source
from runtime.doors.time_limit import A_CALL
from runtime.pools.map_run import MapResults
from runtime.pools.pool import Pool, no_attribute
from runtime.user_errors import CHECKS

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
T = TypeVar("T")


class BlockingResults(BlockingItems[R]):
    """The results of a map: `for image in pool.map(Resizer.run, paths)`, once. Leaving `with`, or
    `close`, cancels what runs.
    """

    __slots__ = ("_keep", "_results")

    def __init__(
        self, door: BlockingDoor, results: MapResults[R], *, keep: bool | None = False
    ) -> None:
        super().__init__(door, results)
        self._results = results
        self._keep = keep

    def __next__(self) -> R:
        value = super().__next__()
        if self._keep and isinstance(value, Reference):
            # To be waited for by any thread.
            return cast("R", self._door.reference(cast("Reference[object]", value)))
        return value

    @documented_as(MapResults.counts)
    def counts(self) -> MapCounts:
        """How far it has come; any thread may ask."""
        return self._door.now(self._results.counts)

    @documented_as(MapResults.progress)
    def progress(self, every: float = 0.5) -> Iterator[MapCounts]:
        """How far it has come, each `every` seconds, until all items are done: for a thread beside
        the one that reads the results.
        """
        states = self._results.progress(every)

        async def state() -> MapCounts | None:
            return await anext(states, None)

        while (counts := self._door.wait(state)) is not None:
            yield counts


@documented_as(Pool)
class BlockingPool(ProcessBound, Generic[A]):
    """A pool, for any thread. `with pool` stops it at the end of the block."""

    def __init__(self, door: BlockingDoor, pool: Pool[A]) -> None:
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
        items: Iterable[T],
        *,
        keep: Literal[True],
        on_error: NotReturned = ...,
        **options: Unpack[MapSettings],
    ) -> BlockingResults[BlockingReference[R]]: ...
    @overload
    def map(
        self,
        method: Callable[[T], R],
        items: Iterable[T],
        *,
        keep: Literal[False] = ...,
        on_error: Literal["return"],
        **options: Unpack[MapSettings],
    ) -> BlockingResults[R | Exception]: ...
    @overload
    def map(
        self,
        method: Callable[[T], R],
        items: Iterable[T],
        *,
        keep: Literal[False] = ...,
        on_error: NotReturned = ...,
        **options: Unpack[MapSettings],
    ) -> BlockingResults[R]: ...
    @overload
    def map(
        self,
        method: Callable[[T], R],
        items: Iterable[T],
        **options: Unpack[MapChanges],
    ) -> BlockingResults[Any]: ...
    @documented_as(Pool.map)
    def map(
        self, method: Callable[[T], R], items: Iterable[T], **options: Unpack[MapChanges]
    ) -> BlockingResults[Any]:
        """The results of a method for each item: `for image in pool.map(Resizer.run, paths)`. Items
        are read in a thread of their own.
        """
        source = plain_source(items)
        with CHECKS:
            results = self._door.now(lambda: self._pool.map(method, source, **options))
        return BlockingResults(self._door, results, keep=options.get("keep"))

    @overload
    def starmap(
        self,
        method: Callable[..., R],
        items: Iterable[Iterable[object]],
        *,
        keep: Literal[True],
        on_error: NotReturned = ...,
        **options: Unpack[MapSettings],
    ) -> BlockingResults[BlockingReference[R]]: ...
    @overload
    def starmap(
        self,
        method: Callable[..., R],
        items: Iterable[Iterable[object]],
        *,
        keep: Literal[False] = ...,
        on_error: Literal["return"],
        **options: Unpack[MapSettings],
    ) -> BlockingResults[R | Exception]: ...
    @overload
    def starmap(
        self,
        method: Callable[..., R],
        items: Iterable[Iterable[object]],
        *,
        keep: Literal[False] = ...,
        on_error: NotReturned = ...,
        **options: Unpack[MapSettings],
    ) -> BlockingResults[R]: ...
    @overload
    def starmap(
        self,
        method: Callable[..., R],
        items: Iterable[Iterable[object]],
        **options: Unpack[MapChanges],
    ) -> BlockingResults[Any]: ...
    def starmap(
        self,
        method: Callable[..., R],
        items: Iterable[Iterable[object]],
        **options: Unpack[MapChanges],
    ) -> BlockingResults[Any]:
        """Like `map`, for methods of several arguments: each item is a tuple of them."""
        source = plain_source(items)
        with CHECKS:
            results = self._door.now(lambda: self._pool.starmap(method, source, **options))
        return BlockingResults(self._door, results, keep=options.get("keep"))

    @documented_as(Pool.submit)
    def submit(
        self, method: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> BlockingReference[R]:
        """Call a method of the member with the least to do."""
        return self._door.reference(
            self._door.wait(lambda: self._pool.submit(method, *args, **kwargs), A_CALL)
        )

    @documented_as(Pool.call_all)
    def call_all(
        self, method: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> list[Answer[R]]:
        """Call a method of all members, side by side, and wait for all answers."""
        answers = self._door.wait(lambda: self._pool.call_all(method, *args, **kwargs), A_CALL)
        return [attrs.evolve(one, member=self._door.handle(one.member)) for one in answers]

    @documented_as(Pool.choose)
    def choose(self, routing: Routing = "least-loaded", *, key: Hashable = None) -> Blocking[A]:
        """The handle of one member."""
        chosen = self._door.now(lambda: self._pool.choose(routing, key=key))
        return cast("type[A]", BlockingHandle(self._door, cast("Handle", chosen)))

    def members(self) -> tuple[Blocking[A], ...]:
        """Handles of the members as they are now."""
        return tuple(
            cast("type[A]", BlockingHandle(self._door, cast("Handle", one)))
            for one in self._door.now(self._pool.members)
        )

    @documented_as(Pool.resize)
    def resize(
        self,
        size: int | None = None,
        *,
        per_node: int | None = None,
        min: int | None = None,
        max: int | None = None,
    ) -> None:
        """Have another size from now on."""
        self._door.wait(lambda: self._pool.resize(size, per_node=per_node, min=min, max=max))

    @documented_as(Pool.remove_journal)
    def remove_journal(self, name: str) -> bool:
        """Remove the journal of a map."""
        return self._door.wait(lambda: self._pool.remove_journal(name))

    @documented_as(Pool.stop)
    def stop(self) -> None:
        """Stop it for all that use it."""
        self._door.wait(self._pool.stop)

    def __enter__(self) -> Self:
        """The pool itself, stopped when the block is left."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
