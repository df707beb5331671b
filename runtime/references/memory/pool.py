"""The memory of the values that a node owns, used again and again.

What decides its speed is that memory stays mapped and warm: the first touch of a page costs ten
times what copying it does. So a block that has come back is handed out again before any other, the
last one first.

A block comes back when nothing can reach its bytes any more: neither the `Block` nor any view lent
from it, nor slices, arrays and views of these. Python's own lifetimes say when: all of them keep
one object alive, and `ends` reports its end. That may come in the middle of any statement of any
thread, so nothing but a note is made of it there; the pool looks at the notes when it is asked for
something.
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
from typing import Final, Generic, TypeVar

import attrs

from runtime.environment import Environment

# Where a value lies: what its owner tells another process of the same host, so that it can read it
# without a copy.

KEY_SIZE: Final = 16
"""Bytes at the start of an arena that say which one it is."""


HEADER_SIZE: Final = 4096
"""Bytes before the first block of an arena: its key, and nothing, so that blocks begin with
a page.
"""


@attrs.frozen
class SharedMemoryLocation:
    """A stretch of memory of a process: plain data, to be sent.

    `process`: its id. `descriptor`: of the arena, in that process. `key`: what is at the arena's
    start; both numbers are reused, the key never is. `offset` and `size`: in bytes.
    """

    process: int
    descriptor: int
    key: bytes
    offset: int
    size: int

    def plain(self) -> list[object]:
        """Its parts, in the order in which they make one."""
        return [self.process, self.descriptor, self.key, self.offset, self.size]


# Memory that has a descriptor, so that other processes of the host can read it (memfd, Linux).
#
# It is no file: when the last descriptor and the last mapping are gone, the kernel has it back,
# however their processes ended.

MFD_NOEXEC_SEAL: Final = 8
"""Since Linux 6.3; where `vm.memfd_noexec` is 2, nothing else is allowed."""


MADV_POPULATE_READ: Final = 22


MADV_POPULATE_WRITE: Final = 23
"""Since Linux 5.14: have the pages at once, which costs half of having them fault by fault."""


POPULATED_AT_ONCE: Final = 16 * 1024 * 1024
"""Bytes. Larger values get their pages as they are written or read, so that the event loop does not
wait long for them.
"""


class Arena:
    """`count` spans of `span_size` bytes each, a multiple of the page size, behind a header that
    begins with `key`.

    No span has memory before it is written to. The arena can neither shrink nor grow, so a process
    that has mapped it can read it even after its owner has ended. Raises `OSError` if the kernel
    gives none.
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
        """Spans that have memory. The pool counts."""
        self._begun = 0
        length = HEADER_SIZE + span_size * count
        self.descriptor = _memfd()
        self._close = weakref.finalize(self, os.close, self.descriptor)
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
        """The offset of a span that has not been begun yet; None if all have."""
        if self._begun == self.count:
            return None
        self._begun += 1
        return HEADER_SIZE + self.span_size * (self._begun - 1)

    def populate(self, offset: int, size: int) -> None:
        """Give memory to `size` bytes at `offset`, which is faster than to write to them without.
        Raises `OSError` if there is none.
        """
        try:
            self._memory.madvise(MADV_POPULATE_WRITE, offset, size)
        except OSError as error:
            # An older kernel, or a signal: the rest gets its memory as it is written to.
            if error.errno not in (errno.EINVAL, errno.EINTR):
                raise

    def give_back(self, offset: int) -> None:
        """The kernel has the memory of the span at `offset` back, also if other processes have it
        mapped. It reads as zeros now.
        """
        self._memory.madvise(mmap.MADV_REMOVE, offset, self.span_size)

    def owner(self) -> ctypes.Array[ctypes.c_ubyte]:
        """A new object that is the whole arena, writable. It lives as long as any view that was
        made from it, and can be watched.
        """
        return self._array.from_buffer(self._memory)

    def close(self) -> None:
        """Close the descriptor: no process can open the arena any more. What is mapped stays."""
        self._close()


