"""Transfers: large frames that are sent in parts, so that other frames can be sent between them.

A frame above `WHOLE` is not given to the session as it is. It waits here, and whenever there is
room, its next part is numbered, kept and written; several transfers take turns. The comment above
`Reassembly` has the format, the class the other side. Frames of one lane keep their order: while a
transfer of a lane is under way, later frames of that lane wait here as well. Frames of other lanes
overtake it.

No I/O and no clock: the link asks for what is next, and numbers it. Cutting large messages so that
small ones are not held up is HTTP/2's framing (RFC 9113), without its windows for each stream: the
session's one window does for all.
"""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from actors.errors import ProtocolError
from runtime.links.session import may_change, unchanging
from runtime.wire.frames import (
    HEADER,
    LIMITS,
    Buffer,
    Frame,
    Kind,
    Limits,
    ReceivedSegment,
    Segment,
    encode_frame,
)

# Reassembly: large frames put together again from the parts in which they travel.
#
# BEGIN names a transfer and the layout of its frame: `[number of the transfer, 4 bytes][header and
# sizes of the frame]`. Each PART, `[number of the transfer, 4 bytes]` and one segment, brings the
# next bytes of the frame's control part and segments, in order. With the last of them the frame is
# whole. ABANDON, `[number of the transfer, 4 bytes]`, ends a transfer of which the rest will never
# come. `Transfers` is the other side. All three are numbered by the session like any frame, so that
# nothing here is lost or doubled when a connection breaks; what is put together belongs to the link
# and outlives its connections. A part of which only some bytes came is written again from its
# beginning.
#
# Promises: sizes are checked before anything is allocated, memory is taken only as its bytes
# arrive, and one link never holds more than `MOST_BYTES` of unfinished frames. No I/O and no clock.

MOST_TRANSFERS = 32
"""Transfers of one direction of a link that are under way at once. More would not be faster, and
each would end later.
"""

MOST_BYTES = 4 * LIMITS.frame
"""Bytes of all these together: a few of the largest frames may travel side by side, so that one
does not hold up the others.
"""

TRANSFER_KINDS = frozenset({Kind.BEGIN, Kind.PART, Kind.ABANDON})

FIRST_UNNUMBERED_KIND = 32
"""Kinds below are numbered, kept until acknowledged and delivered once; kinds from here on live and
die with their connection.
"""

PART = 512 * 1024
"""Bytes of a frame that are sent in one piece: a small frame may have to wait for this many,
besides those that the kernel holds already.
"""

WHOLE = 1152 * 1024
"""Bytes up to which a frame is not worth cutting: cutting costs about a quarter of the speed of
frames of this size.
"""

QUEUED_BYTES = 64 * 1024 * 1024
"""Bytes of large frames that may wait before `takes` returns False: enough to keep any connection
busy.
"""

OVERTAKEN_FRAMES = 65_536

OVERTAKEN_BYTES = 16 * 1024 * 1024
"""Small frames that may wait behind transfers of their lanes; like the window of a session."""


class _Arriving:
    """One frame of which some is still missing. Its first piece is the control part, the others are
    its segments.
    """

    __slots__ = ("flags", "index", "kind", "missing", "offset", "pieces", "sizes", "total")

    def __init__(self, kind: int, flags: int, sizes: tuple[int, ...]) -> None:
        self.kind = kind
        self.flags = flags
        self.sizes = sizes
        self.pieces: list[ReceivedSegment | None] = [None] * len(sizes)
        self.index = 0
        self.offset = 0
        self.total = self.missing = sum(sizes)

    def views(self, size: int) -> tuple[memoryview, ...]:
        """Return the memory for the next `size` bytes."""
        found: list[memoryview] = []
        index, offset = self.index, self.offset
        while size:
            count = min(size, self.sizes[index] - offset)
            if count:
                piece = self.pieces[index]
                if piece is None:
                    piece = self.pieces[index] = ReceivedSegment(self.sizes[index])
                found.append(piece.view(offset, offset + count))
            size -= count
            index, offset = index + 1, 0
        return tuple(found)

    def advance(self, size: int) -> None:
        """`size` more bytes are where they belong."""
        # `_expected` has refused a peer that sends more.
        assert 0 < size <= self.missing
        self.missing -= size
        while size:
            count = min(size, self.sizes[self.index] - self.offset)
            size -= count
            self.offset += count
            if self.offset == self.sizes[self.index]:
                self.index += 1
                self.offset = 0

    def frame(self) -> Frame:
        """The whole frame."""
        assert not self.missing, "memory that no bytes came for is never handed up"
        control, *segments = self.pieces
        whole: tuple[Segment, ...] = tuple(
            b"" if segment is None else segment for segment in segments
        )
        return Frame(self.kind, self.flags, b"" if control is None else bytes(control), whole)


