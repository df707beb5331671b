"""Reading the values of other processes of this host where they lie, without a copy.

The owner's arena is found as `/proc/PID/fd/N`, which the kernel opens for processes of the same
user alone. It is mapped once, and stays mapped: what costs is the first touch of a page, and the
owner uses its memory again and again.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import stat
from collections import OrderedDict
from typing import Final
from weakref import WeakValueDictionary

import attrs

from runtime.references.memory.pool import (
    HEADER_SIZE,
    KEY_SIZE,
    MADV_POPULATE_READ,
    POPULATED_AT_ONCE,
    SharedMemoryLocation,
)

# The arena of another process, mapped so that it can only be read: the kernel refuses every write
# to it.


class ReadOnlyMapping:
    """The first `length` bytes of a descriptor, which may be closed afterwards. They are unmapped
    when neither this nor any view is left.

    Raises `OSError` and `ValueError` if the kernel does not map so much.
    """

    __slots__ = ("__weakref__", "_address", "_array", "_memory", "_populated", "length")

    def __init__(self, descriptor: int, length: int) -> None:
        self.length = length
        self._memory = mmap.mmap(descriptor, length, mmap.MAP_SHARED, mmap.PROT_READ)
        self._address = _address(self._memory)
        self._array = ctypes.c_ubyte * length
        self._populated: dict[int, int] = {}

    def view(self, offset: int, size: int, guard: object) -> memoryview:
        """`size` bytes at `offset`. The view, and all that is made from it, keeps `guard`.

        ctypes makes arrays over what can be written, or over an address. This memory cannot be
        written, so it is the address; the array keeps the memory itself.
        """
        self._populate(offset, size)
        array = self._array.from_address(self._address)
        vars(array).update(memory=self._memory, guard=guard)
        return memoryview(array).cast("B").toreadonly()[offset : offset + size]

    def _populate(self, offset: int, size: int) -> None:
        """Map the pages at once, which costs half of doing so fault by fault; they stay mapped for
        the values that follow there.
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
                # An older kernel, or no memory for a page that was never written: it shows, if at
                # all, when it is read.
                pass


def _address(memory: mmap.mmap) -> int:
    """Where it is mapped: what a `Py_buffer`, of some ten words, begins with
    (https://docs.python.org/3/c-api/buffer.html).
    """
    buffer = (ctypes.c_void_p * 16)()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(memory), buffer, 0)
    address = buffer[0]
    ctypes.pythonapi.PyBuffer_Release(buffer)
    assert address is not None
    return address


MOST_MAPPINGS: Final = 128
"""Arenas of other processes that stay mapped while they are not read. The memory that a dead
process had in them stays allocated with them.
"""


class NotLendableError(Exception):
    """This memory cannot be read from here: fetch the value as a message. The text says why."""


@attrs.frozen(eq=False)
class _MappedArena:
    process: int
    mapping: ReadOnlyMapping


class MappedArenas:
    """Lends views of the memory of other processes. At most `mappings` arenas stay mapped beside
    those that have live views.

    For one thread; views may be let go in any.
    """

    def __init__(self, mappings: int = MOST_MAPPINGS) -> None:
        self._most = mappings
        self._kept: OrderedDict[bytes, _MappedArena] = OrderedDict()
        """By key, least recently used first."""
        self._mapped: WeakValueDictionary[bytes, ReadOnlyMapping] = WeakValueDictionary()
        """All mappings that exist: also those that are read, and so have no place in `_kept`."""

    def lend(self, place: SharedMemoryLocation, guard: object) -> memoryview:
        """The bytes at a place, read-only; the view and all that is made from it keep `guard`
        alive.

        The owner may use the memory for something else as soon as the value is not held: the guard
        is that hold. It ends with the last view, in any thread, in the midst of any statement. The
        bytes stay readable if the owner is killed.

        Raises `NotLendableError` for a process that has ended, is another user's or not to be seen
        from here, and for memory that is not meant.
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
        """Keep nothing mapped of a process that has ended. Views stay as they are."""
        for key in [key for key, kept in self._kept.items() if kept.process == process]:
            del self._kept[key]

    def close(self) -> None:
        """Keep nothing mapped. Views stay as they are."""
        self._kept.clear()

    def _map(self, place: SharedMemoryLocation) -> ReadOnlyMapping:
        path = f"/proc/{place.process}/fd/{place.descriptor}"
        try:
            # A descriptor that is something else by now is not even opened: it may be a device, and
            # do something then.
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise NotLendableError(f"{path} is no memory any more: its owner has closed it")
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
            try:
                return _checked(descriptor, place)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            raise NotLendableError(f"{path} cannot be read: {error}") from error


def _checked(descriptor: int, place: SharedMemoryLocation) -> ReadOnlyMapping:
    """The mapping, if the arena is the one meant and can never become shorter, which would end its
    readers with SIGBUS.
    """
    if len(place.key) != KEY_SIZE or os.pread(descriptor, KEY_SIZE, 0) != place.key:
        raise NotLendableError(
            f"memory {place.descriptor} of process {place.process} is another one by now: its "
            "numbers have been reused"
        )
    try:
        sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        sealed = 0
    if not sealed:
        raise NotLendableError(
            f"memory {place.descriptor} of process {place.process} may become shorter while it is "
            "read"
        )
    return ReadOnlyMapping(descriptor, os.fstat(descriptor).st_size)
