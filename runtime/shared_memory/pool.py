"""A pool of shared memory for the values that a node owns.

Memory is reused because the first touch of a page costs ten times what copying it does. So free
blocks stay mapped, and the block that was freed last is handed out first: its pages are warm.

A block is free again when nothing can reach its bytes any more: neither the `Block` nor any view of
it, nor slices or arrays of these. Python's object lifetimes tell: all of these keep one object
alive, and its finalizer reports its end. A finalizer may run between any two instructions of any
thread. So it only appends a note to a list; the pool reads the list when one of its methods is
called.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import math
import mmap
import os
import sys
import weakref
from collections import OrderedDict, deque
from contextlib import suppress
from typing import Final, Generic, TypeVar

import attrs

from runtime.environment import Environment

# The place of a value in memory. Its owner sends it to another process of the same host, which can
# then read the value without a copy.

KEY_SIZE: Final = 16
"""Bytes at the start of an arena that identify it."""


HEADER_SIZE: Final = 4096
"""Bytes before the first block of an arena. They hold the key and padding, so that blocks begin at
a page.
"""

MFD_NOEXEC_SEAL: Final = 8
"""Since Linux 6.3. Where the sysctl `vm.memfd_noexec` is 2, memfds without this flag are
refused.
"""

MADV_POPULATE_READ: Final = 22

MADV_POPULATE_WRITE: Final = 23
"""Since Linux 5.14: allocate the pages at once. It costs half of one page fault for each page."""

POPULATED_AT_ONCE: Final = 16 * 1024 * 1024
"""Bytes. Larger values get their pages when they are written or read, so that the event loop is not
blocked for long.
"""

T = TypeVar("T")

_ALONE = 2
"""References to a token that no object keeps: a variable, and the argument of the function that
counts references.
"""

PAGE: Final = 4096

ARENA_BYTES: Final = 64 * 1024 * 1024
"""The smallest length in bytes of an arena, unless its blocks are larger. The length itself costs
no memory, but each arena costs two descriptors.
"""

MOST_ARENAS: Final = 64
"""The approximate number of arenas in a full pool: a larger limit makes longer arenas, not more."""

KEPT_BYTES: Final = 256 * 1024 * 1024

GIVEN_BACK_AT_ONCE: Final = 16 * 1024 * 1024
"""Bytes that are returned to the kernel at a time, or one block if that is larger. This takes some
5 ms; more would block the event loop for too long.
"""


@attrs.frozen
class SharedMemoryLocation:
    """A range of bytes in the memory of a process; plain data that can be sent.

    `process`: its pid. `descriptor`: of the arena, in that process. `key`: the bytes at the arena's
    start. Pids and descriptors are reused by the kernel; the key is unique and shows it. `offset`
    and `size`: in bytes.
    """

    process: int
    descriptor: int
    key: bytes
    offset: int
    size: int

    def plain(self) -> list[object]:
        """The fields as a tuple, in the order of the constructor's parameters."""
        return [self.process, self.descriptor, self.key, self.offset, self.size]


# Memory that has a descriptor, so that other processes of the host can map it (Linux:
# memfd_create(2)).
#
# It is not a file on disk: the kernel frees it when the last descriptor and the last mapping are
# gone, however their processes have ended.


