"""A link: the trio shell around a session, over whatever connection there is at the moment.

Many frames are parsed per receive; nothing here costs a task, an event or a cancel scope per frame. A link without a connection keeps what
is posted until one stands again, as far as its window allows. It ends only when its owner says so: because the peer's incarnation has
ended, said goodbye, or broke the protocol. Its sending half is in `outbound`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

import attrs
import trio

from actors.errors import DecodeError, ProtocolError
from runtime.links.outbound import Outbound
from runtime.links.reassembly import FIRST_UNNUMBERED_KIND, Reassembly
from runtime.links.settling import Settlement
from runtime.links.transports import Connection
from runtime.user_errors import is_interrupt, summary_of, traceback_of
from runtime.wire.frames import Frame, FrameReader, Kind
from runtime.wire.introduction import Peer

logger = logging.getLogger("understudy.links")


class UnhandledFrameError(ProtocolError):
    """A handler of frames raised what it must not: in truth a mistake of this side."""


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
    """The session with one peer. Not connected at first; see `run`. `number` and `leads`: see `Settlement`."""

    def __init__(self, peer: Peer, receiver: Receiver, number: int = 1, *, leads: bool = True) -> None:
        super().__init__()
        self.peer = peer
        self.settlement = Settlement(number, leads=leads)
        self.peer_ended = False
        """True once the link has ended because the peer's incarnation has: nothing else proves a peer's death."""
        self.life = ""
        """Of the process that was last connected; see `Peer.life`."""
        self.counters = LinkCounters()
        self.batch = 0
        """Frames in the receive that is being handled: with one only, an answer is sent at once rather than gathered."""
        self.last_heard = 0.0
        self.lost_at: float | None = None
        """When the latest connection broke, while there is none."""
        self.dial_errors: dict[str, str] = {}
        """Why the latest dial of each address came to nothing; empty while a connection stands."""
        self.unanswered = 0
        """Dials in a row in which no connection came about at any address."""
        self.wanted = False
        """True if this end has asked for the link: it is dialled until it ends."""
        self.fenced = False
        """True if the peer is known to be no member any more: what it asks of actors must not be done."""
        self.watched = False
        """True if its owner is told by the system when the peer's process ends: then silence is no sign of anything."""
        self._receiver = receiver
        self._handlers = receiver.handlers
        self._reassembly = Reassembly()
        self._connection_scope: trio.CancelScope | None = None
        self._refused: ProtocolError | None = None
        self._down = trio.Event()
        self._down.set()

    @property
    def connected(self) -> bool:
        """True while a connection stands."""
        return self._connection is not None

    def undialled(self) -> str:
        """Which addresses were dialled in vain, and why."""
        return "; ".join(f"{address.removeprefix('tcp:')}: {why}" for address, why in self.dial_errors.items())

    def open(self, connection: Connection, peer_received: int, first: bytes = b"") -> None:
        """A connection stands: `first` is written to it, then what the peer does not have, then what is posted from now on.

        Go on with `run`. `peer_received` is what the peer says it has. Raises ProtocolError if that cannot be.
        """
        assert self._connection is None, "the last connection must be down: what arrived on it was counted in what the peer was told"
        again = self.session.resume(peer_received)
        self._out = [first] if first else []
        self._out += [buffer for buffers in again for buffer in buffers]
        self._large = any(len(buffers) > 1 for buffers in again)
        self._connection = connection
        self.lost_at = None
        self.dial_errors.clear()
        self._down = trio.Event()
        self.counters.connections += 1
        self._tell_progress()

    async def run(self, connection: Connection, reader: FrameReader, early: list[Frame]) -> None:
        """Carry the session over the connection just opened until it breaks, the peer ends it or the link ends.

        `early`: frames that came together with the last of the handshake. Raises ProtocolError if the peer breaks the protocol; broken
        connections are no error.
        """
        broken: ProtocolError | None = None
        # The silence of the last connection is not this one's: it would be dropped at the next look, and so would all that follow it.
        self.last_heard = trio.current_time()
        self._reassembly.connected(reader.limits)
        reader.place = self._reassembly.place
        try:
            with trio.CancelScope() as scope:
                self._connection_scope = scope
                if self._refused is not None:
                    # While there was no connection.
                    scope.cancel()
                elif self.ended is not None or self._handle(early, 0):
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
        broken = broken or self._refused
        if broken is not None:
            raise broken

    async def connected_again(self) -> None:
        """Wait until a connection stands, or the link has ended."""
        while self._connection is None and self.ended is None:
            await self._progress_made()

    async def disconnected(self) -> None:
        """Wait until no connection stands."""
        await self._down.wait()

    def handle_later(self, handle: Callable[[], None]) -> None:
        """Go on with a frame that could not be handled when it arrived. What it raises costs the peer its link, as it does for others; if
        there is no connection, then as soon as there is one again.
        """
        try:
            handle()
        except BaseException as error:  # noqa: ASYNC103  no checkpoint
            self._refused = self._blamed(error)
            self.drop_connection()

    def drop_connection(self) -> None:
        """Break the connection, if there is one; the session goes on over the next."""
        if self._connection_scope is not None:
            self._connection_scope.cancel()

    def end(self, reason: str, *, peer_ended: bool = False) -> None:
        """The session is over for good: its calls end, its connection closes. Ending twice is no error.

        `peer_ended`: the peer's incarnation is known to have ended. Otherwise calls do not report the death of the peer's node.
        """
        if self.ended is None:
            self.ended = reason
            self.peer_ended = peer_ended
            self._receiver.link_ended(self, reason)
            # Handles and routes may refer to the link for long; what it held is freed now.
            self._transfers.clear()
            self._reassembly.clear()
            self.session.clear()
            self._out = []
            self._tell_progress()
            self.drop_connection()

    def acknowledge(self, *, at_once: bool = False, anyway: bool = False) -> None:
        """Tell the peer what has arrived, if it was not told yet. `at_once`: see `post`. `anyway`: from within the handling of a frame,
        which counts already: the peer keeps things for as long as it does not know.
        """
        if anyway or self.session.owes_acknowledgement:
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
        except BaseException as error:  # noqa: ASYNC103  no checkpoint
            raise self._blamed(error) from None  # noqa: ASYNC104
        self.counters.bytes_received += size
        self.counters.frames_received += numbered
        if session.arrived(numbered, size):
            self.acknowledge()
        return False

    def _blamed(self, error: BaseException) -> ProtocolError:
        """What the handling of a frame has raised, as the peer's fault. Raises a genuine interrupt."""
        if isinstance(error, DecodeError):
            # Whoever expects values of users deals with those that cannot be read here. The rest is the runtime's own.
            return ProtocolError(f"a frame of the runtime's own with a value of somebody else's in it: {error}")
        if isinstance(error, ProtocolError):
            return error
        if is_interrupt(error):
            raise error
        # A mistake of ours, or user code where none was expected. It was this frame that met it: it costs its sender the link, as anything
        # does that a peer sends, and nobody else anything.
        logger.error("a frame from %s could not be handled:\n%s", self.peer.name, traceback_of(error))
        return UnhandledFrameError(f"a frame that could not be handled: {summary_of(error)}")

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
            if len(frame.control) != 8:
                raise ProtocolError(f"an acknowledgement of {len(frame.control)} bytes; 8 are expected")
            self.session.acknowledge(int.from_bytes(frame.control, "big"))
            self._tell_progress()
            if self._transfers.unfinished:
                self._wake_writer()
        elif frame.kind == Kind.PING:
            self.send_control(Kind.PONG, at_once=True)
        elif frame.kind == Kind.GOODBYE:
            self.end("the peer said goodbye", peer_ended=True)
            return True
        elif frame.kind != Kind.PONG:
            raise ProtocolError(f"a frame of kind {frame.kind} after the handshake")
        return False
