"""Streams: what a caller holds of an async-generator method while its items come.

A generator method of an actor runs where the actor is; its items come to the caller one by one, and the generator is held up when the
caller is slow.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self, TypedDict, TypeVar

T = TypeVar("T")


class StreamChanges(TypedDict, total=False):
    """The keywords that `options(...)` of a stream method takes: `timeout`, in seconds, covers the whole stream."""

    timeout: float | None


class Stream(AsyncIterator[T]):
    """The items that a generator method of an actor yields: once, and in order.

    Nothing is asked of the actor before the first item is. Then the generator runs, ahead of the reader by 32 items or 4 MiB at most, and
    holds its actor's turn until it ends, unless its method is concurrent.

    Asking for an item raises what a call would raise: `NotExecutedError` where the generator certainly never ran, `RemoteError` where it
    raised, `OutcomeUnknownError` where it broke off; always after the items that had arrived before. The stream is over then. It is also
    over when the reader is cancelled while it waits for an item, as an async generator would be.

    The generator is closed, which runs its `finally` blocks, as soon as the reader stops: leaves `async with`, calls `aclose`, or drops
    the stream. One task reads a stream at a time; a second one gets `trio.BusyResourceError`.
    """

    __slots__ = ()

    @abstractmethod
    async def __anext__(self) -> T:
        """Wait for the next item. Raises StopAsyncIteration when the generator has returned, and whenever the stream is over."""

    @abstractmethod
    async def aclose(self) -> None:
        """Read no more: have the generator closed. Does not wait until it is. Closing a stream that is over is no error."""

    async def __aenter__(self) -> Self:
        """The stream itself, closed when the block is left."""
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