class Arena:
    """A memfd of `count` spans of `span_size` bytes each (a multiple of the page size), after a
    header that begins with `key`.

    A span has no memory before it is written to. The arena is sealed against resizing, so a process
    that has mapped it can read it even after its owner has ended: a shorter file would kill readers
    with SIGBUS. Raises `OSError` if the kernel grants none.
    """

    __slots__ = (
        "__weakref__",
        "_array",
        "_begun",
        "_close",
        "_memory",
        "count",
        "descriptor",
        "key",
        "occupied",
        "span_size",
    )

    def __init__(self, key: bytes, span_size: int, count: int) -> None:
        self.key = key
        self.span_size = span_size
        self.count = count
        self.occupied = 0
        """The number of spans that have memory. Counted by the pool."""
        self._begun = 0
        length = HEADER_SIZE + span_size * count
        self.descriptor = _memfd()
        self._close = weakref.finalize(self, _close_quietly, self.descriptor)
        self._close.atexit = False
        os.ftruncate(self.descriptor, length)
        fcntl.fcntl(
            self.descriptor,
            fcntl.F_ADD_SEALS,
            fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL,
        )
        self._memory = mmap.mmap(self.descriptor, length)
        self._memory[: len(key)] = key
        self._array = ctypes.c_ubyte * length

    def begin_span(self) -> int | None:
        """Return the offset of a span that was never used; None if all were."""
        if self._begun == self.count:
            return None
        self._begun += 1
        return HEADER_SIZE + self.span_size * (self._begun - 1)

    def populate(self, offset: int, size: int) -> None:
        """Allocate memory for `size` bytes at `offset`, which is faster than page faults. Raises
        `OSError` if there is none.
        """
        try:
            self._memory.madvise(MADV_POPULATE_WRITE, offset, size)
        except OSError as error:
            # An older kernel, or an interrupting signal: the remaining pages are allocated when
            # they are written to.
            if error.errno not in (errno.EINVAL, errno.EINTR):
                raise

    def give_back(self, offset: int) -> None:
        """Return the memory of the span at `offset` to the kernel, also where other processes have
        it mapped. It reads as zeros from now on.
        """
        self._memory.madvise(mmap.MADV_REMOVE, offset, self.span_size)

    def owner(self) -> ctypes.Array[ctypes.c_ubyte]:
        """Return a new object that covers the whole arena, writable. It lives as long as any view
        of it, so its finalizer can report the end of all of them.
        """
        return self._array.from_buffer(self._memory)

    def close(self) -> None:
        """Close the descriptor, so that no process can open the arena any more. Existing mappings
        stay.
        """
        self._close()


def _close_quietly(descriptor: int) -> None:
    """Close the descriptor, unless code of users has done so: that must not interrupt the end of a
    link, which closes its memory.
    """
    with suppress(OSError):
        os.close(descriptor)


