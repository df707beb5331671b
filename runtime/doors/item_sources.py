"""The sources of a pool's items in programs without trio: what blocks must not block the loop of
connections.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import TypeVar

import trio

T = TypeVar("T")


def plain_source(items: Iterable[T]) -> Iterable[T] | AsyncIterable[T]:
    """The items for a map: what is in memory as it is, and all else read in a thread."""
    known: object = items
    return items if isinstance(known, list | tuple | range) else _read_in_thread(items)


async def _read_in_thread(items: Iterable[T]) -> AsyncIterator[T]:
    """Each item, asked for in a thread: the source may block, and the loop must not."""
    iterator = iter(items)
    while found := await trio.to_thread.run_sync(
        lambda: _next_of(iterator), abandon_on_cancel=True
    ):
        yield found[0]


def _next_of(iterator: Iterator[T]) -> tuple[T] | tuple[()]:
    # StopIteration cannot be raised into a coroutine.
    for item in iterator:
        return (item,)
    return ()
