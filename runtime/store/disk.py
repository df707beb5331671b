"""The medium that an embedded store is written to: a file, with its blocking calls in a thread, or
another implementation of `Medium`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import trio

from runtime.environment import is_refused_thread
from runtime.store.changes import Changes
from runtime.store.memory import Snapshot

if TYPE_CHECKING:
    from runtime.store.file import StoreFile


T = TypeVar("T")


class Medium(Protocol):
    """The disk of a store. Its methods are called one at a time. `runtime.store.file.StoreFile`
    documents what each method promises and raises. The simulator has other implementations.
    """

    async def load(self) -> Snapshot:
        """Return everything that was committed. Raises `StoreDataError` if the data is damaged."""
        ...

    async def check_room(self, size: int) -> None:
        """Raise `StoreDataError` if the disk has no room for so many bytes of keys and values, as
        `StoreFile.check_room` says. Takes its turn: writes that were begun have ended.
        """
        ...

    async def write(self, changes: Changes) -> None:
        """Commit `changes`. Raises like `StoreFile.write`."""
        ...

    async def rewrite(self, snapshot: Snapshot) -> None:
        """Replace everything on the medium by `snapshot`, in one commit. Raises like `write`."""
        ...

    def close(self) -> None:
        """Release the medium. It must not be used afterwards."""
        ...


Disk = Callable[[Path], Awaitable[Medium]]
"""Opens the medium in a directory. Raises `StoreDataError`."""


class FileMedium:
    """A `StoreFile` whose blocking calls run in a thread, one at a time."""

    def __init__(self, file: StoreFile, limiter: trio.CapacityLimiter) -> None:
        self._file = file
        self._limiter = limiter

    async def load(self) -> Snapshot:
        """Read and check the whole file, in a thread."""
        return await self._in_thread(self._file.load)

    async def check_room(self, size: int) -> None:
        """Look at the disk, in the thread that writes."""
        await self._in_thread(partial(self._file.check_room, size))

    async def write(self, changes: Changes) -> None:
        """Commit and sync, in a thread. Cancelling does not stop the thread: the caller shields
        this.
        """
        await self._in_thread(partial(self._file.write, changes))

    async def rewrite(self, snapshot: Snapshot) -> None:
        """Replace the content of the file and sync, in a thread, like `write`."""
        await self._in_thread(partial(self._file.rewrite, snapshot))

    def close(self) -> None:
        """Close the file. Blocks for as long as moving the log into the file takes."""
        self._file.close()

    async def _in_thread(self, function: Callable[[], T]) -> T:
        try:
            return await trio.to_thread.run_sync(function, limiter=self._limiter)
        except RuntimeError as error:
            if not is_refused_thread(error):
                raise
        # The system grants no thread. All nodes wait for their store, so it blocks the event loop
        # for the moment that a write takes, and does not end.
        return function()


async def open_file(directory: Path) -> Medium:
    """Open the file of the store in `directory`, a new one if there is none. Raises
    `StoreDataError`; see `Disk`.
    """
    # Imported here because it imports sqlite3, which nodes without a store on disk do not need.
    from runtime.store.file import StoreFile

    # One token: `StoreFile` is not thread-safe, so two of its calls must never overlap.
    limiter = trio.CapacityLimiter(1)
    return FileMedium(await trio.to_thread.run_sync(StoreFile, directory, limiter=limiter), limiter)