class Reassembly:
    """The unfinished frames that one link receives."""

    __slots__ = ("_arriving", "_bytes", "_limits", "_placed", "_placed_for")

    def __init__(self) -> None:
        self._limits = LIMITS
        self._arriving: dict[bytes, _Arriving] = {}
        self._bytes = 0
        self._placed: tuple[memoryview, ...] | None = None
        self._placed_for = (b"", 0)

    def on_connected(self, limits: Limits) -> None:
        """Note that a new connection was opened: transfers that were begun on another one will be
        sent again.
        """
        self._limits = limits
        self._placed = None

    def place(self, control: bytes, size: int) -> tuple[memoryview, ...]:
        """Return the memory for the bytes of a part that is about to be received; see
        `FrameReader.place`. Raises ProtocolError.
        """
        self._placed = self._expected(control, size).views(size)
        self._placed_for = (control, size)
        return self._placed

    def take(self, frame: Frame) -> Frame | None:
        """Act upon a frame of a transfer; the frame that it makes whole, if it does. Raises
        ProtocolError for any other kind, too.
        """
        if frame.kind == Kind.PART:
            return self._part(frame)
        if frame.kind == Kind.BEGIN:
            self._begin(frame)
        elif frame.kind == Kind.ABANDON:
            if frame.control not in self._arriving or frame.segments:
                raise ProtocolError("the peer abandoned a transfer that is not under way")
            arriving = self._arriving.pop(frame.control)
            self._bytes -= arriving.total
        else:
            raise ProtocolError(f"a frame of kind {frame.kind}, which this version does not know")
        return None

    def clear(self) -> None:
        """Free everything: the link has ended."""
        self._arriving.clear()
        self._bytes = 0
        self._placed = None

    def check_invariants(self) -> None:
        """Assert what must hold between any two frames. Looks at all transfers: for tests and
        simulations.
        """
        if not self._arriving:
            # Of most links, at most times. The rest would be true of nothing.
            assert not self._bytes
            return
        assert self._bytes == sum(one.total for one in self._arriving.values())
        assert self._bytes <= MOST_BYTES, "the memory that one peer can take"
        assert len(self._arriving) <= MOST_TRANSFERS
        for one in self._arriving.values():
            assert 0 < one.missing <= one.total == sum(one.sizes), "what is whole is handed up"
            assert one.index < len(one.sizes)
            assert one.offset <= one.sizes[one.index]
            arrived = sum(one.sizes[: one.index]) + one.offset
            assert arrived == one.total - one.missing, "bytes arrive in order and without gaps"

    def _begin(self, frame: Frame) -> None:
        identity, layout = frame.control[:4], frame.control[4:]
        if frame.segments or len(layout) < HEADER.size:
            raise ProtocolError("a transfer began with something else than the layout of its frame")
        kind, flags, count, length = HEADER.unpack_from(layout)
        if kind >= FIRST_UNNUMBERED_KIND or kind in TRANSFER_KINDS:
            raise ProtocolError(f"a transfer of a frame of kind {kind}, which travels whole")
        if (
            count > self._limits.segments
            or len(layout) != HEADER.size + 4 * count
            or length > self._limits.control
        ):
            raise ProtocolError(
                f"a transfer of {count} segments and a control part of {length} bytes, laid out "
                f"in {len(layout)} bytes"
            )
        sizes = struct.unpack_from(f"!{count}I", layout, HEADER.size)
        arriving = _Arriving(kind, flags, (length, *sizes))
        if not 0 < arriving.total <= self._limits.frame - len(layout):
            raise ProtocolError(
                f"a transfer of {arriving.total} bytes, where {self._limits.frame} are allowed"
            )
        # Before anything is allocated: a peer must not get memory by announcing frames.
        if len(self._arriving) >= MOST_TRANSFERS or self._bytes + arriving.total > MOST_BYTES:
            raise ProtocolError(
                f"more than {MOST_TRANSFERS} transfers or {MOST_BYTES} bytes of them at once"
            )
        if identity in self._arriving:
            raise ProtocolError("a transfer began twice")
        self._arriving[identity] = arriving
        self._bytes += arriving.total

    def _part(self, frame: Frame) -> Frame | None:
        # Looked up again, although `place` has done so: an ABANDON may have come between the two.
        if self._placed is not None and frame.segments is self._placed:
            control, size = self._placed_for
            self._placed = None
            arriving = self._expected(control, size)
        else:
            if len(frame.segments) != 1:
                raise ProtocolError(f"a part of a transfer in {len(frame.segments)} segments")
            segment = frame.segments[0]
            size = len(segment)
            arriving = self._expected(frame.control, size)
            source = memoryview(bytes(segment))
            for view in arriving.views(size):
                view[:] = source[: len(view)]
                source = source[len(view) :]
                view.release()
        arriving.advance(size)
        if arriving.missing:
            return None
        del self._arriving[frame.control]
        self._bytes -= arriving.total
        assert self._bytes >= 0 if self._arriving else self._bytes == 0
        return arriving.frame()

    def _expected(self, identity: bytes, size: int) -> _Arriving:
        arriving = self._arriving.get(identity)
        if arriving is None:
            raise ProtocolError("a part of a transfer that is not under way")
        if not 0 < size <= arriving.missing:
            raise ProtocolError(
                f"a part of {size} bytes of a transfer that lacks {arriving.missing}"
            )
        return arriving


