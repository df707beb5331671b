"""Received segments: memory into which a socket writes and which then becomes bytes or an array, without a copy.

The first touch of fresh memory costs several times as much as a copy into warm memory (the kernel clears each page), so large data must
touch fresh memory once only: `bytes(n)` takes pages from `calloc` that nobody has touched, `io.BytesIO` lends them out for writing, and
gives the very same bytes object out at the end. Both are optimisations of CPython: where they are missing, copies are made.
"""

from __future__ import annotations

import io
import sys

HUGE_SIZE = 4 * 1024 * 1024
"""Bytes from which the kernel is asked for huge pages: receiving 64 MiB into fresh memory is then about three times as fast."""


class ReceivedSegment:
    """`size` bytes of zeros at first, none of them touched, to be filled through `view` and taken out once, when they are complete."""

    __slots__ = ("_size", "_stream")

    def __init__(self, size: int) -> None:
        self._size = size
        self._stream = io.BytesIO(bytes(size))
        if size >= HUGE_SIZE:
            with self._stream.getbuffer() as view:
                _ask_for_huge_pages(view)

    def __len__(self) -> int:
        return self._size

    def view(self, start: int, stop: int) -> memoryview:
        """Where the bytes from `start` to `stop` belong. Release it when they are there: `bytes()` must copy while a view lives."""
        with self._stream.getbuffer() as whole:
            return whole[start:stop]

    def __bytes__(self) -> bytes:
        """The content; the same object each time and not a copy, unless a view lives."""
        return self._stream.getvalue()

    def writable(self) -> memoryview:
        """The content as memory that may be changed. Not a copy, unless it was taken out as bytes before."""
        return self._stream.getbuffer()


Segment = bytes | bytearray | memoryview | ReceivedSegment
"""A segment as the codec may get it."""


def writable(segment: Segment) -> bytearray | memoryview:
    """Memory with the content of `segment` that may be changed: the segment's own where that is possible."""
    if isinstance(segment, ReceivedSegment):
        return segment.writable()
    if isinstance(segment, bytes) or memoryview(segment).readonly:
        return bytearray(segment)
    return segment


def _ask_for_huge_pages(view: memoryview) -> None:
    """`madvise(MADV_HUGEPAGE)`, as numpy does for its own large arrays. Advice: where it is not possible nothing is lost but speed."""
    if sys.platform != "linux":
        return
    import ctypes
    import mmap

    page = mmap.PAGESIZE
    start = ctypes.addressof(ctypes.c_char.from_buffer(view))
    first = -(-start // page) * page
    try:
        madvise = ctypes.CDLL(None).madvise
    except (AttributeError, OSError):
        return
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    madvise(first, (start + len(view) - first) // page * page, mmap.MADV_HUGEPAGE)
