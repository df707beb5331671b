"""Frames: how bytes on a connection become bounded messages, and messages bytes.

A frame is a fixed header (kind, flags, number of segments, length of the control part), the size of
each segment, the control part (one CBOR item, which the codec understands) and then the segments:
raw bytes, arrays, buffers. Segments stand apart so that large data is sent from where it lies and
received straight into the buffer in which it will be used.

Promises: nothing is allocated for a frame whose header breaks the limits; a frame is handed out
complete or not at all; the cost of reading is linear in the bytes received, however they are cut.
No I/O: sending the segments after the encoded head, and receiving into
`FrameReader.receive_buffer`, is the link's work. What kinds mean is left to the rooms above.

Large frames travel in parts, between which others find their way (`runtime.links.transfers`). A
part is an ordinary frame of one segment; the reader knows no more of it than that its bytes belong
where `FrameReader.place` says.
"""

from __future__ import annotations

import io
import mmap
import struct
import sys
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple, NoReturn

import attrs

from actors.errors import EncodeError, ProtocolError
from actors.identifiers import NodeId

# Received segments: memory into which a socket writes and which then becomes bytes or an array,
# without a copy.
#
# The first touch of fresh memory costs several times as much as a copy into warm memory (the kernel
# clears each page), so large data must touch fresh memory once only: `bytes(n)` takes pages from
# `calloc` that are still untouched, `io.BytesIO` lends them out for writing, and gives the very
# same bytes object out at the end. Both are optimisations of CPython: where they are missing,
# copies are made.
#
# CPython 3.12.0 and 3.12.1 crash when the collector frees a cycle of objects with such a view in it
# (python/cpython#111049). There a segment is mapped memory, and is copied when it becomes bytes.

HUGE_SIZE = 4 * 1024 * 1024
"""Bytes from which the kernel is asked for huge pages: receiving 64 MiB into fresh memory is then
about three times as fast.
"""

CRASHES_ON_VIEWS = sys.version_info[:3] in ((3, 12, 0), (3, 12, 1))
"""True in the versions of which the collector crashes on a view of `io.BytesIO` in a cycle."""

Buffer = bytes | bytearray | memoryview
"""The types that can travel as segments."""

HEADER = struct.Struct("!BBHI")
"""Kind, flags, number of segments, bytes in the control part; the sizes of the segments follow,
four bytes each.
"""

DIRECT_SIZE = 64 * 1024
"""Bytes from which a segment is received into a buffer of its own. Below, it usually arrives whole
with one receive anyway.
"""


class _UnclosedBytesIO(io.BytesIO):
    """Memory that is freed with its last view, and never closed."""

    __slots__ = ()

    def close(self) -> None:
        """Do nothing: the interpreter closes what it frees. A view that is freed with it, in a
        cycle of objects, is still there then, and since 3.13 the failure is printed.
        """


class _MappedMemory:
    """Zeros, none of them touched: does in those versions what `io.BytesIO` does in others, at the
    cost of a copy.
    """

    __slots__ = ("_content", "_taken")

    def __init__(self, size: int) -> None:
        # Nothing can be mapped that has no size.
        self._content = mmap.mmap(-1, size) if size else bytearray()
        self._taken: bytes | None = None

    def getbuffer(self) -> memoryview:
        """Return writable memory; what was taken out as bytes does not change with it."""
        self._taken = None
        return memoryview(self._content)

    def getvalue(self) -> bytes:
        """Return the content: the same object until the next view."""
        if self._taken is None:
            self._taken = bytes(memoryview(self._content))
        return self._taken


class ReceivedSegment:
    """`size` bytes of zeros at first, none of them touched, to be filled through `view` and taken
    out once, when they are complete.
    """

    __slots__ = ("_size", "_stream")

    def __init__(self, size: int) -> None:
        self._size = size
        self._stream = _MappedMemory(size) if CRASHES_ON_VIEWS else _UnclosedBytesIO(bytes(size))
        if size >= HUGE_SIZE:
            with self._stream.getbuffer() as view:
                _ask_for_huge_pages(view)

    def __len__(self) -> int:
        return self._size

    def view(self, start: int, stop: int) -> memoryview:
        """Return a writable view of the bytes from `start` to `stop`. Release it when they are
        filled: while a view exists, taking the content out makes a copy.
        """
        with self._stream.getbuffer() as whole:
            return whole[start:stop]

    def __bytes__(self) -> bytes:
        """Return the content as bytes: the same object each time, and no copy unless a view
        exists.
        """
        return self._stream.getvalue()

    def writable(self) -> memoryview:
        """Return the content as writable memory. No copy, unless it was taken out as bytes
        before.
        """
        return self._stream.getbuffer()


