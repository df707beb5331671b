"""Where an embedded store is kept: a file served by one thread, or another implementation of
`Medium`.
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
    """What a store is written to, one call at a time; see `runtime.store.file.StoreFile` for what
    each promises and raises. The simulator has disks of its own.
    """

    async def load(self) -> Snapshot:
        """Everything that was committed."""
        ...

    async def write(self, changes: Changes) -> None:
        """Commit `changes`."""
        ...

    async def rewrite(self, snapshot: Snapshot) -> None:
        """Commit `snapshot` in the place of all there is."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


Disk = Callable[[Path], Awaitable[Medium]]
"""Opens the medium in a directory. Raises `StoreDataError`."""


class FileMedium:
    """A `StoreFile`, whose blocking calls are made in a thread."""

    def __init__(self, file: StoreFile, limiter: trio.CapacityLimiter) -> None:
        self._file = file
        self._limiter = limiter

    async def load(self) -> Snapshot:
        """See `Medium.load`."""
        return await trio.to_thread.run_sync(self._file.load, limiter=self._limiter)

    async def write(self, changes: Changes) -> None:
        """See `Medium.write`."""
        await trio.to_thread.run_sync(self._file.write, changes, limiter=self._limiter)

    async def rewrite(self, snapshot: Snapshot) -> None:
        """See `Medium.rewrite`."""
        await trio.to_thread.run_sync(self._file.rewrite, snapshot, limiter=self._limiter)

    def close(self) -> None:
        """See `Medium.close`."""
        self._file.close()


async def open_file(directory: Path) -> Medium:
    """The file of the store in `directory`; see `Disk`."""
    # Brings SQLite, which nodes without a file do not need.
    from runtime.store.file import StoreFile

    limiter = trio.CapacityLimiter(1)
    return FileMedium(await trio.to_thread.run_sync(StoreFile, directory, limiter=limiter), limiter)
