"""Reassembly: large frames put together again from the parts in which they travel.

BEGIN names a transfer and the layout of its frame: `[number of the transfer, 4 bytes][header and sizes of the frame]`. Each PART, `[number
of the transfer, 4 bytes]` and one segment, brings the next bytes of the frame's control part and segments, in order. With the last of them
the frame is whole. ABANDON, `[number of the transfer, 4 bytes]`, ends a transfer of which the rest will never come. `transfers` is the
other side. All three are numbered by the session like any frame, so that nothing here is lost or doubled when a connection breaks; what is
put together belongs to the link and outlives its connections. A part of which only some bytes came is written again from its beginning.

Promises: sizes are checked before anything is allocated, memory is taken only as its bytes arrive, and one link never holds more than
`MOST_BYTES` of unfinished frames. No I/O and no clock.
"""

from __future__ import annotations

import struct

from actors.errors import ProtocolError
from runtime.wire.frames import HEADER, LIMITS, Frame, Kind, Limits
from runtime.wire.segments import ReceivedSegment, Segment

MOST_TRANSFERS = 32
"""Transfers of one direction of a link that are under way at once. More would not be faster, and each would end later."""

MOST_BYTES = 4 * LIMITS.frame
"""Bytes of all these together: a few of the largest frames may travel side by side, so that one does not hold up the others."""

TRANSFER_KINDS = frozenset({Kind.BEGIN, Kind.PART, Kind.ABANDON})
FIRST_UNNUMBERED_KIND = 32
"""Kinds below are numbered, kept until acknowledged and delivered once; kinds from here on live and die with their connection."""


class _Arriving:
    """One frame of which some is still missing. Its first piece is the control part, the others are its segments."""

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
        """Where the next `size` bytes belong."""
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
        control, *segments = self.pieces
        whole: tuple[Segment, ...] = tuple(b"" if segment is None else segment for segment in segments)
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

    def connected(self, limits: Limits) -> None:
        """A new connection stands: what was begun on another one will be sent again."""
        self._limits = limits
        self._placed = None

    def place(self, control: bytes, size: int) -> tuple[memoryview, ...]:
        """Where the bytes of a part go that is about to be received; see `FrameReader.place`. Raises ProtocolError."""
        self._placed = self._expected(control, size).views(size)
        self._placed_for = (control, size)
        return self._placed

    def take(self, frame: Frame) -> Frame | None:
        """Act upon a frame of a transfer; the frame that it makes whole, if it does. Raises ProtocolError for any other kind, too."""
        if frame.kind == Kind.PART:
            return self._part(frame)
        if frame.kind == Kind.BEGIN:
            self._begin(frame)
        elif frame.kind == Kind.ABANDON:
            arriving = self._arriving.pop(frame.control, None)
            if arriving is None or frame.segments:
                raise ProtocolError("the peer abandoned a transfer that is not under way")
            self._bytes -= arriving.total
        else:
            raise ProtocolError(f"a frame of kind {frame.kind}, which this version does not know")
        return None

    def clear(self) -> None:
        """Nothing will follow: free everything."""
        self._arriving.clear()
        self._bytes = 0
        self._placed = None

    def _begin(self, frame: Frame) -> None:
        identity, layout = frame.control[:4], frame.control[4:]
        if frame.segments or len(layout) < HEADER.size:
            raise ProtocolError("a transfer began with something else than the layout of its frame")
        kind, flags, count, length = HEADER.unpack_from(layout)
        if kind >= FIRST_UNNUMBERED_KIND or kind in TRANSFER_KINDS:
            raise ProtocolError(f"a transfer of a frame of kind {kind}, which travels whole")
        if count > self._limits.segments or len(layout) != HEADER.size + 4 * count or length > self._limits.control:
            raise ProtocolError(f"a transfer of {count} segments and a control part of {length} bytes, laid out in {len(layout)} bytes")
        sizes = struct.unpack_from(f"!{count}I", layout, HEADER.size)
        arriving = _Arriving(kind, flags, (length, *sizes))
        if not 0 < arriving.total <= self._limits.frame - len(layout):
            raise ProtocolError(f"a transfer of {arriving.total} bytes, where {self._limits.frame} are allowed")
        if len(self._arriving) >= MOST_TRANSFERS or self._bytes + arriving.total > MOST_BYTES:
            raise ProtocolError(f"more than {MOST_TRANSFERS} transfers or {MOST_BYTES} bytes of them at once")
        if identity in self._arriving:
            raise ProtocolError("a transfer began twice")
        self._arriving[identity] = arriving
        self._bytes += arriving.total

    def _part(self, frame: Frame) -> Frame | None:
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
        return arriving.frame()

    def _expected(self, identity: bytes, size: int) -> _Arriving:
        arriving = self._arriving.get(identity)
        if arriving is None:
            raise ProtocolError("a part of a transfer that is not under way")
        if not 0 < size <= arriving.missing:
            raise ProtocolError(f"a part of {size} bytes of a transfer that lacks {arriving.missing}")
        return arriving
