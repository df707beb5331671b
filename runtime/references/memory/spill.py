"""Values on disk: those that do not fit into memory.

Each is a file that has no name, so that the kernel removes it with the process, however that ends.
Files are written and read from worker threads, and read into memory rather than mapped: a broken
disk is then an `OSError`, and not the end of the process.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

import trio

from runtime.environment import Environment
from runtime.references.memory.pool import FinalizerQueue

# Which values stay in memory, and which are written to disk when there is too little of it. No I/O,
# no clock.

K = TypeVar("K", bound=Hashable)


WORTH_A_FILE: Final = 16 * 1024
"""Bytes. Smaller values stay in memory: a descriptor and a file's pages would cost more than they
save.
"""


class MemoryBudget(Generic[K]):
    """Values that may take `limit` bytes of memory together; those of fewer than `worth_a_file`
    bytes always stay.
    """

    def __init__(self, limit: int, worth_a_file: int = WORTH_A_FILE) -> None:
        self.limit = limit
        self._worth_a_file = worth_a_file
        self._small: dict[K, int] = {}
        """Those that stay."""
        self._large: OrderedDict[K, int] = OrderedDict()
        """Least recently used first."""
        self._in_memory = 0

    @property
    def in_memory(self) -> int:
        """Bytes of all values that were added and not removed."""
        return self._in_memory

    def add(self, key: K, size: int) -> None:
        """A value is in memory, and is used now. Raises `ValueError` for a key that is there, or a
        size below 0.
        """
        if key in self._small or key in self._large or size < 0:
            raise ValueError(
                f"value {key!r} of {size} bytes cannot be added: it is there already, or has no "
                "size"
            )
        (self._large if size >= self._worth_a_file else self._small)[key] = size
        self._in_memory += size

    def on_used(self, key: K) -> None:
        """A value is used now. One that is not in memory any more changes nothing."""
        if key in self._large:
            self._large.move_to_end(key)

    def pin(self, key: K) -> None:
        """A value must stay in memory from now on: it is read there by others."""
        size = self._large.pop(key, None)
        if size is not None:
            self._small[key] = size

    def remove(self, key: K) -> None:
        """A value is not in memory any more: it is on disk, or no reference to it is left. One that
        is not there changes nothing.
        """
        size = self._small.pop(key, None)
        if size is None:
            size = self._large.pop(key, 0)
        self._in_memory -= size

    def victims(self) -> list[K]:
        """Which values to write to disk so that the others fit, least recently used first; all that
        can be if they do not fit even so.

        They count until they are removed, so ask again only when these have been.
        """
        found: list[K] = []
        surplus = self._in_memory - self.limit
        for key, size in self._large.items():
            if surplus <= 0:
                break
            found.append(key)
            surplus -= size
        return found


ALIGNMENT: Final = 64
"""Bytes: each buffer begins at a multiple, so that arrays of any type can lie in it."""


_MOST_BUFFERS = 512
"""For one system call; Linux takes 1024."""


Buffer = bytes | bytearray | memoryview


class _File:
    """The descriptor of a file without a name. It is closed with the last who uses it, so never
    while a thread reads.
    """

    __slots__ = ("descriptor", "token")

    def __init__(self, descriptor: int, token: object) -> None:
        self.descriptor = descriptor
        self.token = token

    def __del__(self) -> None:
        os.close(self.descriptor)


class Spilled:
    """One value on disk, until it is closed, or garbage."""

    def __init__(self, environment: Environment, file: _File, sizes: Sequence[int]) -> None:
        self._environment = environment
        self._file: _File | None = file
        self._sizes = sizes

    @property
    def size(self) -> int:
        """The bytes of all buffers together."""
        return sum(self._sizes)

    async def read(self) -> tuple[memoryview, ...]:
        """The buffers again, read-only, in memory of their own that is freed when all of them are
        gone.

        Raises `OSError` for a disk that cannot be read or too little memory, and
        `trio.ClosedResourceError` after `close`.
        """
        if self._file is None:
            raise trio.ClosedResourceError("the value was removed from disk: no reference was left")
        file = self._file
        descriptor = file.descriptor
        try:
            return await self._environment.in_thread(lambda: _read(descriptor, self._sizes))
        finally:
            # The thread has the number alone, and is waited for: this is who keeps the file open
            # meanwhile.
            del file

    def close(self) -> None:
        """Remove it from the disk, as soon as reads that have begun are done. Again: nothing
        happens.
        """
        self._file = None


class Spill:
    """Writes values to files in `directory`, by default that of TMPDIR or /var/tmp, which is on
    disk where /tmp is memory.

    For one thread. What is on disk needs a descriptor for each value.
    """

    def __init__(self, environment: Environment, directory: Path | None = None) -> None:
        self.directory = (
            directory if directory is not None else Path(os.environ.get("TMPDIR") or "/var/tmp")
        )
        self._environment = environment
        self._ends: FinalizerQueue[int] = FinalizerQueue()
        self._on_disk = 0

    @property
    def on_disk(self) -> int:
        """Bytes of the values that are on disk."""
        for size in self._ends.gone():
            self._on_disk -= size
        return self._on_disk

    async def write(self, buffers: Iterable[Buffer]) -> Spilled | OSError:
        """Write a value. The buffers must be contiguous, and stay as they are meanwhile.

        Returns an `OSError` for a disk that is full or broken, and leaves nothing there. It is not
        raised: the frames of its traceback would keep the value in memory for as long as a log, or
        the garbage collector, has the error (since Python 3.12 those of the callers as well).
        """
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        sizes = [view.nbytes for view in views]
        descriptor = await self._environment.in_thread(lambda: _written(self.directory, views))
        if isinstance(descriptor, OSError):
            return descriptor
        size = sum(sizes)
        self._on_disk += size
        return Spilled(self._environment, _File(descriptor, self._ends.token(size)), sizes)


def _written(directory: Path, views: Sequence[memoryview]) -> int | OSError:
    try:
        descriptor = _nameless(directory)
        try:
            _write(descriptor, views)
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as error:
        return error.with_traceback(None)
    return descriptor


def _write(descriptor: int, views: Sequence[memoryview]) -> None:
    pieces: list[memoryview] = []
    for view in views:
        pieces.extend(
            piece for piece in (view, memoryview(bytes(-view.nbytes % ALIGNMENT))) if piece.nbytes
        )
    position = 0
    while pieces:
        written = os.pwritev(descriptor, pieces[:_MOST_BUFFERS], position)
        if not written:
            raise OSError(errno.EIO, f"the disk accepts no more of a value after {position} bytes")
        position += written
        pieces = _after(pieces, written)


def _nameless(directory: Path) -> int:
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except (AttributeError, OSError) as error:
        # Not every file system has them: EOPNOTSUPP, or EISDIR where the kernel does not know them.
        if isinstance(error, OSError) and error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
            raise
    descriptor, name = tempfile.mkstemp(prefix="understudy-", dir=directory)
    try:
        os.unlink(name)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _read(descriptor: int, sizes: Sequence[int]) -> tuple[memoryview, ...]:
    starts: list[int] = []
    total = 0
    for size in sizes:
        starts.append(total)
        total += size + -size % ALIGNMENT
    # Not a bytearray: it would be filled with zeros first.
    memory = memoryview(mmap.mmap(-1, total, mmap.MAP_PRIVATE) if total else b"")
    position = 0
    while position < total:
        count = os.preadv(descriptor, [memory[position:]], position)
        if not count:
            raise OSError(errno.EIO, f"a value on disk ends after {position} of {total} bytes")
        position += count
    return tuple(
        memory.toreadonly()[start : start + size] for start, size in zip(starts, sizes, strict=True)
    )


def _after(pieces: list[memoryview], written: int) -> list[memoryview]:
    """What is left of the pieces after so many bytes."""
    for number, piece in enumerate(pieces):
        if written < piece.nbytes:
            return [piece[written:], *pieces[number + 1 :]]
        written -= piece.nbytes
    return []
