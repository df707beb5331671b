"""The arena of another process, mapped so that it can only be read: writing to it is refused by the kernel, whoever tries."""

from __future__ import annotations

import ctypes
import mmap

from runtime.references.memory.arena import MADV_POPULATE_READ, POPULATED_AT_ONCE


class ReadOnlyMapping:
    """The first `length` bytes of a descriptor, which may be closed afterwards. They are unmapped when neither this nor any view is left.

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

        ctypes makes arrays over what can be written, or over an address. This memory cannot be written, so it is the address; the array
        keeps the memory itself.
        """
        self._populate(offset, size)
        array = self._array.from_address(self._address)
        vars(array).update(memory=self._memory, guard=guard)
        return memoryview(array).cast("B").toreadonly()[offset : offset + size]

    def _populate(self, offset: int, size: int) -> None:
        """Map the pages at once, which costs half of doing so fault by fault; they stay mapped for the values that follow there."""
        if 0 < size <= POPULATED_AT_ONCE and self._populated.get(offset, 0) < size and not offset % mmap.PAGESIZE:
            self._populated[offset] = size
            try:
                self._memory.madvise(MADV_POPULATE_READ, offset, size)
            except OSError:
                # An older kernel, or no memory for a page that nobody has written: it shows, if at all, when it is read.
                pass


def _address(memory: mmap.mmap) -> int:
    """Where it is mapped: what a `Py_buffer`, of some ten words, begins with (https://docs.python.org/3/c-api/buffer.html)."""
    buffer = (ctypes.c_void_p * 16)()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(memory), buffer, 0)
    address = buffer[0]
    ctypes.pythonapi.PyBuffer_Release(buffer)
    assert address is not None
    return address