class QueuedFrame:
    """A frame that is sent when its turn comes: the ticket of the code that posted it.

    `number` is the session's for the frame or for the last of its parts, 0 before it has one.
    """

    __slots__ = (
        "abandoned",
        "begun",
        "buffers",
        "identity",
        "lane",
        "number",
        "offset",
        "parts",
        "size",
        "unsent",
    )

    def __init__(self, buffers: Sequence[Buffer], size: int, lane: Hashable) -> None:
        self.buffers: list[Buffer] = list(buffers)
        """The buffers of the frame. Once a transfer has begun: those that are not sent, the first
        of them from `offset` on.
        """
        self.size = size
        self.unsent = size
        self.lane = lane
        self.number = 0
        self.abandoned = False
        self.begun = False
        self.identity = b""
        self.offset = 0
        self.parts: list[int] | None = [] if any(map(may_change, buffers)) else None
        """The numbers of its parts so far, if its memory may change."""

    @property
    def is_transfer(self) -> bool:
        """True if it travels in parts."""
        return self.size > WHOLE

    def own(self) -> None:
        """Copy the unsent buffers that could change."""
        self.buffers = [unchanging(buffer) for buffer in self.buffers]


Ticket = int | QueuedFrame
"""The result of `Link.post`: the number of the frame, or the frame itself while it has none."""


class Transfer(NamedTuple):
    """Buffers to be numbered and written next. `completes`: the frame whose last bytes they are.
    `part`: the transfer of which they are a part.
    """

    buffers: tuple[Buffer, ...]
    completes: QueuedFrame | None = None
    part: QueuedFrame | None = None


