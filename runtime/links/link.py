"""A link: the trio shell around a session, over whatever connection there is at the moment.

Many frames are parsed per receive; nothing here costs a task, an event or a cancel scope per frame. A link without a connection keeps what
is posted until one stands again, as far as its window allows. It ends only when its owner says so: because the peer's incarnation has
ended, or said goodbye. Its sending half is in `outbound`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import attrs
import trio

from actors.errors import DecodeError, ProtocolError
from runtime.links.outbound import Outbound
from runtime.links.reassembly import FIRST_UNNUMBERED_KIND, Reassembly
from runtime.links.session import Offer
from runtime.links.transports import Connection
from runtime.wire.frames import Frame, FrameReader, Kind
from runtime.wire.introduction import Peer


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


class Link(Outbound):
    """The session with one peer. Not connected at first; see `run`."""

    def __init__(self, peer: Peer, receiver: Receiver) -> None:
        super().__init__()
        self.peer = peer
        self.life = ""
        """Of the process that was last connected; see `Peer.life`."""
        self.counters = LinkCounters()
        self.batch = 0
        """Frames in the receive that is being handled: with one only, an answer is sent at once rather than gathered."""
        self.last_heard = 0.0
        self.lost_at: float | None = None
        """When the latest connection broke, while there is none."""
        self.fenced = False
        """True if the peer is known to be no member any more: what it asks of actors must not be done."""
        self.watched = False
        """True if its owner is told by the system when the peer's process ends: then silence is no sign of anything."""
        self._receiver = receiver
        self._handlers = receiver.handlers
        self._reassembly = Reassembly()
        self._connection_scope: trio.CancelScope | None = None
        self._down = trio.Event()
        self._down.set()
        self.settling = trio.Lock()
        """Held while a new connection is being agreed upon: one at a time."""

    @property
    def connected(self) -> bool:
        """True while a connection stands."""
        return self._connection is not None

    def offer(self, fresh: bytes) -> Offer:
        """What to say when a connection opens; `fresh` names the session if there is none yet."""
        return self.session.offer() if self.session is not None else Offer(fresh, 0)

    def open(self, connection: Connection, session: bytes, peer_received: int) -> None:
        """A connection stands: what the peer does not have is sent again, and frames posted from now on travel on it. Go on with `run`.

        `session` is the identity that both sides agreed on and `peer_received` what the peer says it has.
        """
        kept = self.session or self._open_session(session)
        again = kept.resume(peer_received)
        self._out = [buffer for buffers in again for buffer in buffers]
        self._large = any(len(buffers) > 1 for buffers in again)
        self._connection = connection
        self.lost_at = None
        self._down = trio.Event()
        self.counters.connections += 1
        self._tell_progress()

    async def run(self, connection: Connection, reader: FrameReader, early: list[Frame]) -> None:
        """Carry the session over the connection just opened until it breaks, the peer ends it or the link ends.

        `early`: frames that came together with the last of the handshake. Raises ProtocolError if the peer breaks the protocol; broken
        connections are no error.
        """
        broken: ProtocolError | None = None
        self._reassembly.connected(reader.limits)
        reader.place = self._reassembly.place
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
            self.lost_at = trio.current_time()
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
            self._transfers.clear()
            self._reassembly.clear()
            self._tell_progress()
            self.drop_connection()

    def acknowledge(self, *, at_once: bool = False, anyway: bool = False) -> None:
        """Tell the peer what has arrived, if it was not told yet. `at_once`: see `post`. `anyway`: from within the handling of a frame,
        which counts already: the peer keeps things for as long as it does not know.
        """
        if self.session is not None and (anyway or self.session.owes_acknowledgement):
            self.send_control(Kind.ACK, self.session.acknowledgement().to_bytes(8, "big"), at_once=at_once)

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
            if not size or self.ended is not None:
                # What arrived in the very pass of the scheduler in which the link ended finds nothing here any more.
                return
            self.last_heard = trio.current_time()
            # The frames are not kept in a variable here: the last of them may be large, and the next may be long in coming.
            if self._handle(reader.feed(data) if buffer is None else reader.filled(size), size):
                return

    def _handle(self, frames: list[Frame], size: int) -> bool:
        """Act upon frames that have arrived; True if the peer is leaving."""
        session = self.session
        assert session is not None
        handlers = self._handlers
        self.batch = len(frames)
        numbered = 0
        try:
            for frame in frames:
                kind = frame.kind
                if kind < FIRST_UNNUMBERED_KIND:
                    # Counted before it is handled: a frame that was acted upon must never be asked for again.
                    session.received += 1
                    numbered += 1
                    handler = handlers.get(kind)
                    if handler is not None:
                        handler(self, frame)
                    else:
                        self._part(frame)
                elif self._control(frame):
                    return True
        except DecodeError as error:
            # Whoever expects values of users deals with those that cannot be read here. The rest is the runtime's own.
            raise ProtocolError(f"a frame of the runtime's own with a value of somebody else's in it: {error}") from error
        self.counters.bytes_received += size
        self.counters.frames_received += numbered
        if session.arrived(numbered, size):
            self.acknowledge()
        return False

    def _part(self, frame: Frame) -> None:
        """Handle a frame of a transfer, and the one that it completes; or one that was taken back."""
        if frame.kind == Kind.EMPTY:
            return
        whole = self._reassembly.take(frame)
        if whole is not None:
            handler = self._handlers.get(whole.kind)
            if handler is None:
                raise ProtocolError(f"a frame of kind {whole.kind}, which this version does not know")
            handler(self, whole)

    def _control(self, frame: Frame) -> bool:
        """Handle an unnumbered frame; True if the peer is leaving."""
        if frame.kind == Kind.ACK:
            if len(frame.control) != 8 or self.session is None:
                raise ProtocolError(f"an acknowledgement of {len(frame.control)} bytes; 8 are expected")
            self.session.acknowledge(int.from_bytes(frame.control, "big"))
            self._tell_progress()
            if self._transfers.unfinished:
                self._wake_writer()
        elif frame.kind == Kind.PING:
            self.send_control(Kind.PONG, at_once=True)
        elif frame.kind == Kind.GOODBYE:
            self.end("the peer said goodbye")
            return True
        elif frame.kind != Kind.PONG:
            raise ProtocolError(f"a frame of kind {frame.kind} after the handshake")
        return False