Segment = bytes | bytearray | memoryview | ReceivedSegment
"""A segment in one of the forms that the codec accepts."""


def writable(segment: Segment) -> bytearray | memoryview:
    """Return writable memory with the content of `segment`: the segment's own memory where that is
    possible.
    """
    if isinstance(segment, ReceivedSegment):
        return segment.writable()
    if isinstance(segment, bytes) or memoryview(segment).readonly:
        return bytearray(segment)
    return segment


def _ask_for_huge_pages(view: memoryview) -> None:
    """`madvise(MADV_HUGEPAGE)`, as numpy does for its own large arrays. It is a hint: where it
    fails, only speed is lost.
    """
    if sys.platform != "linux":
        return
    import ctypes

    page = mmap.PAGESIZE
    start = ctypes.addressof(ctypes.c_char.from_buffer(view))
    first = -(-start // page) * page
    try:
        madvise = ctypes.CDLL(None).madvise
    except (AttributeError, OSError):
        return
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    madvise(first, (start + len(view) - first) // page * page, mmap.MADV_HUGEPAGE)


class Attachment(bytes):
    """A segment of one byte that its receiver ignores. It exists as long as its message may be sent
    or sent again, and so keeps `held` alive for that time.
    """

    held: list[object]

    def __new__(cls) -> Attachment:
        attachment = super().__new__(cls, b"\0")
        attachment.held = []
        return attachment


class Outgoing(list[Buffer]):
    """Collects the segments of a message to one peer, for values that are encoded differently for
    each peer. `peer`: its name and incarnation.
    """

    __slots__ = ("attachment", "peer")

    def __init__(self, peer: NodeId) -> None:
        super().__init__()
        self.peer = peer
        self.attachment: Attachment | None = None

    def attach(self, thing: object) -> None:
        """Keep `thing` alive until the message is received, or can no longer be."""
        if self.attachment is None:
            self.attachment = Attachment()
        self.attachment.held.append(thing)

    def complete(self) -> None:
        """Finish: the attachment becomes the last segment, so that it exists until the peer has the
        whole message.
        """
        if self.attachment is not None:
            self.append(self.attachment)
            self.attachment = None


class Kind(IntEnum):
    """What a frame is for. Those below 32 are numbered, acknowledged and sent again by the link's
    session.

    Calls: CALL and SEND (one way) ask for one, REPLY and ERROR answer, CANCEL takes a CALL back;
    FORGET tells which repeatable calls have ended, so that what was recorded of them may go; ITEM
    carries one item of a stream, CREDIT asks for more of them. BEGIN, PART and ABANDON carry one
    large frame of another kind in pieces; EMPTY stands where a frame was taken back. ARENA, LOAN
    and RETURNED hand large segments over in shared memory. The rest is the link's own.
    """

    CALL = 1
    REPLY = 2
    ERROR = 3
    CANCEL = 4
    SEND = 5
    FORGET = 6
    ITEM = 7
    CREDIT = 8
    BEGIN = 9
    PART = 10
    ABANDON = 11
    EMPTY = 12
    ARENA = 13
    LOAN = 14
    RETURNED = 15
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
    """The limits of a reader: bytes in the control part, bytes in the whole frame, and segments."""

    control: int = 256 * 1024
    frame: int = 256 * 1024 * 1024
    segments: int = 1024


LIMITS = Limits()
"""Limits between nodes that have authenticated each other. `encode_frame` obeys them too."""


UNPROVEN = Limits(control=4096, frame=8192, segments=0)
"""Limits before authentication: enough for a handshake, so that an unauthenticated peer can cost
little memory.
"""


class Frame(NamedTuple):
    """One complete frame. The segments of a frame that was read are bytes, or `ReceivedSegment`s if
    they are large.
    """

    kind: int
    flags: int
    control: bytes
    segments: tuple[Segment, ...]


def encode_frame(
    kind: int, control: bytes, segments: Sequence[Buffer] = (), flags: int = 0
) -> bytes:
    """Return the head of a frame: header, sizes and control part. The caller sends the segments
    right after it.

    Raises EncodeError if the frame is larger than peers accept. Nothing of it must be sent then.
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
    sizes = [
        segment.nbytes if isinstance(segment, memoryview) else len(segment) for segment in segments
    ]
    total = HEADER.size + 4 * count + length + sum(sizes)
    if count > LIMITS.segments or total > LIMITS.frame:
        raise EncodeError(
            f"a frame would have {total} bytes in {count} segments (the largest: {max(sizes)} "
            f"bytes) and may have {LIMITS.frame} bytes in "
            f"{LIMITS.segments} segments; send the data as bytes or numpy arrays in several "
            "smaller calls"
        )
    return HEADER.pack(kind, flags, count, length) + struct.pack(f"!{count}I", *sizes) + control


class FrameReader:
    """Takes what a connection receives, however it is cut, and hands out complete frames.

    `limits` may be replaced between two frames, once the peer has proven itself. After a
    ProtocolError the reader refuses all input: nothing that follows a broken header can be trusted
    to be a header.

    `place(control, size)`, if set, says where the segment of a PART goes: views of `size` bytes
    together. It is asked after the frames handed out before were acted upon, so that it knows them;
    the frame then has these very views, released, as its segments. It may raise ProtocolError.
    """

    __slots__ = (
        "_begun",
        "_broken",
        "_filled_rooms",
        "_head",
        "_needed",
        "_rest",
        "_room",
        "_rooms",
        "_segments",
        "_sizes",
        "_target",
        "limits",
        "place",
    )

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self.place: Callable[[bytes, int], tuple[memoryview, ...]] | None = None
        self._broken = False
        self._rest = bytearray()
        self._needed = 0
        self._head: tuple[int, int, bytes] | None = None
        self._sizes: tuple[int, ...] = ()
        self._segments: list[Segment] = []
        self._begun: memoryview | None = None
        """The first bytes of a large segment that has no buffer yet."""
        self._target: ReceivedSegment | None = None
        self._rooms: tuple[memoryview, ...] = ()
        self._filled_rooms = 0
        self._room: memoryview | None = None
        """The part that is still to be filled of the first of `_rooms` that is not full; there
        while a large segment is received.
        """

    def feed(self, data: bytes) -> list[Frame]:
        """Return all frames that `data` completes. Raises ProtocolError as soon as a header exceeds
        the limits.
        """
        if self._broken:
            self._refuse("input after a broken frame")
        if self._rest:
            # Join only when the next part is complete: joining many small pieces each time would
            # cost quadratic time.
            if len(self._rest) + len(data) < self._needed:
                self._rest += data
                return []
            data = b"".join((self._rest, data))
            self._rest = bytearray()
        frames: list[Frame] = []
        position = 0
        if self._head is not None:
            position = self._take(data, 0, frames)
        if self._head is None:
            position = self._parse(data, position, frames)
        if position < len(data):
            self._rest += memoryview(data)[position:]
            # Otherwise what is complete would wait until the peer sends more, perhaps for ever.
            assert len(self._rest) < self._needed, "only an incomplete part waits for its rest"
        return frames

    def receive_buffer(self) -> memoryview | None:
        """Return where the next bytes belong, if they are part of a large segment: receive into it,
        then call `filled`. None: call `feed` instead.
        """
        if self._begun is not None:
            self._find_place()
        return self._room

    def filled(self, count: int) -> list[Frame]:
        """Record that `count` bytes were received into `receive_buffer()`, which is released.
        Returns the frame that they complete, if any.
        """
        if self._room is None or not 0 <= count <= len(self._room):
            raise ValueError(
                f"{count} bytes were not asked for; receive into receive_buffer(), or use feed()"
            )
        frames: list[Frame] = []
        if self._advance(count):
            self._take(b"", 0, frames)
        return frames

    def _parse(self, data: bytes, position: int, frames: list[Frame]) -> int:
        """Read frames from `position` on; where the first incomplete part begins. `_needed` is then
        the length of that part.
        """
        end = len(data)
        limits = self.limits
        unpack = HEADER.unpack_from
        new_tuple = tuple.__new__
        while end - position >= 8:
            kind, flags, count, length = unpack(data, position)
            if length > limits.control:
                self._refuse(
                    f"a control part of {length} bytes, where {limits.control} are allowed"
                )
            if not count:
                stop = position + 8 + length
                if stop > end:
                    self._needed = 8 + length
                    return position
                # Bypass the class's constructor: it is written in Python and costs as much as
                # everything else here.
                frames.append(new_tuple(Frame, (kind, flags, data[position + 8 : stop], ())))
                position = stop
                continue
            # Each bound before what it bounds is read: the number of sizes, then their sum.
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
        """Read segments of the current frame, and finish it if all are there. Returns the position
        after them.
        """
        end = len(data)
        if self._begun is not None:
            self._find_place()
        if self._room is not None:
            count, full = self._fill(memoryview(data)[position:])
            position += count
            if not full:
                return position
        if self._rooms:
            if self._target is None:
                self._finish(frames, self._rooms)
                return position
            self._segments.append(self._target)
            self._target = None
            self._rooms = ()
        for size in self._sizes[len(self._segments) :]:
            stop = position + size
            if stop <= end:
                self._segments.append(data[position:stop])
                position = stop
            elif size >= DIRECT_SIZE:
                # No buffer yet: the frames that `data` completed are not acted upon before this
                # returns, and `place` has to know them.
                self._begun = memoryview(data)[position:]
                return end
            else:
                self._needed = size
                return position
        self._finish(frames, tuple(self._segments))
        return position

    def _find_place(self) -> None:
        """Decide where a large segment goes, and put its first bytes there."""
        assert self._begun is not None
        assert self._head is not None
        begun, self._begun = self._begun, None
        size = self._sizes[len(self._segments)]
        if self._head[0] == Kind.PART and self.place is not None and len(self._sizes) == 1:
            self._rooms = self.place(self._head[2], size)
        else:
            self._target = ReceivedSegment(size)
            self._rooms = (self._target.view(0, size),)
        assert sum(map(len, self._rooms)) == size, "a segment fills its place"
        self._filled_rooms = 0
        self._room = self._rooms[0]
        self._fill(begun)

    def _fill(self, data: memoryview) -> tuple[int, bool]:
        """Copy the part of `data` that belongs to the large segment. Returns its length, and
        whether the segment is full.
        """
        position = 0
        while position < len(data):
            room = self._room
            assert room is not None
            count = min(len(room), len(data) - position)
            room[:count] = data[position : position + count]
            position += count
            if self._advance(count):
                return position, True
        return position, False

    def _advance(self, count: int) -> bool:
        """`count` more bytes of `_room` are filled; True if that was the last of the segment.

        Views that are full are released: their memory can then be taken out uncopied.
        """
        room = self._room
        assert room is not None
        left = room[count:]
        room.release()
        if len(left):
            self._room = left
            return False
        left.release()
        self._filled_rooms += 1
        full = self._filled_rooms == len(self._rooms)
        self._room = None if full else self._rooms[self._filled_rooms]
        return full

    def _finish(self, frames: list[Frame], segments: tuple[Segment, ...]) -> None:
        assert self._head is not None
        assert self._begun is None, "no segment is incomplete"
        assert self._room is None, "no segment is incomplete"
        frames.append(Frame(*self._head, segments))
        self._head = None
        self._sizes = ()
        self._segments = []
        self._rooms = ()

    def _refuse(self, what: str) -> NoReturn:
        self._broken = True
        # What was received so far is given back at once: the link may close slowly.
        self._rest = bytearray()
        self._segments = []
        self._begun = self._target = self._room = None
        self._rooms = ()
        raise ProtocolError(f"the peer sent {what}; the connection must be closed")
