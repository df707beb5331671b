"""The link session: an ordered, resumable stream of frames between two node incarnations.

A session outlives its connections. Frames that matter are numbered from 1 in the order they are
sent; the number is not written, both sides count. The receiver acknowledges the highest number it
has; the sender keeps what is not acknowledged and sends it again after a resume. No I/O and no
clock: the link feeds it and writes what it returns. The numbering follows TCP's cumulative
acknowledgement; the resume offer is modelled on MQTT's session-present flag.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise

from actors.errors import ProtocolError
from runtime.wire.frames import Buffer

ACKNOWLEDGE_FRAMES = 64
ACKNOWLEDGE_BYTES = 1024 * 1024
WINDOW_FRAMES = 65_536
WINDOW_BYTES = 16 * 1024 * 1024
PARTS_BYTES = 8 * 1024 * 1024
"""The window of the parts of transfers, apart from that of all other frames: large frames never use
up the room of small ones.
"""


class Session:
    """One side's half of the state of a session; see the module docstring."""

    __slots__ = (
        "_kept",
        "_kept_bytes",
        "_parts",
        "_parts_bytes",
        "_unsaid_bytes",
        "_unsaid_frames",
        "acknowledged",
        "final",
        "received",
        "sent",
        "written",
    )

    def __init__(self) -> None:
        self.sent = 0
        """Number of the last frame given to `keep`."""
        self.written = 0
        """Number of the last frame that was ever handed to a connection: later ones certainly did
        not arrive.
        """
        self.acknowledged = 0
        self.final: int | None = None
        """Number of the last frame that the peer has taken before it said goodbye, and with that of
        the last that it ever takes; None while it has not said.
        """
        self.received = 0
        self._kept: deque[tuple[Buffer, ...]] = deque()
        self._kept_bytes = 0
        self._parts: deque[tuple[int, int]] = deque()
        self._parts_bytes = 0
        self._unsaid_frames = 0
        self._unsaid_bytes = 0

    @property
    def kept_bytes(self) -> int:
        """Bytes that were numbered and not acknowledged."""
        return self._kept_bytes + self._parts_bytes

    @property
    def kept_frames(self) -> int:
        """Frames that were numbered and not acknowledged."""
        return len(self._kept)

    def keeps_less(self, size: int, frames: int) -> bool:
        """True if fewer bytes than `size`, and fewer than `frames`, were numbered and not
        acknowledged. One call, because it is asked for each call of a peer.
        """
        return len(self._kept) < frames and self._kept_bytes + self._parts_bytes < size

    @property
    def has_room(self) -> bool:
        """False while the window is full: callers wait until the peer has acknowledged more."""
        return len(self._kept) < WINDOW_FRAMES and self._kept_bytes < WINDOW_BYTES

    @property
    def has_room_for_part(self) -> bool:
        """False while as much of transfers is on its way as may be at once."""
        return self._parts_bytes < PARTS_BYTES and len(self._kept) < WINDOW_FRAMES

    def keep(self, buffers: tuple[Buffer, ...]) -> int:
        """Number a frame and keep it until it is acknowledged; returns its number."""
        # The number is not written: both ends count, so a frame must be kept in the very step in
        # which it is numbered.
        self.sent += 1
        self._kept.append(buffers)
        for buffer in buffers:
            self._kept_bytes += len(buffer)
        return self.sent

    def keep_part(self, buffers: tuple[Buffer, ...]) -> int:
        """Like `keep`, for a part of a transfer."""
        before = self._kept_bytes
        number = self.keep(buffers)
        size, self._kept_bytes = self._kept_bytes - before, before
        self._parts.append((number, size))
        self._parts_bytes += size
        return number

    def own(self, number: int) -> None:
        """The memory of frame `number` is about to change: copy what of it is still kept."""
        # What is acknowledged is not kept any more: nothing refers to its memory.
        if number > self.acknowledged:
            index = number - self.acknowledged - 1
            self._kept[index] = tuple(unchanging(buffer) for buffer in self._kept[index])

    def take_back(self, number: int, instead: Buffer) -> bool:
        """Send `instead` in the place of frame `number`; False, and nothing done, if that was
        handed to a connection already.
        """
        # From when a connection had it, its bytes may arrive at any time, or have arrived.
        if number <= self.written:
            return False
        assert self.acknowledged < number <= self.sent, "what was never written is not acknowledged"
        index = number - self.acknowledged - 1
        self._kept_bytes += len(instead) - sum(map(len, self._kept[index]))
        self._kept[index] = (instead,)
        return True

    def on_arrived(self, frames: int, size: int) -> bool:
        """Note that `frames` more numbered frames, counted in `received` already, came in `size`
        bytes; True if an acknowledgement is due now.
        """
        self._unsaid_frames += frames
        self._unsaid_bytes += size
        return self._unsaid_frames >= ACKNOWLEDGE_FRAMES or self._unsaid_bytes >= ACKNOWLEDGE_BYTES

    @property
    def owes_acknowledgement(self) -> bool:
        """True if frames have arrived that are not acknowledged."""
        return self._unsaid_frames > 0

    def acknowledgement(self) -> int:
        """The number to acknowledge; afterwards nothing is owed."""
        self._unsaid_frames = 0
        self._unsaid_bytes = 0
        return self.received

    def acknowledge(self, number: int) -> None:
        """The peer has all frames up to `number`: forget them. Raises ProtocolError for a number
        never sent or going back.
        """
        if not self.acknowledged <= number <= self.sent:
            raise ProtocolError(
                f"the peer acknowledged frame {number}, but {self.acknowledged} to {self.sent} "
                "were possible"
            )
        for _ in range(number - self.acknowledged):
            for buffer in self._kept.popleft():
                self._kept_bytes -= len(buffer)
        self.acknowledged = number
        while self._parts and self._parts[0][0] <= number:
            size = self._parts.popleft()[1]
            # Counted among the others by what was popped, though they never were.
            self._kept_bytes += size
            self._parts_bytes -= size
        assert len(self._kept) == self.sent - self.acknowledged
        assert self._kept_bytes >= 0 <= self._parts_bytes
        assert self._kept or self._kept_bytes == 0 == self._parts_bytes

    def on_goodbye(self, number: int) -> None:
        """The peer leaves, and has taken the frames up to `number`: it takes no further one. Raises
        ProtocolError for a number never sent or going back.
        """
        if not self.acknowledged <= number <= self.sent:
            raise ProtocolError(
                f"the peer said goodbye with frame {number} as the last that it has, but "
                f"{self.acknowledged} to {self.sent} were possible"
            )
        self.final = number

    def may_have_arrived(self, number: int) -> bool:
        """False if the peer certainly does not have frame `number`, and will not get it over a
        connection that stood so far.
        """
        return number <= (self.written if self.final is None else self.final)

    def clear(self) -> None:
        """The session is over: keep no frames any more. Questions about what was written are still
        answered.
        """
        # `written` stays: calls ask after the end of the link whether their frames had left.
        self._kept.clear()
        self._parts.clear()
        self._kept_bytes = self._parts_bytes = 0
        self.acknowledged = self.sent

    def resume(self, peer_received: int) -> Sequence[tuple[Buffer, ...]]:
        """A new connection stands and the peer has `peer_received` frames: what must be sent again,
        in order.
        """
        self.acknowledge(peer_received)
        assert len(self._kept) == self.sent - peer_received
        return tuple(self._kept)

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. Looks at every frame: for tests and
        simulations.
        """
        assert self.written <= self.sent, "written without a number"
        assert self.final is None or self.final <= self.sent, "the peer has what was sent"
        assert len(self._kept) == self.sent - self.acknowledged
        sizes = [sum(map(len, buffers)) for buffers in self._kept]
        assert self._kept_bytes + self._parts_bytes == sum(sizes), "the bytes of the window"
        assert self._parts_bytes == sum(size for _, size in self._parts)
        numbers = [number for number, _ in self._parts]
        assert all(first < second for first, second in pairwise(numbers)), "parts are in order"
        for number, size in self._parts:
            assert self.acknowledged < number <= self.sent, "parts are frames that are kept"
            assert size == sizes[number - self.acknowledged - 1], "what `own` copies keeps its size"
        assert self._unsaid_frames >= 0
        assert self._unsaid_bytes >= 0


def may_change(buffer: Buffer) -> bool:
    """True if any code can change the content of `buffer`."""
    return not (
        isinstance(buffer, bytes) or (type(buffer) is memoryview and isinstance(buffer.obj, bytes))
    )


def unchanging(buffer: Buffer) -> Buffer:
    """`buffer` itself if no code can change it, else a copy."""
    return bytes(buffer) if may_change(buffer) else buffer
