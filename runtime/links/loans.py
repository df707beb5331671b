"""Lent segments: what two processes of one host hand over in shared memory instead of a socket.

The sender copies a large segment into a block of a memory pool, so that its caller may change its
own memory at once, and sends LOAN: the frame without these segments, and where they are. The
receiver has mapped the pool's memory before, and hands the frame up with views of the blocks, which
are writable. When nothing can reach the views of a frame any more, it sends RETURNED with the
frame's number, and the sender uses the blocks again: their pages are warm.

    sender                                          receiver
      | ---- ARENA announced [number, descriptor] ----> | maps it
      | <--- ARENA mapped [number] ---------------------- |
      | ---- LOAN [number of the frame, places, head] --> | views; the method runs
      | <--- RETURNED [number of the frame] ------------- | the views have ended

Nothing is lent from memory that the peer has not mapped, so a frame that has left can always be
read. What cannot be lent (too small, too large, the pool is full, the peer has not answered yet)
travels over the socket as before. All these frames are numbered by the session: a connection that
breaks loses none.

A session may have connections that show both ends that they are processes of one host (Unix
sockets), and others (TCP). The end that accepts one of the former knows it before the end that has
dialled it, which may have given that dial up, and come over one of the latter. So each end borrows
from when it knows, and lends from when it knows that the other end does; see `Lender.begin`. Where
only one of two ends can see that the other is of its host, the other declines what is announced to
it; see `declined`.

Each link has a pool of its own. When the link ends while the peer lives, it is not known how long
the peer reads, so the blocks are never used again: the pool is closed, and the kernel frees its
memory when the last mapping has gone. The same holds for processes that are killed at any moment,
because the memory has no name in any file system.

No sockets and no clock: the link sends what is returned here. Handing out blocks and taking them
back follows the shared buffers of Wayland (wl_buffer.release); mapping them once and reusing them
is what Ray's Plasma and Arrow do with files.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Sequence
from enum import IntEnum
from typing import Final
from weakref import WeakSet

import attrs

from actors.errors import ProtocolError
from runtime.environment import Environment
from runtime.shared_memory.mappings import NotLendableError, WritableMapping
from runtime.shared_memory.pool import HEADER_SIZE, KEY_SIZE, Block, FinalizerQueue, MemoryPool
from runtime.wire.frames import HEADER, LIMITS, Buffer, Frame, Kind, Segment, encode_frame

FEATURE: Final = "shared-memory"
"""The capability that a peer announces in the handshake if its segments can be lent, and others may
lend to it.
"""

LOAN_BYTES: Final = 64 * 1024
"""Segments from this size on are lent. Measured in turn with and without lending: an echo of an
array is 1.8 to 2.2 times as fast at 64 KiB, and from 32 KiB downwards sometimes slower, since the
frames and the bookkeeping of a loan cost as much as the copy through the socket.
"""

MOST_LOAN_BYTES: Final = 16 * 1024 * 1024
"""Larger segments travel over the socket in parts, with small calls between them: copying them in
one step would hold up the event loop. Measured with 64 MiB, lent and over the socket: small calls
beside them took 129 and 1.4 ms, and an echo of them alone was 1.4 times as fast over the socket.
"""

LINK_BYTES: Final = 256 * 1024 * 1024
"""Bytes that one link may have lent at once: a peer that does not return blocks uses up its own
share only.
"""

NODE_BYTES: Final = 1024 * 1024 * 1024
"""Bytes that all links of a node may have lent at once, with the free blocks that they keep."""

KEPT_BYTES: Final = LINK_BYTES // 2
"""Free memory that a link keeps for its next segments."""

RETURNED_AT_ONCE: Final = 1024 * 1024
"""Bytes. While less than this can be returned, RETURNED waits for the next frame with segments, or
for the beat: a message of its own for each small loan costs both sides a wake-up.
"""

IDLE_BEATS: Final = 5
"""Beats without a loan after which a link gives its free memory back to the kernel."""

MOST_ARENAS: Final = 64
MOST_MAPPED_BYTES: Final = 16 * LINK_BYTES
"""Bytes of one peer that may be mapped here. This is address space: only pages that are touched
take memory.
"""

LENDING_KINDS: Final = frozenset({Kind.ARENA, Kind.LOAN, Kind.RETURNED})

_ARENA = struct.Struct(f"!II{KEY_SIZE}s")
"""Number of the arena, descriptor, key."""
_PLACE = struct.Struct("!HIQQ")
"""Index of the segment in its frame, number of the arena, offset, size."""
_LOAN = struct.Struct("!QH")
"""Number of the frame, count of places; the places follow, then the head of the frame."""
_NUMBER = struct.Struct("!I")
_RETURNED = struct.Struct("!Q")


class ArenaFlag(IntEnum):
    """The meaning of a frame of kind ARENA, in the flags of its header."""

    ANNOUNCED = 0
    MAPPED = 1
    REFUSED = 2
    CLOSED = 3


class LendingPools:
    """The pools of all links of a node, which share a limit of bytes."""

    def __init__(self, environment: Environment, limit: int = NODE_BYTES) -> None:
        self._environment = environment
        self._limit = limit
        self._pools: WeakSet[MemoryPool] = WeakSet()

    def open(self) -> MemoryPool:
        """A pool for one link."""
        pool = MemoryPool(self._environment, min(self._limit, LINK_BYTES), KEPT_BYTES)
        self._pools.add(pool)
        return pool

    def name(self, descriptor: int) -> int:
        """What a descriptor of this process is called where its memory is announced."""
        return descriptor

    def map(self, process: int, name: int, key: bytes, most: int) -> WritableMapping:
        """Memory of another process, at most so many bytes. Raises `NotLendableError`."""
        return WritableMapping(process, name, key, most)

    def take(self, pool: MemoryPool, size: int) -> Block | None:
        """A block of one of the pools; None if its own limit or that of all forbids it."""
        before = pool.allocated
        block = pool.take(size)
        # A block that was used before takes no more than there was.
        if block is None or pool.allocated <= before:
            return block
        if sum(each.allocated for each in self._pools) > self._limit:
            for each in self._pools:
                each.tidy()
            if sum(each.allocated for each in self._pools) > self._limit:
                return None
        return block


@attrs.define
class _Loan:
    """The blocks of one frame. `ticket`: by which the link knows the frame."""

    blocks: list[Block]
    ticket: Hashable = None


class Lender:
    """The sender's half. `post` sends a numbered frame of the link."""

    def __init__(self, pools: LendingPools, post: Callable[[bytes], object]) -> None:
        self._pools = pools
        self._pool = pools.open()
        self._post = post
        self._numbers: dict[bytes, int] = {}
        """The numbers of announced arenas, by key."""
        self._mapped: set[int] = set()
        """The numbers of the arenas that the peer has mapped."""
        self._loans: dict[int, _Loan] = {}
        self._by_ticket: dict[Hashable, int] = {}
        self._latest_arena = 0
        self._latest_loan = 0
        self._begun = False
        self._refused = False
        """True once the peer could not map an arena: it will not be able to map others."""
        self._idle_beats = 0
        self.loaned_bytes = 0
        """In all, since the link began."""

    @property
    def is_refused(self) -> bool:
        """True once the peer could not map memory of this end."""
        return self._refused

    @property
    def open_loans(self) -> int:
        """How many frames in shared memory the peer has not returned."""
        return len(self._loans)

    def begin(self) -> None:
        """Lend from now on: the peer is known to borrow. It may be called again."""
        self._begun = True

    def lend(
        self, frame: bytes, segments: Sequence[Buffer]
    ) -> tuple[int, bytes, tuple[Buffer, ...]] | None:
        """Copy what can be lent. Returns the loan's number, the head of the LOAN frame and its
        other segments; None if nothing can be lent.
        """
        if self._refused or not self._begun:
            return None
        self._idle_beats = 0
        places: list[bytes] = []
        blocks: list[Block] = []
        rest: list[Buffer] = []
        for index, segment in enumerate(segments):
            block = self._block_for(segment)
            if block is None:
                rest.append(segment)
            else:
                place = block.place
                number = self._numbers[place.key]
                places.append(_PLACE.pack(index, number, place.offset, place.size))
                blocks.append(block)
        if not blocks:
            return None
        self._latest_loan += 1
        loan = _LOAN.pack(self._latest_loan, len(places))
        control = b"".join((loan, *places, frame))
        if len(control) > LIMITS.control:
            # A frame whose control part is as large as it may be: its places do not fit.
            return None
        self._loans[self._latest_loan] = _Loan(blocks)
        self.loaned_bytes += sum(block.place.size for block in blocks)
        return self._latest_loan, encode_frame(Kind.LOAN, control, rest), tuple(rest)

    def on_posted(self, loan: int, ticket: Hashable) -> None:
        """The frame of a loan was posted under this ticket."""
        assert ticket not in self._by_ticket, f"the link has given ticket {ticket} twice"
        self._loans[loan].ticket = ticket
        self._by_ticket[ticket] = loan

    def on_abandoned(self, ticket: Hashable) -> None:
        """The frame of this ticket will never be received: take its blocks back, if it has any."""
        loan = self._by_ticket.pop(ticket, None)
        if loan is not None:
            del self._loans[loan]

    def on_returned(self, frame: Frame) -> None:
        """Take back the blocks of the frames that the peer has returned. Raises ProtocolError for a
        frame that was not lent.
        """
        if len(frame.control) % _RETURNED.size or frame.segments:
            raise ProtocolError("a frame of returned loans with something else in it")
        for (number,) in _RETURNED.iter_unpack(frame.control):
            loan = self._loans.pop(number, None)
            if loan is None:
                raise ProtocolError(f"the peer returned frame {number}, which was not lent to it")
            self._by_ticket.pop(loan.ticket, None)
        assert len(self._by_ticket) <= len(self._loans), "a ticket names a loan that is returned"

    def on_answered(self, flag: int, number: int) -> None:
        """The peer has mapped an arena, or cannot."""
        if all(self._numbers[key] != number for key in self._numbers if self._pool.is_open(key)):
            # It was closed meanwhile, perhaps before the peer learned of it: nothing is lent from
            # it, and that it could not be mapped says nothing of others.
            return
        if flag == ArenaFlag.REFUSED:
            self._refused = True
        else:
            self._mapped.add(number)

    def on_beat(self) -> None:
        """Give memory back that is not needed; all that is free, if nothing was lent for some
        beats.
        """
        self._idle_beats += 1
        if self._idle_beats > IDLE_BEATS or self._refused:
            self._pool.trim()
        self._close_arenas()

    def _close_arenas(self) -> None:
        """Name the arenas to the peer that the pool has closed."""
        self._pool.tidy()
        for key in [key for key in self._numbers if not self._pool.is_open(key)]:
            number = self._numbers.pop(key)
            self._mapped.discard(number)
            self._post(encode_frame(Kind.ARENA, _NUMBER.pack(number), flags=ArenaFlag.CLOSED))

    def close(self) -> None:
        """End all loans with the link. The peer may still read their blocks, so none of them is
        used again.
        """
        # Before the loans: their blocks would count as free otherwise.
        self._pool.abandon()
        self._loans.clear()
        self._by_ticket.clear()

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps: for tests."""
        self._pool.check_invariants()
        assert self._begun or not self._numbers, "nothing is announced to who may not know of it"
        assert self._mapped <= set(self._numbers.values()), "mapped means announced"
        assert set(self._by_ticket.values()) <= self._loans.keys()
        for loan in self._loans.values():
            for block in loan.blocks:
                assert self._numbers[block.place.key] in self._mapped, "lent means mapped"

    def _block_for(self, segment: Buffer) -> Block | None:
        size = len(segment)
        if not LOAN_BYTES <= size <= MOST_LOAN_BYTES:
            return None
        block = self._pools.take(self._pool, size)
        if block is None:
            return None
        number = self._numbers.get(block.place.key)
        if number is None:
            self._announce(block)
            return None
        if number not in self._mapped:
            return None
        block.memory[:] = segment
        return block

    def _announce(self, block: Block) -> None:
        self._close_arenas()
        self._latest_arena += 1
        place = block.place
        self._numbers[place.key] = self._latest_arena
        name = self._pools.name(place.descriptor)
        control = _ARENA.pack(self._latest_arena, name, place.key)
        self._post(encode_frame(Kind.ARENA, control, flags=ArenaFlag.ANNOUNCED))


class Borrower:
    """The receiver's half. `post` sends a numbered frame of the link. `process`: the pid of the
    peer according to the kernel, because a peer may have only its own memory mapped.
    """

    def __init__(self, pools: LendingPools, post: Callable[[bytes], object], process: int) -> None:
        self._pools = pools
        self._post = post
        self._process = process
        self._mappings: dict[int, WritableMapping] = {}
        self._ends: FinalizerQueue[int] = FinalizerQueue()
        self._read: dict[int, int] = {}
        """The frames that may still be read here, each with the bytes that were lent with it."""
        self._ended: list[int] = []
        """Frames in `_read` that nothing reads any more, and that were not returned yet."""

    @property
    def borrowed(self) -> int:
        """How many frames of the peer this side has not returned yet."""
        return len(self._read)

    def on_loan(self, frame: Frame) -> Frame:
        """The frame that a LOAN frame stands for. Raises ProtocolError for places that are not in
        memory which the peer has announced.
        """
        control = frame.control
        if len(control) < _LOAN.size:
            raise ProtocolError("a loan without a number")
        number, count = _LOAN.unpack_from(control)
        head = _LOAN.size + count * _PLACE.size
        if number in self._read or not count or len(control) < head + HEADER.size:
            raise ProtocolError(f"a loan of {count} places in {len(control)} bytes, or twice")
        kind, flags, whole, length = HEADER.unpack_from(control, head)
        start = head + HEADER.size + 4 * whole
        if kind >= Kind.BEGIN or len(control) != start + length or whole > LIMITS.segments:
            raise ProtocolError(f"a loan of a frame of kind {kind}, which does not fit its length")
        sizes = struct.unpack_from(f"!{whole}I", control, head + HEADER.size)
        places = _PLACE.iter_unpack(control[_LOAN.size : head])
        views: dict[int, memoryview] = {}
        token = self._ends.token(number)
        for index, arena, offset, size in places:
            mapping = self._mappings.get(arena)
            if mapping is None:
                raise ProtocolError(f"a loan in memory {arena}, which the peer has not announced")
            if not 0 < size <= mapping.length - HEADER_SIZE - (offset - HEADER_SIZE):
                raise ProtocolError(f"a loan of {size} bytes beyond the end of memory {arena}")
            if offset < HEADER_SIZE or index >= whole or index in views or sizes[index] != size:
                raise ProtocolError(f"a loan of {size} bytes as segment {index} of {whole}")
            views[index] = mapping.view(offset, size, token)
        segments = _merged(whole, sizes, views, frame.segments)
        self._read[number] = sum(map(len, views.values()))
        # The token must live in the views alone from here on: its end is theirs.
        del token
        return Frame(kind, flags, control[start:], segments)

    def on_arena(self, flag: int, control: bytes) -> None:
        """The peer has announced memory, or closed it. Raises ProtocolError."""
        if flag == ArenaFlag.CLOSED and len(control) == _NUMBER.size:
            # Views keep the memory mapped that they need.
            (number,) = _NUMBER.unpack(control)
            self._mappings.pop(number, None)
            return
        if flag != ArenaFlag.ANNOUNCED or len(control) != _ARENA.size:
            raise ProtocolError(f"{len(control)} bytes that say {flag} of shared memory")
        number, descriptor, key = _ARENA.unpack(control)
        if number in self._mappings:
            raise ProtocolError(f"the peer announced memory {number} twice")
        room = MOST_MAPPED_BYTES - sum(each.length for each in self._mappings.values())
        answer = ArenaFlag.REFUSED
        if len(self._mappings) < MOST_ARENAS:
            try:
                self._mappings[number] = self._pools.map(self._process, descriptor, key, room)
                answer = ArenaFlag.MAPPED
            except NotLendableError:
                # What the kernel does not allow goes over the socket.
                pass
        self._post(encode_frame(Kind.ARENA, _NUMBER.pack(number), flags=answer))

    def returned(self, least: int = 1) -> bytes | None:
        """A frame that returns all that nothing reads any more; None if that is less than `least`
        bytes.
        """
        # The views of a frame that was refused end too, and were never lent.
        self._ended += [number for number in self._ends.gone() if number in self._read]
        # Asked before each frame that is sent or received: mostly nothing has ended.
        if not self._ended or sum(map(self._read.__getitem__, self._ended)) < least:
            return None
        control = b"".join(map(_RETURNED.pack, self._ended))
        assert len(self._ended) <= len(self._read), "a frame is returned once"
        for number in self._ended:
            del self._read[number]
        self._ended.clear()
        return encode_frame(Kind.RETURNED, control)

    def give_back(self, least: int = 1) -> None:
        """Post the frame of `returned`, if there is one."""
        frame = self.returned(least)
        if frame is not None:
            self._post(frame)


class Lending:
    """Both halves of one link."""

    def __init__(self, pools: LendingPools, post: Callable[[bytes], object], process: int) -> None:
        self.lender = Lender(pools, post)
        self.borrower = Borrower(pools, post, process)

    def on_frame(self, frame: Frame) -> Frame | None:
        """Act upon a frame of one of the three kinds; returns the frame that a LOAN stands for.
        Raises ProtocolError.
        """
        # Each loan is a moment to return earlier ones: while frames come, no large one has to wait
        # for the next beat.
        self.borrower.give_back(RETURNED_AT_ONCE)
        if frame.kind == Kind.LOAN:
            return self.borrower.on_loan(frame)
        if frame.kind == Kind.RETURNED:
            self.lender.on_returned(frame)
        elif frame.segments:
            raise ProtocolError("a frame about shared memory has segments")
        elif frame.flags in (ArenaFlag.MAPPED, ArenaFlag.REFUSED):
            if len(frame.control) != _NUMBER.size:
                raise ProtocolError("an answer about shared memory without its number")
            self.lender.on_answered(frame.flags, *_NUMBER.unpack(frame.control))
        else:
            self.borrower.on_arena(frame.flags, frame.control)
        return None

    def on_beat(self) -> None:
        """Return the peer's frames that nothing reads any more, and give free memory back to the
        kernel.
        """
        self.borrower.give_back()
        self.lender.on_beat()


def declined(frame: Frame) -> bytes | None:
    """The answer to a frame of one of the three kinds at an end that does not lend and borrow: that
    the memory which is announced is not mapped here, so that nothing is lent from it. None if there
    is nothing to answer. Raises ProtocolError for all frames that do not come before that answer.
    """
    control = frame.control
    if frame.kind == Kind.ARENA and not frame.segments:
        if frame.flags == ArenaFlag.ANNOUNCED and len(control) == _ARENA.size:
            number, _, _ = _ARENA.unpack(control)
            return encode_frame(Kind.ARENA, _NUMBER.pack(number), flags=ArenaFlag.REFUSED)
        if frame.flags == ArenaFlag.CLOSED and len(control) == _NUMBER.size:
            return None
    raise ProtocolError(
        f"a frame of kind {frame.kind} about shared memory, of which there is none with this peer"
    )


def _merged(
    count: int, sizes: Sequence[int], views: dict[int, memoryview], sent: Sequence[Segment]
) -> tuple[Segment, ...]:
    """All segments of a frame in their order: those that were lent, and those that were sent."""
    if len(sent) != count - len(views):
        raise ProtocolError(f"a loan of {len(views)} of {count} segments came with {len(sent)}")
    others = iter(sent)
    merged: list[Segment] = []
    for index in range(count):
        segment = views[index] if index in views else next(others)
        if len(segment) != sizes[index]:
            raise ProtocolError(f"segment {index} of a loan has {len(segment)} bytes")
        merged.append(segment)
    return tuple(merged)
