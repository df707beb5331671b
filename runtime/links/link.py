"""A link: the trio shell around a session, over whatever connection there is at the moment.

Everything queued in one pass of the scheduler leaves in one send; many frames are parsed per receive; nothing here costs a task, an event
or a
cancel scope per frame. A link without a connection keeps what is posted until one stands again, as far as its window allows. It ends only
when its owner says so: because the peer's incarnation has ended, or said goodbye.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import attrs
import trio

from actors.errors import ProtocolError
from runtime.links.session import Buffer, Offer, Session
from runtime.links.transports import Connection
from runtime.wire.frames import Frame, FrameReader, Kind, encode_frame
from runtime.wire.handshake import Peer

FIRST_UNNUMBERED_KIND = 32
"""Kinds below are numbered, kept until acknowledged and delivered once; kinds from here on live and die with their connection."""

LARGE = 64 * 1024
"""Bytes from which a buffer is handed to the kernel by itself rather than joined with its neighbours."""


class Receiver(Protocol):
    """What the frames of a link are for: the calls room."""

    @property
    def handlers(self) -> Mapping[int, Callable[[Link, Frame], None]]:
        """One handler for each numbered kind."""
        ...

    def link_ended(self, link: Link, reason: str) -> None:
        """The session is over: end the calls that travelled on it."""
        ...


@attrs.define
class LinkCounters:
    """What `status` shows of a link."""

    connections: int = 0
    frames_sent: int = 0
    frames_received: int = 0
    bytes_received: int = 0


class Link:
    """The session with one peer. Not connected at first; see `run`."""

    def __init__(self, peer: Peer, receiver: Receiver) -> None:
        self.peer = peer
        self.session: Session | None = None
        self.ended: str | None = None
        """Why the link is over, or None while it is not."""
        self.counters = LinkCounters()
        self.batch = 0
        """Frames in the receive that is being handled: with one only, an answer is sent at once rather than gathered."""
        self.last_heard = 0.0
        self._receiver = receiver
        self._handlers = receiver.handlers
        self._connection: Connection | None = None
        self._out: list[Buffer] = []
        self._waiting_for_session: list[tuple[Buffer, ...]] = []
        self._large = False
        self._writer: trio.lowlevel.Task | None = None
        self._connection_scope: trio.CancelScope | None = None
        self._down = trio.Event()
        self._down.set()
        self._progress: trio.Event | None = None
        """There only while somebody waits for it, so that it costs nothing otherwise."""
        self.settling = trio.Lock()
        """Held while a new connection is being agreed upon: one at a time."""

    @property
    def connected(self) -> bool:
        """True while a connection stands."""
        return self._connection is not None

    @property
    def has_room(self) -> bool:
        """False while the window is full, or too much waits for a first connection."""
        return self.session.has_room if self.session is not None else len(self._waiting_for_session) < 1024

    async def room(self) -> None:
        """Wait until `has_room`, or the end of the link."""
        while not self.has_room and self.ended is None:
            await self._progress_made()

    def post(self, frame: bytes, segments: tuple[Buffer, ...] = (), *, at_once: bool = False) -> int:
        """Send a numbered frame, now or when a connection stands; returns its number, 0 if not yet numbered.

        `at_once` tries the kernel right away: for a caller that has nothing else to gather the frame with. Never blocks; never raises for a
        connection that breaks.
        """
        buffers = (frame, *segments) if segments else (frame,)
        session = self.session
        if session is None:
            self._waiting_for_session.append(buffers)
            return 0
        number = session.keep(buffers)
        if self._connection is not None:
            if segments:
                self._out.extend(buffers)
                self._large = True
            else:
                self._out.append(frame)
            if at_once and self._writer is not None and len(self._out) == 1:
                self._flush_at_once()
            elif self._writer is not None:
                self._wake_writer()
        return number

    def certainly_not_received(self, number: int) -> bool:
        """True if frame `number` (as `post` returned it) was never handed to any connection."""
        return self.session is None or number == 0 or number > self.session.written

    def offer(self, fresh: bytes) -> Offer:
        """What to say when a connection opens; `fresh` names the session if there is none yet."""
        return self.session.offer() if self.session is not None else Offer(fresh, 0)

    def open(self, connection: Connection, session: bytes, peer_received: int) -> None:
        """A connection stands: what the peer does not have is sent again, and frames posted from now on travel on it. Go on with `run`.

        `session` is the identity that both sides agreed on and `peer_received` what the peer says it has.
        """
        if self.session is None:
            self.session = Session(session)
            for buffers in self._waiting_for_session:
                self.session.keep(buffers)
            self._waiting_for_session.clear()
        again = self.session.resume(peer_received)
        self._out = [buffer for buffers in again for buffer in buffers]
        self._large = any(len(buffers) > 1 for buffers in again)
        self._connection = connection
        self._down = trio.Event()
        self.counters.connections += 1
        self._tell_progress()

    async def run(self, connection: Connection, reader: FrameReader, early: list[Frame]) -> None:
        """Carry the session over the connection just opened until it breaks, the peer ends it or the link ends.

        `early`: frames that came together with the last of the handshake. Raises ProtocolError if the peer breaks the protocol; broken
        connections are no error.
        """
        broken: ProtocolError | None = None
        try:
            with trio.CancelScope() as scope:
                self._connection_scope = scope
                if self.ended is not None or self._handle(early, 0):
                    return
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, connection, scope)
                    try:
                        await self._read(connection, reader)
                    except ProtocolError as error:
                        # Raised below: out of the nursery it would come as a group, which nobody expects.
                        broken = error
                    scope.cancel()
        finally:
            connection.close()
            self._connection = None
            self._connection_scope = None
            self._writer = None
            self._down.set()
            self._tell_progress()
        if broken is not None:
            raise broken

    async def connected_again(self) -> None:
        """Wait until a connection stands, or the link has ended."""
        while self._connection is None and self.ended is None:
            await self._progress_made()

    async def disconnected(self) -> None:
        """Wait until no connection stands."""
        await self._down.wait()

    def drop_connection(self) -> None:
        """Break the connection, if there is one; the session goes on over the next."""
        if self._connection_scope is not None:
            self._connection_scope.cancel()

    async def released(self) -> None:
        """Break the connection, if there is one, and wait until nothing more can arrive on it: only then may a resume be offered."""
        if self._connection is not None:
            self.drop_connection()
            await self._down.wait()

    def end(self, reason: str) -> None:
        """The session is over for good: its calls end, its connection closes. Ending twice is no error."""
        if self.ended is None:
            self.ended = reason
            self._receiver.link_ended(self, reason)
            self._tell_progress()
            self.drop_connection()

    def send_control(self, kind: Kind, control: bytes = b"") -> None:
        """Send an unnumbered frame if a connection stands; otherwise it is pointless and dropped."""
        if self._connection is not None:
            self._out.append(encode_frame(kind, control))
            self._wake_writer()

    def acknowledge(self) -> None:
        """Tell the peer what has arrived, if it was not told yet."""
        if self.session is not None and self.session.owes_acknowledgement:
            self.send_control(Kind.ACK, self.session.acknowledgement().to_bytes(8, "big"))

    async def flushed(self) -> None:
        """Wait until all that was posted was handed to the kernel, or there is no connection to hand it to."""
        while self._out and self._connection is not None:
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

    async def _read(self, connection: Connection, reader: FrameReader) -> None:
        while True:  # noqa: ASYNC913  each turn waits for the socket or a post
            try:
                buffer = reader.receive_buffer()
                data = b""
                if buffer is None:
                    data = await connection.receive()
                    size = len(data)
                else:
                    size = await connection.receive_into(buffer)
            except (OSError, trio.ClosedResourceError):
                return
            if not size:
                return
            frames = reader.feed(data) if buffer is None else reader.filled(size)
            self.last_heard = trio.current_time()
            if self._handle(frames, size):
                return

    def _handle(self, frames: list[Frame], size: int) -> bool:
        """Act upon frames that have arrived; True if the peer is leaving."""
        session = self.session
        assert session is not None
        handlers = self._handlers
        self.batch = len(frames)
        numbered = 0
        for frame in frames:
            kind = frame.kind
            if kind < FIRST_UNNUMBERED_KIND:
                # Counted before it is handled: a frame that was acted upon must never be asked for again.
                session.received += 1
                numbered += 1
                handler = handlers.get(kind)
                if handler is None:
                    raise ProtocolError(f"a frame of kind {kind}, which this version does not know")
                handler(self, frame)
            elif self._control(frame):
                return True
        self.counters.bytes_received += size
        self.counters.frames_received += numbered
        if session.arrived(numbered, size):
            self.acknowledge()
        return False

    def _control(self, frame: Frame) -> bool:
        """Handle an unnumbered frame; True if the peer is leaving."""
        if frame.kind == Kind.ACK:
            if len(frame.control) != 8 or self.session is None:
                raise ProtocolError(f"an acknowledgement of {len(frame.control)} bytes; 8 are expected")
            self.session.acknowledge(int.from_bytes(frame.control, "big"))
            self._tell_progress()
        elif frame.kind == Kind.PING:
            self.send_control(Kind.PONG)
        elif frame.kind == Kind.GOODBYE:
            self.end("the peer said goodbye")
            return True
        elif frame.kind != Kind.PONG:
            raise ProtocolError(f"a frame of kind {frame.kind} after the handshake")
        return False

    async def _write(self, connection: Connection, scope: trio.CancelScope) -> None:
        while True:  # noqa: ASYNC913  each turn waits for the socket or a post
            if not self._out:
                self._writer = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._abort_parking)
            try:
                if not self._flush(connection):
                    await connection.wait_writable()
                elif self._progress is not None:
                    self._tell_progress()
            except (OSError, trio.ClosedResourceError):
                # The reader sees the end too, but perhaps much later: what is wrong with writing is enough to redial.
                scope.cancel()
                return

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
        assert session is not None
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