def _memfd() -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("understudy", flags | MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create("understudy", flags)


# How to learn that nothing can reach an object any more.
#
# A weak reference does not tell: of a ring of garbage, Python calls the callbacks of weak
# references first and the finalizers (`__del__`) then, and a finalizer can still use what is in its
# ring, or keep it for good (PEP 442). So an object is given a token to keep. The token's own
# finalizer puts it on a list, and it counts when the list has the only reference to it that is
# left: its keeper has let go of it.

T = TypeVar("T")


_ALONE = 2
"""References to a token that no object keeps: a variable, and the argument of the function that
counts.
"""


class _Token(Generic[T]):
    __slots__ = ("ended", "what")

    def __init__(self, what: T, ended: deque[_Token[T]]) -> None:
        self.what = what
        self.ended = ended

    def __del__(self) -> None:
        # In any thread, in the midst of any statement: nothing but this.
        self.ended.append(self)


class FinalizerQueue(Generic[T]):
    """The ends of objects that were given tokens. For one thread; tokens end in any."""

    def __init__(self) -> None:
        self._ended: deque[_Token[T]] = deque()

    def token(self, what: T) -> object:
        """To be kept by one object alone, as an attribute, until its end, which `gone` tells as
        `what`.
        """
        return _Token(what, self._ended)

    def gone(self) -> list[T]:
        """What has ended since the last time."""
        gone: list[T] = []
        for _ in range(len(self._ended)):
            token = self._ended.popleft()
            if sys.getrefcount(token) > _ALONE:
                self._ended.append(token)
            else:
                gone.append(token.what)
        return gone


PAGE: Final = 4096


ARENA_BYTES: Final = 64 * 1024 * 1024
"""The least length of an arena whose blocks are not larger. A length costs no memory; each arena
costs two descriptors.
"""


MOST_ARENAS: Final = 64
"""About how many a full pool has: the larger its limit, the longer they are."""


KEPT_BYTES: Final = 256 * 1024 * 1024


GIVEN_BACK_AT_ONCE: Final = 16 * 1024 * 1024
"""Bytes at a time, or one block, so that the event loop does not wait long: some 5 ms."""


def block_size(size: int) -> int:
    """The size in bytes of the block that a value of `size` bytes gets: at most an eighth larger,
    but whole pages.
    """
    step = max(PAGE, 1 << max(0, (size - 1).bit_length() - 4))
    return max(1, -(-size // step)) * step


@attrs.frozen(eq=False)
class _Span:
    arena: Arena
    offset: int


class Block:
    """Memory for one value, from a pool, to which it returns by itself; see the module docstring.

    `memory`: writable, of exactly the size that was asked for; its content is undefined at first
    (what was there before). It must not be written to once it has been lent. `place`: what another
    process of this host needs to find it.
    """

    __slots__ = ("__weakref__", "_owner", "memory", "place")

    def __init__(self, owner: ctypes.Array[ctypes.c_ubyte], place: SharedMemoryLocation) -> None:
        self._owner = owner
        self.place = place
        self.memory = memoryview(owner).cast("B")[place.offset : place.offset + place.size]

    def lend(self) -> memoryview:
        """The bytes, read-only; they stay what they are for as long as this view, or anything made
        from it, is there.
        """
        return self.memory.toreadonly()


@attrs.define
class _SizeClass:
    """The arenas whose spans have one size."""

    arenas: list[Arena] = attrs.Factory(list)
    warm: dict[_Span, None] = attrs.Factory(dict)
    """Free spans that have memory, the one that came back last at the end."""
    cold: list[_Span] = attrs.Factory(list)
    """Free spans that have none."""


class MemoryPool:
    """At most `limit` bytes, free ones included; at most `kept` of them are kept for later while
    they are free.

    Sizes count as what the block has, which is up to an eighth, or a page, more than was asked for.
    All methods are for one thread; blocks and views may be let go in any.
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
        """All that are warm, the one that came back first at the front."""
        self._ends: FinalizerQueue[_Span] = FinalizerQueue()
        self._taken = 0
        self._free = 0

    @property
    def taken(self) -> int:
        """Bytes of the blocks that are still reachable."""
        self.tidy()
        return self._taken

    @property
    def free(self) -> int:
        """Bytes that are kept for later."""
        self.tidy()
        return self._free

    def take(self, size: int) -> Block | None:
        """A block for a value of `size` bytes. None: this platform has no memfd, the limit is
        reached, or the kernel refuses.
        """
        self.tidy()
        whole = block_size(size)
        if self._closed or self._taken + whole > self.limit:
            return None
        size_class = self._size_classes.setdefault(whole, _SizeClass())
        if size_class.warm:
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
        """Take in what has come back, and give the kernel of what is more than may be kept, some at
        a time. `take` begins with it.
        """
        for span in self._ends.gone():
            self._taken -= span.arena.span_size
            self._size_classes[span.arena.span_size].warm[span] = None
            self._free_spans[span] = None
            self._free += span.arena.span_size
        self._make_room(self._kept, GIVEN_BACK_AT_ONCE)

    def close(self) -> None:
        """Nothing is handed out any more, nor found by others; what they have mapped, and what was
        lent here, stays readable.
        """
        self._closed = True
        self._kept = 0
        self.tidy()
        self._make_room(0)
        for size_class in self._size_classes.values():
            for arena in size_class.arenas:
                arena.close()

    def _hand_out(self, span: _Span, size: int) -> Block:
        arena = span.arena
        owner = arena.owner()
        vars(owner)["token"] = self._ends.token(span)
        self._taken += arena.span_size
        return Block(
            owner,
            SharedMemoryLocation(self._process, arena.descriptor, arena.key, span.offset, size),
        )

    def _fresh(self, size_class: _SizeClass, whole: int) -> _Span | None:
        """A span that has been given memory now."""
        try:
            span = size_class.cold.pop() if size_class.cold else self._begun(size_class, whole)
        except OSError:
            return None
        try:
            if whole <= POPULATED_AT_ONCE:
                span.arena.populate(span.offset, whole)
        except OSError:
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

    def _make_room(self, allowed: int, most: float = math.inf) -> None:
        """Give back free memory, free for longest first, until `allowed` bytes of it are left, or
        about `most` have been given.
        """
        least = self._free - most
        while self._free > max(allowed, least):
            span = next(iter(self._free_spans))
            self._take_free(span)
            arena = span.arena
            arena.give_back(span.offset)
            arena.occupied -= 1
            size_class = self._size_classes[arena.span_size]
            if arena.occupied:
                size_class.cold.append(span)
            else:
                size_class.cold = [other for other in size_class.cold if other.arena is not arena]
                size_class.arenas.remove(arena)
                arena.close()