def _memfd() -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("understudy", flags | MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create("understudy", flags)


# How to learn that an object can no longer be reached.
#
# A weak reference is not enough. In a garbage cycle Python calls the callbacks of weak references
# first and the finalizers (`__del__`) second, and a finalizer may still use the objects of its
# cycle, or make them reachable again (PEP 442). So the object keeps a token. The token's finalizer
# appends the token to a list. The object is gone when the list holds the only reference to the
# token.


class _Token(Generic[T]):
    __slots__ = ("ended", "what")

    def __init__(self, what: T, ended: weakref.ref[deque[_Token[T]]]) -> None:
        self.what = what
        self.ended = ended

    def __del__(self) -> None:
        # Runs in any thread, between any two instructions. Anything but this one append could
        # deadlock.
        ended = self.ended()
        if ended is not None:
            ended.append(self)


class FinalizerQueue(Generic[T]):
    """Reports the ends of objects that were given tokens. Its methods are for one thread; objects
    may end in any thread.
    """

    def __init__(self) -> None:
        self._ended: deque[_Token[T]] = deque()
        self._list = weakref.ref(self._ended)
        """What tokens know of the list, which has them: if each knew it itself, and no queue
        exists any more, list and tokens would be a cycle, and keep the memory of what has ended
        until the collector comes. It is here as well, because the collector clears weak references
        that are reachable from garbage only, before it calls finalizers.
        """

    def token(self, what: T) -> object:
        """Return a token that one object must keep as an attribute until its end. `gone` reports
        that end as `what`.
        """
        return _Token(what, self._list)

    def gone(self) -> list[T]:
        """Return what has ended since the last call."""
        gone: list[T] = []
        if not self._ended:
            return gone
        for _ in range(len(self._ended)):
            token = self._ended.popleft()
            if sys.getrefcount(token) > _ALONE:
                self._ended.append(token)
            else:
                gone.append(token.what)
        return gone


def block_size(size: int) -> int:
    """Return the size in bytes of the block for a value of `size` bytes: whole pages, at most an
    eighth larger.
    """
    step = max(PAGE, 1 << max(0, (size - 1).bit_length() - 4))
    return max(1, -(-size // step)) * step


@attrs.frozen(eq=False)
class _Span:
    arena: Arena
    offset: int


class Block:
    """Memory for one value. It returns to its pool by itself; see the module docstring.

    `memory`: writable, of exactly the requested size. Its initial content is undefined (that of an
    earlier value). Do not write to it once it has been lent. `place`: what another process of this
    host needs to find it.
    """

    __slots__ = ("__weakref__", "_owner", "memory", "place")

    def __init__(self, owner: ctypes.Array[ctypes.c_ubyte], place: SharedMemoryLocation) -> None:
        self._owner = owner
        self.place = place
        self.memory = memoryview(owner).cast("B")[place.offset : place.offset + place.size]

    def lend(self) -> memoryview:
        """Return a read-only view of the bytes. They do not change while this view, or anything
        made from it, exists.
        """
        return self.memory.toreadonly()


@attrs.define
class _SizeClass:
    """The arenas whose spans have the same size."""

    arenas: list[Arena] = attrs.Factory(list)
    warm: dict[_Span, None] = attrs.Factory(dict)
    """Offsets of free spans that have memory. The one that was freed last is at the end, and used
    first.
    """
    cold: list[_Span] = attrs.Factory(list)
    """Offsets of free spans without memory."""


class MemoryPool:
    """A pool of at most `limit` bytes, free ones included, of which at most `kept` free bytes stay
    allocated for reuse.

    Sizes are those of the blocks, which are up to an eighth, or a page, larger than requested. All
    methods are for one thread; blocks and views may end in any thread.
    """

    def __init__(self, environment: Environment, limit: int, kept: int = KEPT_BYTES) -> None:
        self.limit = limit
        self._environment = environment
        self._process = environment.process().pid
        self._kept = kept
        self._arena_bytes = max(ARENA_BYTES, limit // MOST_ARENAS)
        self._closed = not hasattr(os, "memfd_create")
        self._size_classes: dict[int, _SizeClass] = {}
        self._free_spans: OrderedDict[_Span, None] = OrderedDict()
        """Free spans with memory of all arenas, the one that was freed first at the front."""
        self._ends: FinalizerQueue[_Span] = FinalizerQueue()
        self._taken = 0
        self._free = 0

    @property
    def taken(self) -> int:
        """Bytes of blocks that can still be reached."""
        self.tidy()
        return self._taken

    @property
    def free(self) -> int:
        """Bytes of free blocks that stay allocated."""
        self.tidy()
        return self._free

    @property
    def allocated(self) -> int:
        """Bytes of all blocks, free ones included, as they were when a method was last called."""
        return self._taken + self._free

    def is_open(self, key: bytes) -> bool:
        """True if the arena with this key still belongs to the pool."""
        return any(
            arena.key == key for each in self._size_classes.values() for arena in each.arenas
        )

    def take(self, size: int) -> Block | None:
        """Return a block for a value of `size` bytes. Returns None if this platform has no memfd,
        the limit is reached, or the kernel refuses.
        """
        self.tidy()
        whole = block_size(size)
        if self._closed or self._taken + whole > self.limit:
            return None
        size_class = self._size_classes.setdefault(whole, _SizeClass())
        if size_class.warm:
            # The one that was freed last: its pages are most likely in the processor's cache.
            span = next(reversed(size_class.warm))
            self._take_free(span)
        else:
            self._make_room(self.limit - whole - self._taken)
            found = self._fresh(size_class, whole)
            if found is None:
                return None
            span = found
        return self._hand_out(span, size)

    def tidy(self) -> None:
        """Collect the blocks that have ended, and return to the kernel what exceeds `kept`, a
        bounded amount for each call. `take` calls it first.
        """
        for span in self._ends.gone():
            self._taken -= span.arena.span_size
            assert self._taken >= 0, "a block ends once"
            self._size_classes[span.arena.span_size].warm[span] = None
            self._free_spans[span] = None
            self._free += span.arena.span_size
        self._make_room(self._kept, GIVEN_BACK_AT_ONCE)

    def trim(self) -> None:
        """Return free memory to the kernel, a bounded amount for each call, until none is left."""
        self.tidy()
        self._make_room(0, GIVEN_BACK_AT_ONCE)

    def check_invariants(self) -> None:
        """Assert that each span is counted once. Looks at every free span: for tests and
        simulations.
        """
        assert self._free == sum(span.arena.span_size for span in self._free_spans)
        warm = [span for each in self._size_classes.values() for span in each.warm]
        assert len(warm) == len(self._free_spans)
        assert self._free_spans.keys() == set(warm)
        for size, each in self._size_classes.items():
            assert all(arena.span_size == size for arena in each.arenas)
            assert all(0 <= arena.occupied <= arena.count for arena in each.arenas)
            assert all(span.arena in each.arenas for span in (*each.warm, *each.cold))
            taken = sum(arena.occupied for arena in each.arenas) - len(each.warm)
            assert taken >= 0, "a warm span has memory"
        assert self._taken + self._free <= self.limit

    def close(self) -> None:
        """Hand out no more blocks, and close the descriptors, so that no process can open them.
        What is mapped or lent stays readable.
        """
        self._closed = True
        self._kept = 0
        self.tidy()
        self._make_room(0)
        for size_class in self._size_classes.values():
            for arena in size_class.arenas:
                arena.close()

    def abandon(self) -> None:
        """Like `close`, while other processes may still read blocks that have ended here: no memory
        is given back, which would empty it for them. The kernel frees it after the last mapping.
        """
        self._closed = True
        for size_class in self._size_classes.values():
            for arena in size_class.arenas:
                arena.close()
        self._size_classes.clear()
        self._free_spans.clear()
        self._taken = self._free = 0
        # Blocks that end from now on are of no interest; they report to the old queue.
        self._ends = FinalizerQueue()

    def _hand_out(self, span: _Span, size: int) -> Block:
        arena = span.arena
        owner = arena.owner()
        # On the object that every view keeps alive: its end is the end of the last reader here.
        vars(owner)["token"] = self._ends.token(span)
        self._taken += arena.span_size
        assert self._taken <= self.limit, "the pool gives no more than its limit"
        return Block(
            owner,
            SharedMemoryLocation(self._process, arena.descriptor, arena.key, span.offset, size),
        )

    def _fresh(self, size_class: _SizeClass, whole: int) -> _Span | None:
        """Take a span that has no memory, and allocate it."""
        try:
            span = size_class.cold.pop() if size_class.cold else self._begun(size_class, whole)
        except OSError:
            return None
        try:
            if whole <= POPULATED_AT_ONCE:
                span.arena.populate(span.offset, whole)
        except OSError:
            # Some of the pages may have come: they must not stay allocated in a span that counts as
            # cold.
            span.arena.give_back(span.offset)
            size_class.cold.append(span)
            return None
        span.arena.occupied += 1
        return span

    def _begun(self, size_class: _SizeClass, whole: int) -> _Span:
        offset = size_class.arenas[-1].begin_span() if size_class.arenas else None
        if offset is None:
            size_class.arenas.append(
                Arena(self._environment.token(KEY_SIZE), whole, max(1, self._arena_bytes // whole))
            )
            offset = size_class.arenas[-1].begin_span()
            assert offset is not None
        return _Span(size_class.arenas[-1], offset)

    def _take_free(self, span: _Span) -> None:
        del self._free_spans[span]
        del self._size_classes[span.arena.span_size].warm[span]
        self._free -= span.arena.span_size
        assert self._free >= 0, "a span is free once"

    def _make_room(self, allowed: int, most: float = math.inf) -> None:
        """Return free memory to the kernel, the oldest first, until `allowed` bytes of it are left
        or about `most` bytes were returned.
        """
        least = self._free - most
        while self._free > max(allowed, least):
            span = next(iter(self._free_spans))
            self._take_free(span)
            arena = span.arena
            arena.give_back(span.offset)
            arena.occupied -= 1
            assert arena.occupied >= 0, "the memory of a span is given back once"
            size_class = self._size_classes[arena.span_size]
            if arena.occupied:
                size_class.cold.append(span)
            else:
                size_class.cold = [other for other in size_class.cold if other.arena is not arena]
                size_class.arenas.remove(arena)
                arena.close()
