"""Pools: members of one class or function over the nodes of the cluster, over which `map` spreads
items. What an actor gets from `self.node.pool(...)`, and the words for its options.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Hashable, Iterable
from typing import Any, Literal, ParamSpec, Protocol, Self, TypedDict, TypeVar, Unpack, overload

import attrs

from actors.groups import Answer
from actors.messages import message
from actors.reference import Reference
from actors.retry import RetryPolicy

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
A_co = TypeVar("A_co", covariant=True)

Routing = Literal["least-loaded", "round-robin", "random", "hash"]

OnError = Literal["raise", "return", "skip"]

NotReturned = Literal["raise", "skip"]
"""Where errors are no results."""


@message
@attrs.frozen
class JournalSummary:
    """One journal. `what`: the members and the method that it belongs to. `items`: how many are
    done, or None if a part of it cannot be read. `size`: bytes of its parts. `driver`: the node
    whose map works with it now, or None. `unused`: seconds since it was last used, to a minute, or
    None if that is not known, as of journals that earlier versions have written.
    """

    name: str
    what: str
    items: int | None
    size: int
    driver: str | None
    unused: float | None = None


@attrs.frozen
class MapCounts:
    """How far a `map` has come. `total`: None while the source has not ended and has no length.

    `waiting`: taken from the source and with no member. `repeated`: times that an item was handed
    to a member once more. `resumed`: of `done`, those that an earlier run of the journal has done.
    `rate`: items that this run has done per second. `seconds_left`: None if not known.
    """

    done: int
    running: int
    waiting: int
    failed: int
    repeated: int
    total: int | None
    seconds: float
    rate: float
    seconds_left: float | None
    resumed: int = 0


class MapSettings(TypedDict, total=False):
    """The keywords of `PoolInterface.map` that leave the type of its results as it is."""

    ordered: bool
    window: int | None
    batch: int | None
    timeout: float | None
    retry: RetryPolicy | None
    progress: bool
    journal: str | None


class MapChanges(MapSettings, total=False):
    """The keywords of `PoolInterface.map`."""

    on_error: OnError
    keep: bool


class PoolResults(Protocol[R_co]):
    """The results of a `map`: `async for result in pool.map(...)`, once. Nothing runs before the
    first is asked for, and what runs is cancelled when the reader stops.

    An interface because `actors` never imports `runtime`, which has `MapResults`.
    """

    def counts(self) -> MapCounts:
        """How far it has come."""
        ...

    def progress(self, every: float = 0.5) -> AsyncIterator[MapCounts]:
        """How far it has come, each `every` seconds, until all items are done or it was closed."""
        ...

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> R_co:
        """The next result. Raises what its item has ended with, if `on_error` is "raise"."""
        ...

    async def aclose(self) -> None:
        """Read no more: cancel what runs. Closing twice is closing once."""
        ...

    async def __aenter__(self) -> Self:
        """The results, closed when the block is left."""
        ...

    async def __aexit__(self, *exc_info: object) -> None: ...


class PoolInterface(Protocol[A_co]):
    """A pool as one node sees it. `async with` stops it at the end of the block; otherwise one
    without a name ends with the node that opened it, and a named one when `stop` is called.

    An interface because `actors` never imports `runtime`, which has `Pool`.
    """

    @property
    def name(self) -> str:
        """The pool's name, unique in the cluster."""
        ...

    def members(self) -> tuple[A_co, ...]:
        """Handles of the members, as this node knows them. Never waits."""
        ...

    async def ready(self, count: int = 1) -> Self:
        """Wait until there are so many members; returns the pool itself. Raises
        `PoolStoppedError`.
        """
        ...

    async def resize(
        self,
        size: int | None = None,
        *,
        per_node: int | None = None,
        min: int | None = None,
        max: int | None = None,
    ) -> None:
        """Have another size from now on. Raises TypeError or ValueError for sizes that make no
        sense.
        """
        ...

    @overload
    def map(
        self,
        method: Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        *,
        keep: Literal[True],
        on_error: NotReturned = ...,
        **options: Unpack[MapSettings],
    ) -> PoolResults[Reference[R]]: ...
    @overload
    def map(
        self,
        method: Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        *,
        keep: Literal[False] = ...,
        on_error: Literal["return"],
        **options: Unpack[MapSettings],
    ) -> PoolResults[R | Exception]: ...
    @overload
    def map(
        self,
        method: Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        *,
        keep: Literal[False] = ...,
        on_error: NotReturned = ...,
        **options: Unpack[MapSettings],
    ) -> PoolResults[R]: ...
    @overload
    def map(
        self,
        method: Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        **options: Unpack[MapChanges],
    ) -> PoolResults[Any]: ...
    def map(
        self,
        method: Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        **options: Unpack[MapChanges],
    ) -> PoolResults[Any]:
        """Run a method for each item, on the member that asks next. `items` may be endless; a plain
        iterable is read on this node's event loop. All options may be left out:

        - `ordered`: results in the order of the items. False: as they come.
        - `window`: how many items may be taken from the source before their results are given. By
          default what keeps the members busy, 8192 items or 64 MiB at most.
        - `batch`: items that travel together. By default as many as take some 50 ms.
        - `timeout`: seconds for each item, which then travels alone. By default no limit.
        - `retry`: a `RetryPolicy`. It repeats items that raised what it lists and, with
          `repeat_unknown`, those that may have run. By default only what certainly did not run is
          run again, or what may have run if the method is idempotent.
        - `on_error`: "raise" the first error and end, "return" errors in the places of results, or
          "skip" them.
        - `keep`: results stay with their members, and you get references to them. Items that run
          when you leave run to their end.
        - `progress`: a progress bar on stderr: by rich (the extra `cli`), or lines of text without
          it, or if stderr is not a terminal.
        - `journal`: a name under which the cluster's store keeps which items are done. By default
          none. Call `map` again with the same items after its driver has died: what was given is
          given again and not run again. In place of results that are too large to be kept,
          `AlreadyDone` is given.

        An item that three members have died of is given up with `PoisonedItemError`. Raises
        TypeError or ValueError for what makes no sense.
        """
        ...

    @overload
    def starmap(
        self,
        method: Callable[..., R],
        items: Iterable[Iterable[object]] | AsyncIterable[Iterable[object]],
        *,
        keep: Literal[True],
        on_error: NotReturned = ...,
        **options: Unpack[MapSettings],
    ) -> PoolResults[Reference[R]]: ...
    @overload
    def starmap(
        self,
        method: Callable[..., R],
        items: Iterable[Iterable[object]] | AsyncIterable[Iterable[object]],
        *,
        keep: Literal[False] = ...,
        on_error: Literal["return"],
        **options: Unpack[MapSettings],
    ) -> PoolResults[R | Exception]: ...
    @overload
    def starmap(
        self,
        method: Callable[..., R],
        items: Iterable[Iterable[object]] | AsyncIterable[Iterable[object]],
        *,
        keep: Literal[False] = ...,
        on_error: NotReturned = ...,
        **options: Unpack[MapSettings],
    ) -> PoolResults[R]: ...
    @overload
    def starmap(
        self,
        method: Callable[..., R],
        items: Iterable[Iterable[object]] | AsyncIterable[Iterable[object]],
        **options: Unpack[MapChanges],
    ) -> PoolResults[Any]: ...
    def starmap(
        self,
        method: Callable[..., R],
        items: Iterable[Iterable[object]] | AsyncIterable[Iterable[object]],
        **options: Unpack[MapChanges],
    ) -> PoolResults[Any]:
        """Like `map`, for methods of several arguments: each item is a tuple of them."""
        ...

    async def submit(
        self, method: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Reference[R]:
        """Call a method of the member with the least to do; returns a reference to the result,
        which stays there. Raises `EmptyPoolError`.
        """
        ...

    async def call_all(
        self, method: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> list[Answer[R]]:
        """Call a method of all members in parallel, and wait for all answers. A member on a node
        that cannot be reached at the moment is not called: its answer is a `NodeUnreachableError`.
        """
        ...

    def choose(self, routing: Routing = "least-loaded", *, key: Hashable = None) -> A_co:
        """The handle of one member; "hash" gives the same one for the same `key` while the members
        stay the same, and their nodes can be reached. Raises `EmptyPoolError`.
        """
        ...

    async def remove_journal(self, name: str) -> bool:
        """Remove the journal of a map, so that the next map under this name begins anew; True if
        there was one. Raises `JournalInUseError` while a map works with it.
        """
        ...

    async def stop(self) -> None:
        """Stop the pool for all that use it: members end after the items that they have, within 30
        seconds. Stopping twice is stopping once.
        """
        ...

    async def __aenter__(self) -> Self:
        """The pool itself, stopped when the block is left."""
        ...

    async def __aexit__(self, *exc_info: object) -> None: ...
