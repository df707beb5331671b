"""The sources of a pool's items in programs without trio: reading them may block, and must not
block the event loop of the connections.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sized
from typing import TypeVar

import trio

from actors.short_repr import short_repr

T = TypeVar("T")


def plain_source(items: Iterable[T]) -> Iterable[T] | AsyncIterable[T]:
    """The items for a map: what is in memory as it is, and all else read in a thread. Raises
    TypeError for what is no iterable.
    """
    known: object = items
    if not isinstance(known, Iterable):
        raise TypeError(f"map takes the items as an iterable, not {short_repr(known)}")
    if isinstance(known, list | tuple | range):
        return items
    return _SizedSource(items, len(known)) if isinstance(known, Sized) else _ThreadSource(items)


class _ThreadSource(AsyncIterable[T]):
    """Reads each item in a thread: the source may block, and the event loop must not."""

    def __init__(self, items: Iterable[T]) -> None:
        self._items = items

    async def __aiter__(self) -> AsyncIterator[T]:
        iterator = iter(self._items)
        # One thread at a time, since the next item is asked for after this one. It is abandoned on
        # cancellation: a source may block for ever, and its map must end all the same.
        while found := await trio.to_thread.run_sync(
            lambda: _next_of(iterator), abandon_on_cancel=True
        ):
            yield found[0]


class _SizedSource(_ThreadSource[T]):
    """One that says how many items it has, so that the time left is known."""

    def __init__(self, items: Iterable[T], length: int) -> None:
        super().__init__(items)
        self._length = length

    def __len__(self) -> int:
        return self._length


def _next_of(iterator: Iterator[T]) -> tuple[T] | tuple[()]:
    # StopIteration cannot be raised into a coroutine.
    for item in iterator:
        return (item,)
    return ()
