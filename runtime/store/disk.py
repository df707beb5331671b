"""The medium that an embedded store is written to: a file, with its blocking calls in a thread, or
another implementation of `Medium`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import trio

from runtime.store.changes import Changes
from runtime.store.memory import Snapshot

if TYPE_CHECKING:
    from runtime.store.file import StoreFile


class Medium(Protocol):
    """The disk of a store. Its methods are called one at a time. `runtime.store.file.StoreFile`
    documents what each method promises and raises. The simulator has other implementations.
    """

    async def load(self) -> Snapshot:
        """Return everything that was committed. Raises `StoreDataError` if the data is damaged."""
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
        return await trio.to_thread.run_sync(self._file.load, limiter=self._limiter)

    async def write(self, changes: Changes) -> None:
        """Commit and sync, in a thread. Cancelling does not stop the thread: the caller shields
        this.
        """
        await trio.to_thread.run_sync(self._file.write, changes, limiter=self._limiter)

    async def rewrite(self, snapshot: Snapshot) -> None:
        """Replace the content of the file and sync, in a thread, like `write`."""
        await trio.to_thread.run_sync(self._file.rewrite, snapshot, limiter=self._limiter)

    def close(self) -> None:
        """Close the file. Blocks for as long as moving the log into the file takes."""
        self._file.close()


async def open_file(directory: Path) -> Medium:
    """Open the file of the store in `directory`, a new one if there is none. Raises
    `StoreDataError`; see `Disk`.
    """
    # Imported here because it imports sqlite3, which nodes without a store on disk do not need.
    from runtime.store.file import StoreFile

    # One token: `StoreFile` is not thread-safe, so two of its calls must never overlap.
    limiter = trio.CapacityLimiter(1)
    return FileMedium(await trio.to_thread.run_sync(StoreFile, directory, limiter=limiter), limiter)
