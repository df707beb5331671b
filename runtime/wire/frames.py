"""Frames: how messages are laid out in a stream of bytes, and how they are cut out of it again.

A frame is a header (kind, flags, number of segments, length of the control part), the size of each segment, the control part (one CBOR item) and
the segments (raw bytes). Nothing is decoded here but the header, and every length is checked against the limits before anything is allocated
for it. After a violation the reader takes no more: the stream has lost its meaning.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import attrs

from actors.errors import EncodeError, ProtocolError

Buffer = bytes | bytearray | memoryview

_HEADER = struct.Struct("!BBHI")
HEADER_SIZE = _HEADER.size
SIZE_OF_SIZE = 4
DIRECT = 64 * 1024
"""Bytes from which the rest of a segment is received straight into its final buffer."""


class Kind(IntEnum):
    """What a frame is for. Those below 32 are numbered by the link's session; from 40 on they belong to the setting up of a connection."""

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


_KINDS = frozenset(int(kind) for kind in Kind)


@attrs.frozen
class Limits:
    """What a peer may send, in bytes and pieces. `frame` counts everything from the header to the last segment."""

    control: int = 256 * 1024
    frame: int = 256 * 1024 * 1024
    segments: int = 1024


UNPROVEN = Limits(control=4096, frame=8192, segments=0)
"""For a peer that has not proven itself."""


class Frame(NamedTuple):
    """One frame as it was received."""

    kind: int
    flags: int
    control: bytes
    segments: tuple[Buffer, ...] = ()


def encode_frame(kind: int, control: bytes, segments: Sequence[Buffer] = (), flags: int = 0, limits: Limits = Limits()) -> bytes:  # noqa: B008
    """Header, segment sizes and control part of a frame, in one piece; the segments are to be sent after it, as they are.

    Raises EncodeError if it would be more than a peer with these limits takes.
    """
    if len(control) > limits.control:
        raise EncodeError(
            f"a message of {len(control)} bytes is too large: {limits.control} are allowed beside bytes and arrays; send it in parts, "
            "or send large data as bytes or numpy arrays, which travel outside of it"
        )
    if not segments:
        return _HEADER.pack(kind, flags, 0, len(control)) + control
    sizes = [memoryview(segment).nbytes for segment in segments]
    if len(sizes) > limits.segments or HEADER_SIZE + len(control) + sum(sizes) > limits.frame:
        raise EncodeError(
            f"a message of {len(sizes)} large values, {sum(sizes)} bytes together, is too large: {limits.segments} values and "
            f"{limits.frame} bytes are allowed; send it in parts"
        )
    return _HEADER.pack(kind, flags, len(sizes), len(control)) + struct.pack(f"!{len(sizes)}I", *sizes) + control


class FrameReader:
    """Cuts frames out of a stream: feed it what arrives, in pieces of any size."""

    def __init__(self, limits: Limits = Limits()) -> None:  # noqa: B008
        self.limits = limits
        """May be changed between frames, as when a peer has proven itself."""
        self._rest = b""
        self._needed = HEADER_SIZE
        self._broken: str | None = None
        self._head: tuple[int, int, bytes] | None = None
        self._sizes: tuple[int, ...] = ()
        self._segments: list[bytearray] = []
        self._filled = 0

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes. Raises ProtocolError, and does so ever after."""
        if self._broken is not None:
            raise ProtocolError(self._broken)
        frames: list[Frame] = []
        if self._rest:
            data = self._rest + data
            self._rest = b""
        try:
            self._parse(data, frames)
        except ProtocolError as error:
            self._broken = str(error)
            if not frames:
                raise
            # What came before the violation is still good; the violation is raised at the next feed.
        return frames

    def receive_buffer(self) -> memoryview | None:
        """Where to receive into while a large segment is under way; None if `feed` is the way."""
        if self._head is None or self._broken is not None or self._rest:
            return None
        if len(self._segments[-1]) - self._filled < DIRECT:
            return None
        return memoryview(self._segments[-1])[self._filled :]

    def filled(self, count: int) -> list[Frame]:
        """`count` bytes were received into `receive_buffer`."""
        self._filled += count
        if self._filled < len(self._segments[-1]):
            return []
        frames: list[Frame] = []
        self._parse(b"", frames)
        return frames

    def _parse(self, data: bytes, frames: list[Frame]) -> None:
        position = 0
        end = len(data)
        if self._head is not None:
            position = self._fill(data, 0)
            if not self._complete(frames):
                return
        unpack = _HEADER.unpack_from
        limits = self.limits
        most = limits.control
        while end - position >= HEADER_SIZE:
            kind, flags, count, length = unpack(data, position)
            if kind not in _KINDS or length > most or count:
                self._check(kind, count, length, 0)
            body = position + HEADER_SIZE
            if not count:
                after = body + length
                if after > end:
                    break
                frames.append(Frame(kind, flags, data[body:after]))
                position = after
                continue
            sizes_end = body + count * SIZE_OF_SIZE
            if sizes_end > end:
                break
            sizes = struct.unpack_from(f"!{count}I", data, body)
            self._check(kind, count, length, sum(sizes))
            if sizes_end + length > end:
                break
            self._head = (kind, flags, data[sizes_end : sizes_end + length])
            self._sizes = sizes
            # Allocated on the word of a peer that has proven itself, and within the limit that this node accepts per frame.
            self._segments = [bytearray(sizes[0])]
            self._filled = 0
            position = self._fill(data, sizes_end + length)
            if not self._complete(frames):
                return
        self._rest = data[position:] if position else data

    def _fill(self, data: bytes, position: int) -> int:
        """Copy into the segments what is there of them; returns the position behind it."""
        end = len(data)
        while True:
            segment = self._segments[-1]
            take = min(len(segment) - self._filled, end - position)
            if take:
                segment[self._filled : self._filled + take] = data[position : position + take]
                self._filled += take
                position += take
            if self._filled < len(segment) or len(self._segments) == len(self._sizes):
                return position
            self._segments.append(bytearray(self._sizes[len(self._segments)]))
            self._filled = 0

    def _complete(self, frames: list[Frame]) -> bool:
        """True if the frame under way is complete, and then it is among `frames`."""
        assert self._head is not None
        if self._filled < len(self._segments[-1]) or len(self._segments) < len(self._sizes):
            if self._filled == len(self._segments[-1]):
                self._segments.append(bytearray(self._sizes[len(self._segments)]))
                self._filled = 0
                return self._complete(frames)
            return False
        frames.append(Frame(*self._head, tuple(self._segments)))
        self._head = None
        self._segments = []
        return True

    def _check(self, kind: int, count: int, length: int, segments: int) -> None:
        limits = self.limits
        if kind not in _KINDS:
            raise ProtocolError(f"a frame of unknown kind {kind}; is the peer a node?")
        if length > limits.control:
            raise ProtocolError(f"a frame with a control part of {length} bytes; {limits.control} are allowed")
        if count > limits.segments:
            raise ProtocolError(f"a frame of {count} segments; {limits.segments} are allowed")
        if HEADER_SIZE + count * SIZE_OF_SIZE + length + segments > limits.frame:
            raise ProtocolError(f"a frame of more than {limits.frame} bytes, which is the limit")
