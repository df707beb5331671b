"""Reading the values of other processes of this host in place, without a copy.

The owner's arena is opened as `/proc/PID/fd/N`, which the kernel allows only to processes of the
same user. It is mapped once and stays mapped, because the first touch of its pages is what costs
time, and the owner reuses its memory.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import stat
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from weakref import WeakValueDictionary

import attrs

from runtime.shared_memory.pool import (
    HEADER_SIZE,
    KEY_SIZE,
    MADV_POPULATE_READ,
    POPULATED_AT_ONCE,
    SharedMemoryLocation,
)

MOST_MAPPINGS: Final = 128
"""How many arenas of other processes stay mapped while nothing reads them. While they are mapped,
their memory stays allocated even if their process has ended.
"""

# A read-only mapping of another process's arena: the kernel refuses every write to it.


class ReadOnlyMapping:
    """The first `length` bytes of a descriptor, which may be closed afterwards. They are unmapped
    when neither this object nor any view is left. Raises `OSError` and `ValueError` if the kernel
    does not map them.
    """

    __slots__ = ("__weakref__", "_address", "_array", "_memory", "_populated", "length")

    def __init__(self, descriptor: int, length: int) -> None:
        self.length = length
        self._memory = mmap.mmap(descriptor, length, mmap.MAP_SHARED, mmap.PROT_READ)
        self._address = _address(self._memory)
        self._array = ctypes.c_ubyte * length
        self._populated: dict[int, int] = {}

    def view(self, offset: int, size: int, guard: object) -> memoryview:
        """Return `size` bytes at `offset`. The view, and everything made from it, keeps `guard`
        alive.

        ctypes makes arrays only over writable buffers or over an address. This memory is read-only,
        so the address is used; the array keeps the mapping alive.
        """
        self._populate(offset, size)
        array = self._array.from_address(self._address)
        vars(array).update(memory=self._memory, guard=guard)
        return memoryview(array).cast("B").toreadonly()[offset : offset + size]

    def _populate(self, offset: int, size: int) -> None:
        """Map the pages at once, which costs half of one page fault for each page. They stay mapped
        for later values at the same place.
        """
        if (
            0 < size <= POPULATED_AT_ONCE
            and self._populated.get(offset, 0) < size
            and not offset % mmap.PAGESIZE
        ):
            self._populated[offset] = size
            try:
                self._memory.madvise(MADV_POPULATE_READ, offset, size)
            except OSError:
                # An older kernel, or no memory for a page that was never written. If it matters,
                # reading will show it.
                pass


def _address(memory: mmap.mmap) -> int:
    """Return the address of the mapping: the first field of a `Py_buffer`
    (https://docs.python.org/3/c-api/buffer.html).
    """
    buffer = (ctypes.c_void_p * 16)()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(memory), buffer, 0)
    address = buffer[0]
    ctypes.pythonapi.PyBuffer_Release(buffer)
    assert address is not None
    return address


class NotLendableError(Exception):
    """This memory cannot be read from this process. Fetch the value as a message instead. The text
    says why.
    """


@attrs.frozen(eq=False)
class _MappedArena:
    process: int
    mapping: ReadOnlyMapping


class MappedArenas:
    """Lends views of the memory of other processes. At most `mappings` arenas stay mapped in
    addition to those with live views. For one thread; views may end in any thread.
    """

    def __init__(self, mappings: int = MOST_MAPPINGS) -> None:
        self._most = mappings
        self._kept: OrderedDict[bytes, _MappedArena] = OrderedDict()
        """Mappings by key, the least recently used first."""
        self._mapped: WeakValueDictionary[bytes, ReadOnlyMapping] = WeakValueDictionary()
        """All mappings that exist, including those that left `_kept` while they are still being
        read.
        """

    def lend(self, place: SharedMemoryLocation, guard: object) -> memoryview:
        """Return the bytes at a place, read-only. The view, and everything made from it, keeps
        `guard` alive.

        `guard` is this node's hold on the value: without it the owner may reuse the memory at once.
        It is released when the last view ends, which may happen in any thread between any two
        instructions. The bytes stay readable if the owner is killed.

        Raises `NotLendableError` if the process has ended, belongs to another user or is not
        visible from here (another pid namespace), and if the memory is not the one that is meant.
        """
        mapping = self._mapped.get(place.key)
        if mapping is None:
            mapping = self._map(place)
            self._mapped[place.key] = mapping
        if (
            place.offset < HEADER_SIZE
            or place.size < 0
            or place.offset + place.size > mapping.length
        ):
            raise NotLendableError(
                f"{place} is not within memory {place.descriptor}, which has {mapping.length} bytes"
            )
        self._kept.setdefault(place.key, _MappedArena(place.process, mapping))
        self._kept.move_to_end(place.key)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return mapping.view(place.offset, place.size, (guard, mapping))

    def forget(self, process: int) -> None:
        """Unmap the arenas of a process that has ended. Views stay valid."""
        for key in [key for key, kept in self._kept.items() if kept.process == process]:
            del self._kept[key]

    def close(self) -> None:
        """Unmap all arenas. Views stay valid."""
        self._kept.clear()

    def _map(self, place: SharedMemoryLocation) -> ReadOnlyMapping:
        with _opened(place.process, place.descriptor, place.key, os.O_RDONLY) as descriptor:
            return ReadOnlyMapping(descriptor, os.fstat(descriptor).st_size)


class WritableMapping:
    """All of an arena of another process, mapped so that both may write to it: for blocks that
    their owner has handed over. They are unmapped when neither this object nor any view is left.

    Raises `NotLendableError` like `MappedArenas.lend`, and for an arena longer than `most` bytes.
    """

    __slots__ = ("_array", "_memory", "length")

    def __init__(self, process: int, descriptor: int, key: bytes, most: int) -> None:
        with _opened(process, descriptor, key, os.O_RDWR) as opened:
            self.length = os.fstat(opened).st_size
            if self.length > most:
                raise NotLendableError(
                    f"memory {descriptor} of process {process} has {self.length} bytes, where at "
                    f"most {most} may be mapped"
                )
            self._memory = mmap.mmap(opened, self.length)
        self._array = ctypes.c_ubyte * self.length

    def view(self, offset: int, size: int, guard: object) -> memoryview:
        """Return `size` bytes at `offset`, writable. The view, and everything made from it, keeps
        `guard` and the mapping alive.
        """
        assert HEADER_SIZE <= offset <= offset + size <= self.length
        array = self._array.from_buffer(self._memory)
        vars(array)["guard"] = guard
        return memoryview(array).cast("B")[offset : offset + size]


@contextmanager
def _opened(process: int, descriptor: int, key: bytes, flags: int) -> Iterator[int]:
    """Open the arena that another process has under this descriptor, for the block. Raises
    `NotLendableError`.
    """
    path = f"/proc/{process}/fd/{descriptor}"
    try:
        # Check what the descriptor is before opening it: if its number was reused it may be a
        # device, and opening a device can have effects.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise NotLendableError(f"{path} is no memory any more: its owner has closed it")
        opened = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            _check(opened, process, descriptor, key)
            yield opened
        finally:
            os.close(opened)
    except (OSError, ValueError) as error:
        raise NotLendableError(f"{path} cannot be read: {error}") from error


def _check(opened: int, process: int, descriptor: int, key: bytes) -> None:
    """Refuse what is not the arena that is meant, and what is not sealed against shrinking: an
    arena that shrinks would kill its readers with SIGBUS.
    """
    if len(key) != KEY_SIZE or os.pread(opened, KEY_SIZE, 0) != key:
        raise NotLendableError(
            f"memory {descriptor} of process {process} is another one by now: its numbers have "
            "been reused"
        )
    try:
        sealed = fcntl.fcntl(opened, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        sealed = 0
    if not sealed:
        raise NotLendableError(
            f"memory {descriptor} of process {process} may become shorter while it is read"
        )
