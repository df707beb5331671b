"""Values on disk: those that do not fit into memory.

Each is a file that has no name, so that the kernel removes it with the process, however that ends. Files are written and read from worker
threads, and read into memory rather than mapped: a broken disk is then an `OSError`, and not the end of the process.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import trio

from runtime.environment import Environment
from runtime.references.memory.ends import Ends

ALIGNMENT: Final = 64
"""Bytes: each buffer begins at a multiple, so that arrays of any type can lie in it."""

_MOST_BUFFERS = 512
"""For one system call; Linux takes 1024."""

Buffer = bytes | bytearray | memoryview


class _File:
    """The descriptor of a file without a name. It is closed with the last who uses it, so never while a thread reads."""

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
        """The buffers again, read-only, in memory of their own that is freed when all of them are gone.

        Raises `OSError` for a disk that cannot be read or too little memory, and `trio.ClosedResourceError` after `close`.
        """
        if self._file is None:
            raise trio.ClosedResourceError("the value was removed from the disk; nobody held it")
        file = self._file
        descriptor = file.descriptor
        try:
            return await self._environment.in_thread(lambda: _read(descriptor, self._sizes))
        finally:
            # The thread has the number alone, and is waited for: this is who keeps the file open meanwhile.
            del file

    def close(self) -> None:
        """Remove it from the disk, as soon as reads that have begun are done. Again: nothing happens."""
        self._file = None


class Spill:
    """Writes values to files in `directory`, by default that of TMPDIR or /var/tmp, which is on disk where /tmp is memory.

    For one thread. What is on disk needs a descriptor for each value.
    """

    def __init__(self, environment: Environment, directory: Path | None = None) -> None:
        self.directory = directory if directory is not None else Path(os.environ.get("TMPDIR") or "/var/tmp")
        self._environment = environment
        self._ends: Ends[int] = Ends()
        self._on_disk = 0

    @property
    def on_disk(self) -> int:
        """Bytes of the values that are on disk."""
        for size in self._ends.gone():
            self._on_disk -= size
        return self._on_disk

    async def write(self, buffers: Iterable[Buffer]) -> Spilled | OSError:
        """Write a value. The buffers must be contiguous, and stay as they are meanwhile.

        Returns an `OSError` for a disk that is full or broken, and leaves nothing there. It is not raised: the frames of its traceback
        would keep the value in memory for as long as a log, or the garbage collector, has the error (since Python 3.12 those of the
        callers as well).
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
        pieces.extend(piece for piece in (view, memoryview(bytes(-view.nbytes % ALIGNMENT))) if piece.nbytes)
    position = 0
    while pieces:
        written = os.pwritev(descriptor, pieces[:_MOST_BUFFERS], position)
        if not written:
            raise OSError(errno.EIO, f"the disk takes no more of a value after {position} bytes")
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
    return tuple(memory.toreadonly()[start : start + size] for start, size in zip(starts, sizes, strict=True))


def _after(pieces: list[memoryview], written: int) -> list[memoryview]:
    """What is left of the pieces after so many bytes."""
    for number, piece in enumerate(pieces):
        if written < piece.nbytes:
            return [piece[written:], *pieces[number + 1 :]]
        written -= piece.nbytes
    return []
