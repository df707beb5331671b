"""Values on disk: those that do not fit into memory.

Each value is an unnamed file (O_TMPFILE), so that the kernel removes it with the process. Files are
read and written in worker threads. They are read into memory and not mapped: a failing disk then
raises `OSError`, while a fault in a mapping kills the process (SIGBUS).
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

from runtime.environment import Environment, NoThreadError
from runtime.shared_memory.pool import FinalizerQueue

# Which values are written to disk when memory is short: the least recently used ones. No I/O and no
# clock.

K = TypeVar("K", bound=Hashable)


WORTH_A_FILE: Final = 16 * 1024
"""Bytes. Smaller values stay in memory: a descriptor and the pages of a file would cost more than
they save.
"""

DIRECTORIES: Final = ("/var/tmp", "/tmp")
"""Where values are written that have no directory of their own: the first that can be written."""

ALIGNMENT: Final = 64
"""Bytes. Each buffer begins at a multiple of this, so that arrays of any type are aligned."""

_MOST_BUFFERS = 512
"""Buffers for one system call (IOV_MAX; 1024 on Linux)."""

Buffer = bytes | bytearray | memoryview


class MemoryBudget(Generic[K]):
    """Values that may take `limit` bytes of memory together. Those of fewer than `worth_a_file`
    bytes always stay in memory.
    """

    def __init__(self, limit: int, worth_a_file: int = WORTH_A_FILE) -> None:
        self.limit = limit
        self._worth_a_file = worth_a_file
        self._small: dict[K, int] = {}
        """Sizes of the values that must stay in memory."""
        self._large: OrderedDict[K, int] = OrderedDict()
        """Sizes of the others, the least recently used first."""
        self._in_memory = 0

    @property
    def in_memory(self) -> int:
        """Bytes of all values that were added and not removed."""
        return self._in_memory

    def add(self, key: K, size: int) -> None:
        """Add a value, as the most recently used one. Raises `ValueError` for a key that was added
        already, or a negative size.
        """
        if key in self._small or key in self._large or size < 0:
            raise ValueError(
                f"value {key!r} of {size} bytes cannot be added: it is there already, or has no "
                "size"
            )
        (self._large if size >= self._worth_a_file else self._small)[key] = size
        self._in_memory += size

    def on_used(self, key: K) -> None:
        """Make a value the most recently used one. Does nothing if the value is not in memory."""
        if key in self._large:
            self._large.move_to_end(key)

    def pin(self, key: K) -> None:
        """Keep a value in memory from now on, because another process reads it there."""
        size = self._large.pop(key, None)
        if size is not None:
            self._small[key] = size

    def remove(self, key: K) -> None:
        """Remove a value, because it is on disk or no longer referenced. Does nothing if the value
        is not there.
        """
        size = self._small.pop(key, None)
        if size is None:
            size = self._large.pop(key, 0)
        self._in_memory -= size
        assert self._in_memory >= 0, "what is removed was added"

    def is_pinned(self, key: K) -> bool:
        """True if the value stays in memory, or is not here at all."""
        return key not in self._large

    def check_invariants(self) -> None:
        """Assert that the bytes are those of the values: for tests and simulations."""
        assert self._in_memory == sum(self._small.values()) + sum(self._large.values())
        assert not self._small.keys() & self._large.keys(), "a value has one size"

    def victims(self) -> list[K]:
        """Return the values to write to disk, the least recently used first, so that the rest fits;
        all candidates if even that is not enough. They count as in memory until `remove` is called,
        so call this again only after that.
        """
        found: list[K] = []
        surplus = self._in_memory - self.limit
        for key, size in self._large.items():
            if surplus <= 0:
                break
            found.append(key)
            surplus -= size
        return found


class _File:
    """The descriptor of an unnamed file. It is closed when the last object that uses it is gone, so
    never while a thread reads.
    """

    __slots__ = ("descriptor", "token")

    def __init__(self, descriptor: int, token: object) -> None:
        self.descriptor = descriptor
        self.token = token

    def __del__(self) -> None:
        os.close(self.descriptor)


class Spilled:
    """A value on disk. Its file is deleted when it is closed or garbage-collected."""

    def __init__(self, environment: Environment, file: _File, sizes: Sequence[int]) -> None:
        self._environment = environment
        self._file: _File | None = file
        self._sizes = sizes

    @property
    def size(self) -> int:
        """Bytes of all buffers together."""
        return sum(self._sizes)

    async def read(self) -> tuple[memoryview, ...]:
        """Read the buffers back: read-only, in memory of their own that is freed when all of them
        are gone.

        Raises `OSError` if the disk cannot be read or memory is short, and
        `trio.ClosedResourceError` after `close`.
        """
        if self._file is None:
            raise trio.ClosedResourceError("the value was removed from disk: no reference was left")
        file = self._file
        descriptor = file.descriptor
        try:
            return await self._environment.in_thread(lambda: _read(descriptor, self._sizes))
        finally:
            # The thread gets only the number of the descriptor. This reference keeps the file open
            # until the thread is done.
            del file

    def close(self) -> None:
        """Delete the file as soon as running reads have ended. Does nothing the second time."""
        self._file = None


class Spill:
    """Writes values to files in `directory`; by default TMPDIR or /var/tmp, which is on disk even
    where /tmp is memory, or /tmp, where only that can be written, as in containers. For one thread.
    Each value on disk needs a descriptor.
    """

    def __init__(self, environment: Environment, directory: Path | None = None) -> None:
        self.directory = directory if directory is not None else _default_directory()
        self._environment = environment
        self._ends: FinalizerQueue[int] = FinalizerQueue()
        self._on_disk = 0
        self.written = 0
        """Bytes that were written since the node was opened."""

    @property
    def on_disk(self) -> int:
        """Bytes of the values on disk."""
        for size in self._ends.gone():
            self._on_disk -= size
        return self._on_disk

    async def write(self, buffers: Iterable[Buffer]) -> Spilled | OSError:
        """Write a value. The buffers must be contiguous and must not change meanwhile.

        If the disk is full or fails, nothing is left on it, and the `OSError` is returned and not
        raised. The frames in the traceback of a raised error would keep the value in memory for as
        long as a log or a garbage cycle holds the error (since Python 3.12 the frames of the
        callers as well).
        """
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        sizes = [view.nbytes for view in views]
        try:
            descriptor = await self._environment.in_thread(lambda: _written(self.directory, views))
        except NoThreadError as error:
            return error.with_traceback(None)
        if isinstance(descriptor, OSError):
            return descriptor
        size = sum(sizes)
        self._on_disk += size
        self.written += size
        return Spilled(self._environment, _File(descriptor, self._ends.token(size)), sizes)


def _default_directory() -> Path:
    if asked := os.environ.get("TMPDIR"):
        return Path(asked)
    usable = [place for place in DIRECTORIES if os.access(place, os.W_OK | os.X_OK)]
    return Path((usable or DIRECTORIES)[0])


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
        # Some file systems have no unnamed files: EOPNOTSUPP, or EISDIR where the kernel does not
        # know O_TMPFILE.
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
    # Not a bytearray, which would be filled with zeros first.
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
    """Return what is left of the buffers after the first `written` bytes."""
    for number, piece in enumerate(pieces):
        if written < piece.nbytes:
            return [piece[written:], *pieces[number + 1 :]]
        written -= piece.nbytes
    return []
