"""The memory of the values that a node owns, used again and again.

What decides its speed is that memory stays mapped and warm: the first touch of a page costs ten times what copying it does. So a block that
has come back is handed out again before any other, the last one first.

A block comes back when nothing can reach its bytes any more: neither the `Block` nor any view lent from it, nor slices, arrays and views of
these. Python's own lifetimes say when: all of them keep one object alive, and `ends` tells of its end. That may come in the midst of any
statement of any thread, so nothing but a note is made of it there; the pool looks at the notes when it is asked for something.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections import OrderedDict
from typing import Final

import attrs

from runtime.environment import Environment
from runtime.references.memory.arena import POPULATED_AT_ONCE, Arena
from runtime.references.memory.ends import Ends
from runtime.references.memory.place import KEY_SIZE, Place

PAGE: Final = 4096
ARENA_BYTES: Final = 64 * 1024 * 1024
"""The least length of an arena whose blocks are not larger. A length costs no memory; each arena costs two descriptors."""

MOST_ARENAS: Final = 64
"""About how many a full pool has: the larger its limit, the longer they are."""

KEPT_BYTES: Final = 256 * 1024 * 1024

GIVEN_BACK_AT_ONCE: Final = 16 * 1024 * 1024
"""Bytes at a time, or one block, so that the event loop does not wait long: some 5 ms."""


def size_class(size: int) -> int:
    """The size in bytes of the block that a value of `size` bytes gets: at most an eighth larger, but whole pages."""
    step = max(PAGE, 1 << max(0, (size - 1).bit_length() - 4))
    return max(1, -(-size // step)) * step


@attrs.frozen(eq=False)
class _Span:
    arena: Arena
    offset: int


class Block:
    """Memory for one value, from a pool, to which it returns by itself; see the module.

    `memory`: writable, of exactly the size that was asked for; what is in it is whatever was there before. It must not be written to once
    it has been lent. `place`: what another process of this host needs to find it.
    """

    __slots__ = ("__weakref__", "_owner", "memory", "place")

    def __init__(self, owner: ctypes.Array[ctypes.c_ubyte], place: Place) -> None:
        self._owner = owner
        self.place = place
        self.memory = memoryview(owner).cast("B")[place.offset : place.offset + place.size]

    def lend(self) -> memoryview:
        """The bytes, read-only; they stay what they are for as long as this view, or anything made from it, is there."""
        return self.memory.toreadonly()


@attrs.define
class _Shelf:
    """The arenas whose spans have one size."""

    arenas: list[Arena] = attrs.Factory(list)
    warm: dict[_Span, None] = attrs.Factory(dict)
    """Free spans that have memory, the one that came back last at the end."""
    cold: list[_Span] = attrs.Factory(list)
    """Free spans that have none."""


class MemoryPool:
    """At most `limit` bytes, free ones included; at most `kept` of them are kept for later while they are free.

    Sizes count as what the block has, which is up to an eighth, or a page, more than was asked for. All methods are for one thread; blocks
    and views may be let go in any.
    """

    def __init__(self, environment: Environment, limit: int, kept: int = KEPT_BYTES) -> None:
        self.limit = limit
        self._environment = environment
        self._process = environment.process().pid
        self._kept = kept
        self._arena_bytes = max(ARENA_BYTES, limit // MOST_ARENAS)
        self._closed = not hasattr(os, "memfd_create")
        self._shelves: dict[int, _Shelf] = {}
        self._free_spans: OrderedDict[_Span, None] = OrderedDict()
        """All that are warm, the one that came back first at the front."""
        self._ends: Ends[_Span] = Ends()
        self._taken = 0
        self._free = 0

    @property
    def taken(self) -> int:
        """Bytes of the blocks that somebody can reach."""
        self.tidy()
        return self._taken

    @property
    def free(self) -> int:
        """Bytes that are kept for later."""
        self.tidy()
        return self._free

    def take(self, size: int) -> Block | None:
        """A block for a value of `size` bytes. None: this platform has no memfd, the limit is reached, or the kernel refuses."""
        self.tidy()
        whole = size_class(size)
        if self._closed or self._taken + whole > self.limit:
            return None
        shelf = self._shelves.setdefault(whole, _Shelf())
        if shelf.warm:
            span = next(reversed(shelf.warm))
            self._unshelve(span)
        else:
            self._make_room(self.limit - whole - self._taken)
            found = self._fresh(shelf, whole)
            if found is None:
                return None
            span = found
        return self._hand_out(span, size)

    def tidy(self) -> None:
        """Take in what has come back, and give the kernel of what is more than may be kept, some at a time. `take` begins with it."""
        for span in self._ends.gone():
            self._taken -= span.arena.span_size
            self._shelves[span.arena.span_size].warm[span] = None
            self._free_spans[span] = None
            self._free += span.arena.span_size
        self._make_room(self._kept, GIVEN_BACK_AT_ONCE)

    def close(self) -> None:
        """Nothing is handed out any more, nor found by others; what they have mapped, and what was lent here, stays readable."""
        self._closed = True
        self._kept = 0
        self.tidy()
        self._make_room(0)
        for shelf in self._shelves.values():
            for arena in shelf.arenas:
                arena.close()

    def _hand_out(self, span: _Span, size: int) -> Block:
        arena = span.arena
        owner = arena.owner()
        vars(owner)["token"] = self._ends.token(span)
        self._taken += arena.span_size
        return Block(owner, Place(self._process, arena.descriptor, arena.key, span.offset, size))

    def _fresh(self, shelf: _Shelf, whole: int) -> _Span | None:
        """A span that has been given memory now."""
        try:
            span = shelf.cold.pop() if shelf.cold else self._begun(shelf, whole)
        except OSError:
            return None
        try:
            if whole <= POPULATED_AT_ONCE:
                span.arena.populate(span.offset, whole)
        except OSError:
            span.arena.give_back(span.offset)
            shelf.cold.append(span)
            return None
        span.arena.occupied += 1
        return span

    def _begun(self, shelf: _Shelf, whole: int) -> _Span:
        offset = shelf.arenas[-1].begin_span() if shelf.arenas else None
        if offset is None:
            shelf.arenas.append(Arena(self._environment.token(KEY_SIZE), whole, max(1, self._arena_bytes // whole)))
            offset = shelf.arenas[-1].begin_span()
            assert offset is not None
        return _Span(shelf.arenas[-1], offset)

    def _unshelve(self, span: _Span) -> None:
        del self._free_spans[span]
        del self._shelves[span.arena.span_size].warm[span]
        self._free -= span.arena.span_size

    def _make_room(self, allowed: int, most: float = math.inf) -> None:
        """Give back free memory, free for longest first, until `allowed` bytes of it are left, or about `most` have been given."""
        least = self._free - most
        while self._free > max(allowed, least):
            span = next(iter(self._free_spans))
            self._unshelve(span)
            arena = span.arena
            arena.give_back(span.offset)
            arena.occupied -= 1
            shelf = self._shelves[arena.span_size]
            if arena.occupied:
                shelf.cold.append(span)
            else:
                shelf.cold = [other for other in shelf.cold if other.arena is not arena]
                shelf.arenas.remove(arena)
                arena.close()
