"""Transfers: large frames on their way out, in parts between which other frames find their way.

A frame above `WHOLE` is not given to the session as it is. It waits here, and whenever there is room, its next part is numbered, kept and
written; several transfers take turns. `reassembly` has the format and the other side. Frames of one lane keep their order: while a
transfer of a lane is under way, what is posted behind it in that lane waits here as well. All others overtake.

No I/O and no clock: the link asks for what is next, and numbers it. Cutting large messages so that small ones are not held up is HTTP/2's
framing (RFC 9113), without its windows for each stream: the session's one window does for all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from runtime.links.reassembly import MOST_BYTES, MOST_TRANSFERS
from runtime.links.session import may_change, unchanging
from runtime.wire.frames import HEADER, Buffer, Kind, encode_frame

PART = 512 * 1024
"""Bytes of a frame that travel in one piece: what a small frame may have to wait for, besides what the kernel holds already."""

WHOLE = 1152 * 1024
"""Bytes up to which a frame is not worth cutting: cutting costs about a quarter of the speed of frames of this size."""

QUEUED_BYTES = 64 * 1024 * 1024
"""Bytes of large frames that may wait before `takes` says no: enough to keep any connection busy."""

OVERTAKEN_FRAMES = 65_536
OVERTAKEN_BYTES = 16 * 1024 * 1024
"""Small frames that may wait behind transfers of their lanes; like the window of a session."""


class QueuedFrame:
    """A frame that is sent when its turn comes: the ticket of whoever posted it.

    `number` is the session's for the frame or for the last of its parts, 0 before it has one.
    """

    __slots__ = ("abandoned", "begun", "buffers", "identity", "lane", "number", "offset", "parts", "size", "unsent")

    def __init__(self, buffers: Sequence[Buffer], size: int, lane: Hashable) -> None:
        self.buffers: list[Buffer] = list(buffers)
        """The frame; of a transfer that has begun, what is still to be sent, the first of them from `offset` on."""
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
        """Copy what is unsent and could change."""
        self.buffers = [unchanging(buffer) for buffer in self.buffers]


Ticket = int | QueuedFrame
"""What `Link.post` returns: the number of the frame, or the frame itself while it has none."""


class Parcel(NamedTuple):
    """What is to be numbered and written next. `completes`: the frame that is on its way with this; `part` of a transfer, or not."""

    buffers: tuple[Buffer, ...]
    completes: QueuedFrame | None = None
    part: QueuedFrame | None = None


class Transfers:
    """All frames of one link that are not with the session yet."""

    __slots__ = ("_frames", "_latest", "_open", "_open_bytes", "_small_bytes", "_unopened", "_unsent", "lanes", "unfinished")

    def __init__(self) -> None:
        self.lanes: dict[Hashable, deque[QueuedFrame]] = {}
        """What waits behind the unfinished transfer of each lane that has one."""
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
        """False while too many frames wait behind transfers, or more large ones than could ever travel at once."""
        return self._frames < OVERTAKEN_FRAMES and self._small_bytes < OVERTAKEN_BYTES and self._unsent < MOST_BYTES

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are not with the session yet."""
        return self._unsent + self._small_bytes

    @property
    def waiting_frames(self) -> int:
        """Frames that are not with the session yet."""
        return self._frames + self.unfinished

    def takes(self, size: int) -> bool:
        """Whether there is room for a frame of `size` bytes, too."""
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
            self.lanes[lane].append(queued)
        else:
            if lane is not None:
                self.lanes[lane] = deque()
            self._unopened.append(queued)
        return queued

    def next(self) -> list[Parcel]:
        """One more part of the transfer whose turn it is, with what it may be preceded and followed by. Only while there are transfers."""
        while self._unopened and len(self._open) < MOST_TRANSFERS and self._open_bytes + self._unopened[0].size <= MOST_BYTES:
            queued = self._unopened.popleft()
            self._open.append(queued)
            self._open_bytes += queued.size
        queued = self._open.popleft()
        parcels = []
        if not queued.begun:
            parcels.append(Parcel((self._begin(queued),)))
        buffers = self._cut(queued)
        if queued.buffers:
            self._open.append(queued)
            parcels.append(Parcel(buffers, None, queued))
        else:
            self.unfinished -= 1
            self._open_bytes -= queued.size
            parcels.append(Parcel(buffers, queued, queued))
            parcels += self._free_lane(queued.lane)
        return parcels

    def abandon(self, queued: QueuedFrame) -> list[Parcel] | None:
        """Never send the rest of a frame; what is to be sent because of that. None if all of it is on its way already."""
        if queued.abandoned:
            return []
        if queued.number:
            return None
        queued.abandoned = True
        queued.buffers = []
        if not queued.is_transfer:
            self._frames -= 1
            self._small_bytes -= queued.size
            self.lanes[queued.lane].remove(queued)
            return []
        self.unfinished -= 1
        self._unsent -= queued.unsent
        waiting = self.lanes.get(queued.lane)
        if waiting is not None and queued in waiting:
            waiting.remove(queued)
            return []
        parcels = []
        if queued.begun:
            parcels.append(Parcel((encode_frame(Kind.ABANDON, queued.identity),)))
        if queued in self._open:
            self._open.remove(queued)
            self._open_bytes -= queued.size
        else:
            self._unopened.remove(queued)
        return parcels + self._free_lane(queued.lane)

    def clear(self) -> None:
        """Nothing more will be sent: forget everything."""
        self.lanes.clear()
        self._unopened.clear()
        self._open.clear()
        self.unfinished = self._open_bytes = self._unsent = self._frames = self._small_bytes = 0

    def _begin(self, queued: QueuedFrame) -> Buffer:
        """The BEGIN of a transfer, whose unsent bytes are from now on those of its control part and its segments."""
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
        head = HEADER.pack(Kind.PART, 0, 1, len(queued.identity)) + size.to_bytes(4, "big") + queued.identity
        return (head, *views)

    def _free_lane(self, lane: Hashable) -> list[Parcel]:
        """A transfer of `lane` has ended: what waited behind it, up to the next transfer."""
        waiting = self.lanes.get(lane)
        parcels: list[Parcel] = []
        while waiting:
            queued = waiting.popleft()
            if queued.is_transfer:
                self._unopened.append(queued)
                return parcels
            self._frames -= 1
            self._small_bytes -= queued.size
            parcels.append(Parcel(tuple(queued.buffers), queued))
        self.lanes.pop(lane, None)
        return parcels