class Transfers:
    """All frames of one link that are not with the session yet."""

    __slots__ = (
        "_frames",
        "_latest",
        "_open",
        "_open_bytes",
        "_small_bytes",
        "_unopened",
        "_unsent",
        "lanes",
        "unfinished",
    )

    def __init__(self) -> None:
        self.lanes: dict[Hashable, OrderedDict[QueuedFrame, None]] = {}
        """The frames that wait behind the unfinished transfer of each lane that has one, in order.
        Not in a deque: many thousands of them may be given up in one moment, in any order.
        """
        self.unfinished = 0
        """How many transfers there are; without any, nothing else waits either."""
        self._unopened: deque[QueuedFrame] = deque()
        self._open: deque[QueuedFrame] = deque()
        self._open_bytes = 0
        self._latest = 0
        self._unsent = 0
        self._frames = 0
        self._small_bytes = 0

    @property
    def has_room(self) -> bool:
        """False while too many frames wait behind transfers, or more large ones than could ever
        travel at once.
        """
        return (
            self._frames < OVERTAKEN_FRAMES
            and self._small_bytes < OVERTAKEN_BYTES
            and self._unsent < MOST_BYTES
        )

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are not with the session yet."""
        return self._unsent + self._small_bytes

    @property
    def waiting_frames(self) -> int:
        """Frames that are not with the session yet."""
        return self._frames + self.unfinished

    def takes(self, size: int) -> bool:
        """True if there is room for a further frame of `size` bytes."""
        return self.has_room and (size <= WHOLE or self._unsent < QUEUED_BYTES)

    def add(self, buffers: Sequence[Buffer], size: int, lane: Hashable) -> QueuedFrame:
        """Take a frame that is too large to be sent whole, or whose lane is in `lanes`."""
        queued = QueuedFrame(buffers, size, lane)
        if queued.is_transfer:
            self.unfinished += 1
            self._unsent += size
        else:
            self._frames += 1
            self._small_bytes += size
        if lane in self.lanes:
            self.lanes[lane][queued] = None
        else:
            assert queued.is_transfer, "a small frame waits only behind a transfer of its lane"
            if lane is not None:
                self.lanes[lane] = OrderedDict()
            self._unopened.append(queued)
        return queued

    def next(self) -> list[Transfer]:
        """Return the next part of the transfer whose turn it is. Its first part comes after the
        frame that opens the transfer, its last part before the small frames of its lane. Only while
        there are transfers.
        """
        while (
            self._unopened
            and len(self._open) < MOST_TRANSFERS
            and self._open_bytes + self._unopened[0].size <= MOST_BYTES
        ):
            queued = self._unopened.popleft()
            self._open.append(queued)
            self._open_bytes += queued.size
        assert self._open, "a transfer alone is never too large to be opened"
        # In turns, one part each: a small transfer is not held up by a large one before it.
        queued = self._open.popleft()
        transfers = []
        if not queued.begun:
            transfers.append(Transfer((self._begin(queued),)))
        buffers = self._cut(queued)
        if queued.buffers:
            self._open.append(queued)
            transfers.append(Transfer(buffers, None, queued))
        else:
            self.unfinished -= 1
            self._open_bytes -= queued.size
            assert not queued.unsent, "with its last part a frame is sent to its end"
            assert self._open_bytes >= 0 if self._open else self._open_bytes == 0
            transfers.append(Transfer(buffers, queued, queued))
            transfers += self._free_lane(queued.lane)
        return transfers

    def abandon(self, queued: QueuedFrame) -> list[Transfer] | None:
        """Give up sending the rest of a frame. Return what must be sent because of that; None if
        the whole frame has been sent already.
        """
        if queued.abandoned:
            return []
        if queued.number:
            # The session has its last part: what is numbered is sent, or counts as sent, for ever.
            return None
        queued.abandoned = True
        queued.buffers = []
        if not queued.is_transfer:
            self._frames -= 1
            self._small_bytes -= queued.size
            del self.lanes[queued.lane][queued]
            return []
        self.unfinished -= 1
        self._unsent -= queued.unsent
        waiting = self.lanes.get(queued.lane)
        if waiting is not None and queued in waiting:
            del waiting[queued]
            return []
        transfers = []
        if queued.begun:
            # The peer holds memory for it, and would for as long as the link lives.
            transfers.append(Transfer((encode_frame(Kind.ABANDON, queued.identity),)))
        if queued in self._open:
            self._open.remove(queued)
            self._open_bytes -= queued.size
        else:
            self._unopened.remove(queued)
        return transfers + self._free_lane(queued.lane)

    def clear(self) -> None:
        """Drop everything: the link has ended."""
        self.lanes.clear()
        self._unopened.clear()
        self._open.clear()
        self.unfinished = self._open_bytes = self._unsent = self._frames = self._small_bytes = 0

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. Looks at every frame: for tests and
        simulations.
        """
        if not (self.lanes or self._unopened or self._open):
            # Of most links, at most times. The rest would be true of nothing.
            counted = self.unfinished, self._frames, self._small_bytes, self._unsent
            assert (*counted, self._open_bytes) == (0, 0, 0, 0, 0)
            return
        behind = [queued for waiting in self.lanes.values() for queued in waiting]
        small = [queued for queued in behind if not queued.is_transfer]
        large = [queued for queued in (*behind, *self._unopened, *self._open) if queued.is_transfer]
        assert len(small) + len(large) == len(behind) + len(self._unopened) + len(self._open), (
            "what is open or next travels in parts"
        )
        assert len({*map(id, small), *map(id, large)}) == len(small) + len(large), "one place each"
        assert self.unfinished == len(large)
        assert self._frames == len(small)
        assert self._small_bytes == sum(queued.size for queued in small)
        assert self._unsent == sum(queued.unsent for queued in large)
        assert self._open_bytes == sum(queued.size for queued in self._open) <= MOST_BYTES
        assert len(self._open) <= MOST_TRANSFERS
        begun = [queued.identity for queued in self._open if queued.begun]
        assert len(set(begun)) == len(begun), "a peer tells transfers apart by their numbers"
        under_way = {queued.lane for queued in (*self._unopened, *self._open)} - {None}
        assert self.lanes.keys() == under_way, "nothing waits behind a transfer that has ended"
        for queued in (*small, *large):
            assert not queued.abandoned
            assert not queued.number, "what the session has numbered does not wait here"
            assert queued.buffers

    def _begin(self, queued: QueuedFrame) -> Buffer:
        """The BEGIN of a transfer, whose unsent bytes are from now on those of its control part and
        its segments.
        """
        self._latest = (self._latest + 1) % (1 << 32)
        queued.begun = True
        queued.identity = self._latest.to_bytes(4, "big")
        frame = memoryview(queued.buffers[0])
        end = HEADER.size + 4 * (len(queued.buffers) - 1)
        queued.buffers[0] = frame[end:]
        queued.unsent -= end
        self._unsent -= end
        # From the end, so that sent buffers are popped without moving the others.
        queued.buffers = [buffer for buffer in reversed(queued.buffers) if len(buffer)]
        return encode_frame(Kind.BEGIN, queued.identity + frame[:end])

    def _cut(self, queued: QueuedFrame) -> tuple[Buffer, ...]:
        """The next PART."""
        left = size = min(PART, queued.unsent)
        views: list[Buffer] = []
        while left:
            whole = queued.buffers[-1]
            count = min(left, len(whole) - queued.offset)
            views.append(memoryview(whole)[queued.offset : queued.offset + count])
            left -= count
            queued.offset += count
            if queued.offset == len(whole):
                queued.buffers.pop()
                queued.offset = 0
        queued.unsent -= size
        self._unsent -= size
        head = (
            HEADER.pack(Kind.PART, 0, 1, len(queued.identity))
            + size.to_bytes(4, "big")
            + queued.identity
        )
        return (head, *views)

    def _free_lane(self, lane: Hashable) -> list[Transfer]:
        """A transfer of `lane` has ended: what waited behind it, up to the next transfer."""
        waiting = self.lanes.get(lane)
        transfers: list[Transfer] = []
        # Small frames of the lane go now, in order, but none beyond the next transfer of the lane.
        while waiting:
            queued, _ = waiting.popitem(last=False)
            if queued.is_transfer:
                self._unopened.append(queued)
                return transfers
            self._frames -= 1
            self._small_bytes -= queued.size
            transfers.append(Transfer(tuple(queued.buffers), queued))
        self.lanes.pop(lane, None)
        return transfers
