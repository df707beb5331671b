"""Frames: how bytes on a connection become bounded messages, and messages bytes.

A frame is a fixed header (kind, flags, number of segments, length of the control part), the size of each segment, the control part
(one CBOR item, which the codec understands) and then the segments: raw bytes, arrays, buffers. Segments stand apart so that large data
is sent from where it lies and received straight into the buffer in which it will be used.

Promises: nothing is allocated for a frame whose header breaks the limits; a frame is handed out complete or not at all; the cost of
reading is linear in the bytes received, however they are cut. No I/O: sending the segments after the encoded head, and receiving into
`FrameReader.receive_buffer`, is the link's work. What kinds mean is left to the rooms above.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, NoReturn

import attrs

from actors.errors import EncodeError, ProtocolError

Buffer = bytes | bytearray | memoryview
"""What may travel as a segment."""

HEADER = struct.Struct("!BBHI")
"""Kind, flags, number of segments, bytes in the control part; the sizes of the segments follow, four bytes each."""

DIRECT_SIZE = 64 * 1024
"""Bytes from which a segment is received into a buffer of its own. Below, it usually arrives whole with one receive anyway."""


class Kind(IntEnum):
    """What a frame is for. Those below 32 are numbered, acknowledged and sent again by the link's session."""

    CALL = 1
    REPLY = 2
    ERROR = 3
    CANCEL = 4
    SEND = 5
    PING = 32
    PONG = 33
    ACK = 34
    GOODBYE = 35
    HELLO = 40
    CHALLENGE = 41
    PROOF = 42
    WELCOME = 43
    REFUSED = 44
    RESUME = 45


@attrs.frozen
class Limits:
    """What a reader accepts: bytes in the control part, bytes in the whole frame, and segments."""

    control: int = 256 * 1024
    frame: int = 256 * 1024 * 1024
    segments: int = 1024


LIMITS = Limits()
"""Between nodes that have proven themselves to each other; also what `encode_frame` holds itself to."""

UNPROVEN = Limits(control=4096, frame=8192, segments=0)
"""Before that: enough for a handshake, and little to gain from sending garbage."""


class Frame(NamedTuple):
    """One complete frame. Segments received into a buffer of their own are bytearrays, the others bytes."""

    kind: int
    flags: int
    control: bytes
    segments: tuple[Buffer, ...]


def encode_frame(kind: int, control: bytes, segments: Sequence[Buffer] = (), flags: int = 0) -> bytes:
    """The head of a frame: header, sizes and control part. The caller sends the segments themselves right after it.

    Raises EncodeError if the frame is larger than any peer would accept; nothing of it must be sent then.
    """
    length = len(control)
    if length > LIMITS.control:
        raise EncodeError(
            f"the control part of a frame would have {length} bytes and may have {LIMITS.control}; "
            "send large data as bytes or numpy arrays, which travel beside the control part"
        )
    if not segments:
        return HEADER.pack(kind, flags, 0, length) + control
    count = len(segments)
    sizes = [segment.nbytes if isinstance(segment, memoryview) else len(segment) for segment in segments]
    total = HEADER.size + 4 * count + length + sum(sizes)
    if count > LIMITS.segments or total > LIMITS.frame:
        raise EncodeError(
            f"a frame would have {total} bytes in {count} segments (the largest: {max(sizes)} bytes) and may have {LIMITS.frame} bytes in "
            f"{LIMITS.segments} segments; send the data as bytes or numpy arrays in several smaller calls"
        )
    return HEADER.pack(kind, flags, count, length) + struct.pack(f"!{count}I", *sizes) + control


