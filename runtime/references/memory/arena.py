"""Memory that has a descriptor, so that other processes of the host can read it (memfd, Linux).

It is no file: when the last descriptor and the last mapping are gone, the kernel has it back, however their processes ended.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import weakref
from typing import Final

from runtime.references.memory.place import HEADER_SIZE

MFD_NOEXEC_SEAL: Final = 8
"""Since Linux 6.3; where `vm.memfd_noexec` is 2, nothing else is allowed."""

MADV_POPULATE_READ: Final = 22
MADV_POPULATE_WRITE: Final = 23
"""Since Linux 5.14: have the pages at once, which costs half of having them fault by fault."""

POPULATED_AT_ONCE: Final = 16 * 1024 * 1024
"""Bytes. Larger values get their pages as they are written or read, so that the event loop does not wait long for them."""


class Arena:
    """`count` spans of `span_size` bytes each, a multiple of the page size, behind a header that begins with `key`.

    No span has memory before it is written to. The arena can neither shrink nor grow, so who has mapped it can read it, whatever happens to
    its owner. Raises `OSError` if the kernel gives none.
    """

    __slots__ = ("__weakref__", "_array", "_begun", "_close", "_memory", "count", "descriptor", "key", "occupied", "span_size")

    def __init__(self, key: bytes, span_size: int, count: int) -> None:
        self.key = key
        self.span_size = span_size
        self.count = count
        self.occupied = 0
        """Spans that have memory. The pool counts."""
        self._begun = 0
        length = HEADER_SIZE + span_size * count
        self.descriptor = _memfd()
        self._close = weakref.finalize(self, os.close, self.descriptor)
        self._close.atexit = False
        os.ftruncate(self.descriptor, length)
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self._memory = mmap.mmap(self.descriptor, length)
        self._memory[: len(key)] = key
        self._array = ctypes.c_ubyte * length

    def begin_span(self) -> int | None:
        """The offset of a span that has not been begun yet; None if all have."""
        if self._begun == self.count:
            return None
        self._begun += 1
        return HEADER_SIZE + self.span_size * (self._begun - 1)

    def populate(self, offset: int, size: int) -> None:
        """Give memory to `size` bytes at `offset`, which is faster than to write to them without. Raises `OSError` if there is none."""
        try:
            self._memory.madvise(MADV_POPULATE_WRITE, offset, size)
        except OSError as error:
            # An older kernel, or a signal: the rest gets its memory as it is written to.
            if error.errno not in (errno.EINVAL, errno.EINTR):
                raise

    def give_back(self, offset: int) -> None:
        """The kernel has the memory of the span at `offset` back, also if other processes have it mapped. It reads as zeros now."""
        self._memory.madvise(mmap.MADV_REMOVE, offset, self.span_size)

    def owner(self) -> ctypes.Array[ctypes.c_ubyte]:
        """A new object that is the whole arena, writable. It lives as long as any view that was made from it, and can be watched."""
        return self._array.from_buffer(self._memory)

    def close(self) -> None:
        """Nobody can open it any more. What is mapped stays."""
        self._close()


def _memfd() -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("understudy", flags | MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create("understudy", flags)
