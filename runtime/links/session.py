"""The link session: an ordered, resumable stream of frames between two node incarnations.

A session outlives its connections. Frames that matter are numbered from 1 in the order they are sent; the number is not written, both
sides count. The receiver
acknowledges the highest number it has; the sender keeps what is not acknowledged and sends it again after a resume. No I/O and no clock:
the link feeds it and writes what it returns. The numbering follows TCP's cumulative acknowledgement; the resume offer is modelled on MQTT's
session-present flag.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import attrs

from actors.errors import ProtocolError

Buffer = bytes | bytearray | memoryview

ACKNOWLEDGE_FRAMES = 64
ACKNOWLEDGE_BYTES = 1024 * 1024
WINDOW_FRAMES = 65_536
WINDOW_BYTES = 16 * 1024 * 1024


@attrs.frozen
class Offer:
    """What each side says when a connection opens: which session it holds (b"" for none yet) and how many frames of it arrived."""

    session: bytes
    received: int


class Session:
    """One side's half of the state. `identity` is drawn by whoever dialled first."""

    __slots__ = ("_kept", "_kept_bytes", "_unsaid_bytes", "_unsaid_frames", "acknowledged", "identity", "received", "sent", "written")

    def __init__(self, identity: bytes) -> None:
        self.identity = identity
        self.sent = 0
        """Number of the last frame given to `keep`."""
        self.written = 0
        """Number of the last frame that was ever handed to a connection: later ones certainly did not arrive."""
        self.acknowledged = 0
        self.received = 0
        self._kept: deque[tuple[Buffer, ...]] = deque()
        self._kept_bytes = 0
        self._unsaid_frames = 0
        self._unsaid_bytes = 0

    @property
    def has_room(self) -> bool:
        """False while the window is full: callers wait until the peer has acknowledged more."""
        return len(self._kept) < WINDOW_FRAMES and self._kept_bytes < WINDOW_BYTES

    def keep(self, buffers: tuple[Buffer, ...]) -> int:
        """Number a frame and keep it until it is acknowledged; returns its number."""
        self.sent += 1
        self._kept.append(buffers)
        for buffer in buffers:
            self._kept_bytes += len(buffer)
        return self.sent

    def arrived(self, frames: int, size: int) -> bool:
        """Note that `frames` more numbered frames, counted in `received` already, came in `size` bytes; True if an acknowledgement is due
        now.
        """
        self._unsaid_frames += frames
        self._unsaid_bytes += size
        return self._unsaid_frames >= ACKNOWLEDGE_FRAMES or self._unsaid_bytes >= ACKNOWLEDGE_BYTES

    @property
    def owes_acknowledgement(self) -> bool:
        """True if frames have arrived that the peer was not told of."""
        return self._unsaid_frames > 0

    def acknowledgement(self) -> int:
        """The number to acknowledge; afterwards nothing is owed."""
        self._unsaid_frames = 0
        self._unsaid_bytes = 0
        return self.received

    def acknowledge(self, number: int) -> None:
        """The peer has all frames up to `number`: forget them. Raises ProtocolError for a number never sent or going back."""
        if not self.acknowledged <= number <= self.sent:
            raise ProtocolError(f"the peer acknowledged frame {number}, but {self.acknowledged} to {self.sent} were possible")
        for _ in range(number - self.acknowledged):
            for buffer in self._kept.popleft():
                self._kept_bytes -= len(buffer)
        self.acknowledged = number

    def resume(self, peer_received: int) -> Sequence[tuple[Buffer, ...]]:
        """A new connection stands and the peer has `peer_received` frames: what must be sent again, in order."""
        self.acknowledge(peer_received)
        return tuple(self._kept)

    def offer(self) -> Offer:
        """What to tell the peer on a new connection."""
        return Offer(self.identity, self.acknowledgement())