class FrameReader:
    """Takes what a connection receives, however it is cut, and hands out complete frames.

    `limits` may be replaced between two frames, once the peer has proven itself. After a ProtocolError the reader refuses all input:
    nothing that follows a broken header can be trusted to be a header.
    """

    __slots__ = ("_broken", "_filled", "_head", "_needed", "_rest", "_segments", "_sizes", "_target", "limits")

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self._broken = False
        self._rest = bytearray()
        self._needed = 0
        self._head: tuple[int, int, bytes] | None = None
        self._sizes: tuple[int, ...] = ()
        self._segments: list[Buffer] = []
        self._target: bytearray | None = None
        self._filled = 0

    def feed(self, data: bytes) -> list[Frame]:
        """All frames that `data` completes. Raises ProtocolError as soon as a header breaks the limits."""
        if self._broken:
            self._refuse("input after a broken frame")
        if self._rest:
            self._rest += data
            # Joined only once the next part is complete, so that many small pieces do not cost the square of their number.
            if len(self._rest) < self._needed:
                return []
            data = bytes(self._rest)
            self._rest = bytearray()
        frames: list[Frame] = []
        position = 0
        if self._head is not None:
            position = self._take(data, 0, frames)
        if self._head is None:
            position = self._parse(data, position, frames)
        if position < len(data):
            self._rest += data[position:]
        return frames

    def receive_buffer(self) -> memoryview | None:
        """Where the next bytes belong, if they are part of a large segment: receive into it, then call `filled`. None: use `feed`."""
        if self._target is None:
            return None
        return memoryview(self._target)[self._filled :]

    def filled(self, count: int) -> list[Frame]:
        """`count` bytes were received into `receive_buffer()`; the frame that they complete, if they do."""
        target = self._target
        if target is None or not 0 <= count <= len(target) - self._filled:
            raise ValueError(f"{count} bytes were not asked for; receive into receive_buffer(), or use feed()")
        self._filled += count
        frames: list[Frame] = []
        if self._filled == len(target):
            self._take(b"", 0, frames)
        return frames

    def _parse(self, data: bytes, position: int, frames: list[Frame]) -> int:
        """Read frames from `position` on; where the first incomplete part begins. `_needed` is then the length of that part."""
        end = len(data)
        limits = self.limits
        unpack = HEADER.unpack_from
        while end - position >= 8:
            kind, flags, count, length = unpack(data, position)
            if length > limits.control:
                self._refuse(f"a control part of {length} bytes, where {limits.control} are allowed")
            if not count:
                stop = position + 8 + length
                if stop > end:
                    self._needed = 8 + length
                    return position
                frames.append(Frame(kind, flags, data[position + 8 : stop], ()))
                position = stop
                continue
            if count > limits.segments:
                self._refuse(f"a frame of {count} segments, where {limits.segments} are allowed")
            start = position + 8 + 4 * count
            if start > end:
                self._needed = 8 + 4 * count
                return position
            sizes = struct.unpack_from(f"!{count}I", data, position + 8)
            total = 8 + 4 * count + length + sum(sizes)
            if total > limits.frame:
                self._refuse(f"a frame of {total} bytes, where {limits.frame} are allowed")
            if start + length > end:
                self._needed = 8 + 4 * count + length
                return position
            self._head = (kind, flags, data[start : start + length])
            self._sizes = sizes
            done = len(frames)
            position = self._take(data, start + length, frames)
            if len(frames) == done:
                return position
        self._needed = 8
        return position

    def _take(self, data: bytes, position: int, frames: list[Frame]) -> int:
        """Read segments of the frame begun, and finish it if all are there; the position after what was read."""
        end = len(data)
        segments = self._segments
        target = self._target
        if target is not None:
            stop = min(end, position + len(target) - self._filled)
            target[self._filled : self._filled + stop - position] = data[position:stop]
            self._filled += stop - position
            if self._filled < len(target):
                return stop
            position = stop
            segments.append(target)
            self._target = None
        for size in self._sizes[len(segments) :]:
            stop = position + size
            if stop <= end:
                segments.append(data[position:stop])
                position = stop
            elif size >= DIRECT_SIZE:
                self._target = target = bytearray(size)
                self._filled = end - position
                target[: self._filled] = data[position:]
                return end
            else:
                self._needed = size
                return position
        assert self._head is not None
        frames.append(Frame(*self._head, tuple(segments)))
        self._head = None
        self._sizes = ()
        self._segments = []
        return position

    def _refuse(self, what: str) -> NoReturn:
        self._broken = True
        self._rest = bytearray()
        self._segments = []
        self._target = None
        raise ProtocolError(f"the peer sent {what}; the connection must be closed")
