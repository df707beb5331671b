"""The sending half of a link: what is posted, what waits, and the task that writes it.

Everything queued in one pass of the scheduler leaves in one send. Large frames wait in `transfers` and are written part by part, whenever
nothing else is to be written and the session has room for more of them; so a small frame waits for one part at most, besides what the
kernel holds already.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import trio

from runtime.links.session import WINDOW_FRAMES, Session, may_change, unchanging
from runtime.links.transfers import WHOLE, Parcel, Ticket, Transfers
from runtime.links.transports import Connection
from runtime.wire.frames import LIMITS, Buffer, Kind, encode_frame

BACKLOG_BYTES = LIMITS.frame
"""Bytes of frames that the peer has not acknowledged, from which on its calls are refused: their answers would only add to them. Above the
window of requests, so that requests of our own never have calls of the peer's refused, and no less than the largest frame.
"""

BACKLOG_FRAMES = 2 * WINDOW_FRAMES
"""The same in frames."""


class Outbound:
    """What `Link` sends with. `Link` opens and closes the connection."""

    def __init__(self) -> None:
        self.session = Session()
        """There from the beginning: what is posted before the first connection is numbered like all that follows."""
        self.ended: str | None = None
        """Why the link is over, or None while it is not."""
        self._connection: Connection | None = None
        self._out: list[Buffer] = []
        self._large = False
        self._transfers = Transfers()
        self._lanes = self._transfers.lanes
        self._farewell: Buffer = b""
        self.most_backlog = BACKLOG_BYTES
        """See `takes_calls`. Twice as much is never exceeded by more than one frame of answers."""
        self._writer: trio.lowlevel.Task | None = None
        self._progress: trio.Event | None = None
        """There only while somebody waits for it, so that it costs nothing otherwise."""

    @property
    def has_room(self) -> bool:
        """False while the window is full, or too much waits for its turn."""
        if self._transfers.unfinished and not self._transfers.has_room:
            return False
        return self.session.has_room

    @property
    def backlog(self) -> int:
        """Bytes that were posted and that the peer has not acknowledged, those included that wait for their turn."""
        return self.session.kept_bytes + self._transfers.waiting_bytes

    @property
    def backlog_frames(self) -> int:
        """The same in frames."""
        return self.session.kept_frames + self._transfers.waiting_frames

    @property
    def takes_calls(self) -> bool:
        """False while the peer has left too much unread for what it asks for to be answered: it is refused instead."""
        return self.backlog < self.most_backlog and self.backlog_frames < BACKLOG_FRAMES

    async def room(self, size: int = 0) -> None:
        """Wait until `has_room`, or the end of the link.

        `size`, in bytes, of the frame to come: if it is a large one, wait until few enough of these are queued, too. Whoever can make large
        frames faster than they leave, and does not wait for their answers, passes it; nothing else bounds the memory that they take.
        """
        while not (self.has_room and self._transfers.takes(size)) and self.ended is None:
            await self._progress_made()

    def post(self, frame: bytes, segments: tuple[Buffer, ...] = (), *, lane: Hashable = None, at_once: bool = False) -> Ticket:
        """Send a numbered frame, now or when a connection stands; returns the ticket by which the link knows it.

        A large frame travels in parts, between which others are sent. Frames of one `lane` are nevertheless received in the order in which
        they were posted; None is no lane. `at_once` tries the kernel right away: for a caller that has nothing else to gather the frame
        with. Never blocks; never raises for a connection that breaks.

        Segments are sent from where they lie: what is not bytes must not change before the peer has them, or `own` was called.
        """
        if segments or self._lanes:
            return self._post_segments(frame, segments, lane, at_once)
        number = self.session.keep((frame,))
        if self._connection is not None:
            self._out.append(frame)
            if at_once and self._writer is not None and len(self._out) == 1:
                self._flush_at_once()
            elif self._writer is not None:
                self._wake_writer()
        return number

    def certainly_not_received(self, ticket: Ticket) -> bool:
        """True if the frame of this ticket was never handed to any connection, or not to its end. 0 is the ticket of no frame at all."""
        number = ticket if isinstance(ticket, int) else ticket.number
        return number == 0 or number > self.session.written

    def abandon(self, ticket: Ticket) -> bool:
        """Nobody needs the frame any more: do not send (the rest of) it, if that is still possible.

        True: it certainly will not be received, nothing needs to be taken back, and its segments may change. False: it is on its way.
        """
        if isinstance(ticket, int):
            return self._take_back(ticket)
        if self.ended is not None:
            return not ticket.number
        parcels = self._transfers.abandon(ticket)
        if parcels is None:
            return False
        self._ship(parcels)
        self._wake_writer()
        self._tell_progress()
        return True

    def _take_back(self, number: int) -> bool:
        """Take back a small frame. While a connection stands it is gone with the next send: only without one there is something to win."""
        if not number:
            return True
        if self._connection is not None or self.ended is not None:
            return self.certainly_not_received(number) and self.ended is not None
        return self.session.take_back(number, encode_frame(Kind.EMPTY, b""))

    def own(self, ticket: Ticket) -> None:
        """The owner of the segments of this frame may change them from now on: what the link still needs of them is copied.

        To be called by whoever posted segments other than bytes and gives them back to their owner while the peer may not have them:
        when a call ends without an answer (cancelled, expired), and right after posting what nobody waits for (one-way calls, answers).
        After an answer it is not needed: the peer has the request then, and it is never sent again.
        """
        if not isinstance(ticket, int):
            ticket.own()
            numbers = ticket.parts or ([ticket.number] if ticket.number else [])
        else:
            numbers = [ticket] if ticket else []
        for number in numbers:
            self.session.own(number)
        if numbers and any(map(may_change, self._out)):
            self._out = list(map(unchanging, self._out))

    def send_control(self, kind: Kind, control: bytes = b"", *, at_once: bool = False) -> None:
        """Send an unnumbered frame if a connection stands; otherwise it is pointless and dropped. A GOODBYE waits for all transfers.

        `at_once`: see `post`.
        """
        if self._connection is not None:
            if kind == Kind.GOODBYE and self._transfers.unfinished:
                self._farewell = encode_frame(kind, control)
                return
            self._out.append(encode_frame(kind, control))
            if at_once and self._writer is not None and len(self._out) == 1:
                self._flush_at_once()
            else:
                self._wake_writer()

    async def flushed(self) -> None:
        """Wait until all that was posted was handed to the kernel, or there is no connection to hand it to."""
        while (self._out or self._transfers.unfinished) and self._connection is not None:
            await self._progress_made()

    async def _progress_made(self) -> None:
        """Wait until something was sent or acknowledged, a connection opened or closed, or the link ended."""
        if self._progress is None:
            self._progress = trio.Event()
        await self._progress.wait()

    def _tell_progress(self) -> None:
        if self._progress is not None:
            self._progress.set()
            self._progress = None

    def _post_segments(self, frame: bytes, segments: tuple[Buffer, ...], lane: Hashable, at_once: bool) -> Ticket:
        """Post a frame that has segments, or that may have to wait behind another of its lane."""
        if self.ended is not None:
            return 0
        buffers: tuple[Buffer, ...] = (frame,)
        size = len(frame)
        for segment in segments:
            # A bytearray cannot be resized by its owner as long as a view of it lives, which nobody would understand: it is copied.
            buffer = bytes(segment) if type(segment) is bytearray else segment
            if type(buffer) is memoryview and buffer.itemsize != 1:
                buffer = buffer.cast("B")
            buffers += (buffer,)
            size += len(buffer)
        if size > WHOLE or lane in self._lanes:
            queued = self._transfers.add(buffers, size, lane)
            self._wake_writer()
            return queued
        number = self.session.keep(buffers)
        if self._connection is not None:
            self._large = self._large or len(buffers) > 1
            self._out.extend(buffers)
            if at_once and self._writer is not None and len(self._out) == len(buffers):
                self._flush_at_once()
            else:
                self._wake_writer()
        return number

    def _ship(self, parcels: list[Parcel]) -> None:
        """Number what leaves `_transfers`, and queue it for writing."""
        session = self.session
        for buffers, completes, part in parcels:
            number = session.keep(buffers) if part is None else session.keep_part(buffers)
            if completes is not None:
                completes.number = number
            if part is not None and part.parts is not None:
                part.parts.append(number)
            if self._connection is not None:
                self._out.extend(buffers)
                self._large = self._large or len(buffers) > 1
        if self._farewell and not self._transfers.unfinished and self._connection is not None:
            self._out.append(self._farewell)
            self._farewell = b""

    def _next_part(self) -> bool:
        """Queue the next part of a transfer for writing, if there is one and it may be sent."""
        if not self._transfers.unfinished or not self.session.has_room_for_part:
            return False
        self._ship(self._transfers.next())
        return True

    async def _write(self, connection: Connection, scope: trio.CancelScope) -> None:
        while True:  # noqa: ASYNC913  each turn waits for the socket, a post, or one pass of the scheduler
            if not self._out and not self._next_part():
                self._writer = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._abort_parking)
                continue
            try:
                if not self._flush(connection):
                    await connection.wait_writable()
                    continue
            except (OSError, trio.ClosedResourceError):
                # The reader sees the end too, but perhaps much later: what is wrong with writing is enough to redial.
                scope.cancel()
                return
            if self._progress is not None:
                self._tell_progress()
            if self._transfers.unfinished:
                # Between two parts everybody else has a turn.
                await trio.lowlevel.checkpoint()

    def _abort_parking(self, raise_cancel: Callable[[], object]) -> trio.lowlevel.Abort:
        self._writer = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _wake_writer(self) -> None:
        writer = self._writer
        if writer is not None:
            self._writer = None
            trio.lowlevel.reschedule(writer)

    def _flush_at_once(self) -> None:
        connection = self._connection
        assert connection is not None
        try:
            done = self._flush(connection)
        except OSError:
            done = False
        if not done:
            self._wake_writer()

    def _flush(self, connection: Connection) -> bool:
        """Hand what waits to the kernel; False if it took only a part."""
        out = self._out
        session = self.session
        session.written = session.sent
        if not self._large:
            data: Buffer = b"".join(out) if len(out) > 1 else out[0]
            count = connection.send_some((data,))
            if count == len(data):
                out.clear()
                return True
            self._out = [memoryview(data)[count:]]
            return False
        while out:
            count = connection.send_some(out)
            if not count:
                return False
            self._out = out = _without(out, count)
        self._large = False
        return True


def _without(buffers: list[Buffer], count: int) -> list[Buffer]:
    """What is left of `buffers` after their first `count` bytes."""
    for index, buffer in enumerate(buffers):
        size = len(buffer)
        if count < size:
            return [memoryview(buffer)[count:] if count else buffer, *buffers[index + 1 :]]
        count -= size
    return []
