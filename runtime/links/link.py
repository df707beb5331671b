"""A link: the trio shell around a session, over whatever connection there is at the moment.

Many frames are parsed per receive; nothing here costs a task, an event or a cancel scope per frame.
A link without a connection keeps what is posted until one stands again, as far as its window
allows. It ends only when its owner says so: because the peer's incarnation has ended, said goodbye,
or broke the protocol. Its sending half is `Outbound`; here are the connections and what arrives.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Protocol

import attrs
import trio

from actors.errors import DecodeError, ProtocolError
from actors.own_logger import own_logger
from actors.peers import VerifiedPeer
from runtime.environment import Process
from runtime.limited_log import LimitedLog
from runtime.links.loans import LENDING_KINDS, Lending, LendingPools, declined
from runtime.links.outbound import Outbound
from runtime.links.settlement import Settlement
from runtime.links.spinner import PollableConnection
from runtime.links.transfers import FIRST_UNNUMBERED_KIND, Reassembly
from runtime.links.transports import Connection, with_address
from runtime.user_errors import is_interrupt, summary_of, traceback_of
from runtime.wire.frames import Frame, FrameReader, Kind
from runtime.wire.handshake import Peer

logger = own_logger("understudy.links")

MUCH_RECEIVED = 16 * 1024
"""Bytes of one receive: from so many on, more may have arrived that is not read yet."""


NO_MEMORY = "there is no memory here for what it has sent"


class UnhandledFrameError(ProtocolError):
    """A handler of frames has raised an error that it must not raise: a bug of this side."""


class Receiver(Protocol):
    """Receives the frames of a link.

    An interface because the room `calls`, which has `Dispatch`, imports this one; tests of links
    have others.
    """

    @property
    def handlers(self) -> Mapping[int, Callable[[Link, Frame], None]]:
        """One handler for each numbered kind."""
        ...

    def link_ended(self, link: Link, reason: str) -> None:
        """The session is over: end the calls that travelled on it."""
        ...


@attrs.define
class LinkCounters:
    """Counters of one link, for `status` and metrics; or the sum over all links that have ended, in
    which `connections` leaves out the first connection of each link.
    """

    connections: int = 0
    frames_sent: int = 0
    frames_sent_again: int = 0
    frames_received: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    bytes_shared: int = 0
    window_full: float = 0.0
    """Seconds."""

    def add(self, link: Link) -> None:
        """Add those of a link."""
        counters = link.counters
        self.connections += max(0, counters.connections - 1)
        self.frames_sent += link.session.sent
        self.frames_sent_again += counters.frames_sent_again
        self.frames_received += link.session.received
        self.bytes_received += counters.bytes_received
        self.bytes_sent += link.bytes_sent
        self.bytes_shared += link.bytes_shared
        self.window_full += link.window_full.seconds(trio.current_time())


class Link(Outbound):
    """The session with one peer. Not connected at first; see `run`. `number` and `leads`: see
    `Settlement`. Its counters are added to `ended_links` when it ends.
    """

    def __init__(
        self,
        peer: Peer,
        receiver: Receiver,
        number: int = 1,
        *,
        leads: bool = True,
        ended_links: LinkCounters | None = None,
        log: LimitedLog | None = None,
    ) -> None:
        super().__init__()
        # One for all links of an owner: a peer that is given up may come back at once.
        self._log = log or LimitedLog(logger, trio.current_time)
        self.peer = peer
        self._ended_links = ended_links
        self.settlement = Settlement(number, leads=leads)
        self.peer_ended = self.peer_left = False
        """True once the link has ended because the peer's incarnation has: nothing else proves a
        peer's death; and once that is known to have left in order, which is none.
        """
        self.life = ""
        """The life of the process that was last connected; see `Peer.life`."""
        self.counters = LinkCounters()
        self.last_heard = 0.0
        """When anything last arrived, on trio's clock."""
        self.last_much = -math.inf
        """When `MUCH_RECEIVED` bytes or more last arrived at once: more may wait unread."""
        self.lost_at: float | None = None
        """When the latest connection broke, while there is none."""
        self.dialled_at: float | None = None
        self.failed_at: float | None = None
        """When a dial first began, and first reached no address: before the first connection."""
        self.dial_errors: dict[str, str] = {}
        """Why the latest dial of each address came to nothing; empty while a connection stands."""
        self.unanswered = 0
        """Dials in a row in which no connection came about at any address."""
        self.secret_turn = 0
        """The number of the cluster's secret that the next dial proves; see `Keyring`."""
        self.wanted = False
        """True if this end has asked for the link: it is dialled until it ends."""
        self.fenced = False
        """True if the peer is known to be no member any more: its calls to actors must not run."""
        self.verified: VerifiedPeer | None = None
        """The proven identity of the peer; None before the first connection."""
        self.restricted = False
        """True if the peer has another role than "node": each of its calls needs to be admitted."""
        self.audited = peer.role == "client"
        """True if the peer is no member: what it does as an administrator is in the audit log."""
        self.watched = False
        """True if the system reports the end of the peer's process to its owner: then silence is no
        sign of anything.
        """
        self.process: Process | None = None
        """The process of this user at the other end, by the kernel: of the latest Unix socket."""
        self.receiver = receiver
        self._handlers = receiver.handlers
        self._reassembly = Reassembly()
        self.socket: PollableConnection | None = None
        """The socket of the connection that stands, in which other tasks may receive in the place
        of the reader; None while there is none.
        """
        self._connection_scope: trio.CancelScope | None = None
        self._refused: ProtocolError | None = None
        """The error of a frame that another task has handled, until the task in `run` raises it."""
        self._interrupted: FrameReader | None = None
        """Of the connection whose frames an interrupt has left unhandled."""
        self._unheard = False
        """True until the first frame over a connection that was accepted; see `share_memory`."""
        self._down = trio.Event()
        self._down.set()

    def lapsed(self) -> str:
        """Why the connection does not prove any more who the peer is; "" while it does, or none
        stands.
        """
        connection = self._connection
        return "" if connection is None else connection.channel.lapsed()

    def on_verified(self, peer: VerifiedPeer) -> None:
        """The peer has proven who it is: before each connection carries the session."""
        # One session, one identity: others are refused before this.
        assert self.verified is None or self.verified.role == peer.role
        self.verified = peer
        self.restricted = peer.role != "node"
        self.audited = self.restricted or self.peer.role == "client"

    def share_memory(self, pools: LendingPools, process: int, *, dialled: bool) -> None:
        """The connection that is opened next shows that the peer is this process of the same host
        and user, and both ends lend segments: from the first such connection until the session
        ends, over whatever connections.

        `dialled`: by this end. The peer has accepted it then, and borrows. Of a connection that
        this end accepts, the peer does not know yet what it shows, and never will if it has given
        up this dial: lending begins with the first frame that comes over it.
        """
        if self.ended is not None:
            return
        if self.lending is None:
            self.lending = Lending(pools, self.post, process)
        if dialled:
            self.lending.lender.begin()
        else:
            self._unheard = True

    def on_beat(self) -> None:
        """Acknowledge what has arrived, and return shared memory that is not read any more."""
        if self.lending is not None and self.ended is None:
            self.lending.on_beat()
        self.acknowledge(at_once=True)

    def on_dialled(self) -> None:
        """Note that an address is dialled from now on."""
        if self._is_unconnected and self.dialled_at is None:
            self.dialled_at = trio.current_time()

    def on_unanswered(self) -> None:
        """Note that no connection came about at any of the addresses."""
        if self._is_unconnected and self.failed_at is None:
            self.failed_at = trio.current_time()

    @property
    def _is_unconnected(self) -> bool:
        """True before the first connection. After it, `lost_at` says what there is to say."""
        return self._connection is None and self.lost_at is None

    def undialled(self) -> str:
        """Return the addresses that could not be reached, each with the reason."""
        return "; ".join(with_address(address, why) for address, why in self.dial_errors.items())

    def unreached(self) -> str:
        """Like `undialled`, and before any dial has failed the addresses that do not answer; "" if
        the peer is connected.
        """
        if self.connected:
            return ""
        return self.undialled() or "nothing answers at " + ", ".join(
            address.removeprefix("tcp:")
            for address in self.peer.addresses
            if address.startswith("tcp:")
        )

    def open(self, connection: Connection, peer_received: int, first: bytes = b"") -> None:
        """Use a new connection: write `first`, then the frames that the peer does not have, then
        those that are posted from now on. Call `run` next.

        `peer_received`: the number of frames that the peer reports to have. Raises ProtocolError if
        that cannot be true.
        """
        assert self._connection is None, (
            "the last connection must be down: the frames that arrived on it were counted in what "
            "this side has acknowledged"
        )
        sent_again = self._begin_writing(connection, peer_received, first)
        self.lost_at = self.dialled_at = self.failed_at = None
        self.dial_errors.clear()
        # The event of the connection before was set when that was lost: no task waits for it.
        self._down = trio.Event()
        self.counters.connections += 1
        self.counters.frames_sent_again += sent_again

    async def run(self, connection: Connection, reader: FrameReader, early: list[Frame]) -> None:
        """Carry the session over the connection just opened until it breaks, the peer ends it or
        the link ends.

        `early`: frames that came together with the last of the handshake. Raises ProtocolError if
        the peer breaks the protocol; broken connections are no error.
        """
        broken: ProtocolError | None = None
        # The silence of the last connection is not this one's: it would be dropped at the next
        # look, and so would all that follow it.
        self.last_heard = trio.current_time()
        self.attach(reader)
        try:
            with trio.CancelScope() as scope:
                self._connection_scope = scope
                if self._refused is not None:
                    # While there was no connection.
                    scope.cancel()
                elif self.ended is not None or self.on_frames(early, 0):
                    return
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, connection, scope)
                    try:
                        await self._read(connection, reader)
                    except ProtocolError as error:
                        # Raised below: out of the nursery it would come as a group, which no caller
                        # expects.
                        broken = error
                    except MemoryError:
                        # Over another connection it would come again.
                        broken = ProtocolError(NO_MEMORY)
                    scope.cancel()
        finally:
            # All in one step, with no await: nothing may be posted to a connection that is closed.
            # It is closed last: whatever that meets, the link knows that no connection stands.
            self._stop_writing()
            # What comes over the next one shows nothing of this one.
            self._unheard = False
            self.socket = None
            self.lost_at = trio.current_time()
            self._connection_scope = None
            self._down.set()
            connection.close()
        broken = broken or self._refused
        if broken is not None:
            raise broken

    def attach(self, reader: FrameReader) -> None:
        """Let the reader of a new connection receive transfers straight into their buffers."""
        self._reassembly.on_connected(reader.limits)
        reader.place = self._reassembly.place

    async def connected_again(self) -> None:
        """Wait until a connection stands, or the link has ended."""
        while self._connection is None and self.ended is None:
            await self._progress_made()

    async def disconnected(self) -> None:
        """Wait until no connection stands."""
        await self._down.wait()

    def handle_later(self, handle: Callable[[], None]) -> None:
        """Handle a frame that could not be handled when it arrived. An error ends the link, as for
        all other frames; without a connection, as soon as there is one again.
        """
        try:
            handle()
        except BaseException as error:  # noqa: ASYNC103  no checkpoint
            self._refused = self._as_peers_error(error)
            self.drop_connection()

    def drop_connection(self) -> None:
        """Break the connection, if there is one; the session goes on over the next."""
        if self._connection_scope is not None:
            self._connection_scope.cancel()

    def end(self, reason: str, *, peer_ended: bool = False) -> None:
        """End the session: its calls end, its connection closes. It may be ended again.

        `peer_ended`: the peer's incarnation is known to have ended. Otherwise calls do not report
        the death of the peer's node.
        """
        if self.ended is None:
            # Set first: what `link_ended` wakes may look at it, or post, at once.
            self.ended = reason
            self.peer_ended = peer_ended
            if self._ended_links is not None:
                self._ended_links.add(self)
            self.receiver.link_ended(self, reason)
            # Handles and routes may refer to the link for long; what it held is freed now.
            self._reassembly.clear()
            self._end_sending()
            self.drop_connection()

    def acknowledge(self, *, at_once: bool = False, anyway: bool = False) -> None:
        """Acknowledge what has arrived, if anything is not acknowledged yet. `at_once`: see `post`.
        `anyway`: also the frame that is being handled, which counts already: the peer keeps its
        forks until the acknowledgement.
        """
        if anyway or self.session.owes_acknowledgement:
            self.send_control(
                Kind.ACK, self.session.acknowledgement().to_bytes(8, "big"), at_once=at_once
            )

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. Looks at every frame: for tests and
        simulations.
        """
        super().check_invariants()
        self._reassembly.check_invariants()
        assert self.connected == (not self._down.is_set())
        assert self.connected or not self._unheard, "frames come over a connection"
        assert self.lost_at is None or not self.connected
        assert self._is_unconnected or (self.dialled_at is None and self.failed_at is None)

    async def _read(self, connection: Connection, reader: FrameReader) -> None:
        # In the context of this task: tasks that handlers start must not get that of the task which
        # happens to poll.
        run = trio.lowlevel.current_task().context.run
        self.socket = connection.let_others_receive(lambda data: run(self._act, reader, data))
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
            if not size or self.ended is not None or self._interrupted is reader:
                # What arrived in the very pass of the scheduler in which the link ended finds
                # nothing here any more.
                return
            self.last_heard = trio.current_time()
            # The frames are not kept in a variable here: the last of them may be large, and the
            # next may be long in coming.
            if self.on_frames(reader.feed(data) if buffer is None else reader.filled(size), size):
                return

    def _act(self, reader: FrameReader, data: bytes) -> None:
        """Act upon what another task has received in the place of the one in `_read`."""
        if self.ended is not None or self._interrupted is reader:
            return
        self.last_heard = trio.current_time()
        try:
            self.on_frames(reader.feed(data), len(data))
        except (ProtocolError, MemoryError) as error:
            self._refused = error if isinstance(error, ProtocolError) else ProtocolError(NO_MEMORY)
            self.drop_connection()
        except BaseException:
            # An interrupt, which goes to that task: by a handler of the application's own, because
            # trio's does not interrupt what is protected. The frames behind the one that it has met
            # come again over the next connection: what was received and not handled is not lost.
            # Until this one is closed it may bring more. That comes again, too: counted now, it
            # would take the place of the frames that were left.
            self._interrupted = reader
            self.drop_connection()
            raise

    def on_frames(self, frames: list[Frame], size: int) -> bool:
        """Act upon frames that have arrived; True if the peer is leaving."""
        session = self.session
        handlers = self._handlers
        if self.said_goodbye:
            # The goodbye says to the peer that they are not taken, and it ends their calls.
            frames = [frame for frame in frames if frame.kind >= FIRST_UNNUMBERED_KIND]
        self.batch = len(frames)
        if self._unheard and frames:
            # Before they are handled: their answers may be large.
            self._unheard = False
            if self.lending is not None:
                self.lending.lender.begin()
        numbered = 0
        try:
            for frame in frames:
                kind = frame.kind
                if kind < FIRST_UNNUMBERED_KIND:
                    # Counted before it is handled: a frame that was acted upon must never be asked
                    # for again.
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
            raise self._as_peers_error(error) from None  # noqa: ASYNC104
        if size >= MUCH_RECEIVED:
            self.last_much = trio.current_time()
        self.counters.bytes_received += size
        self.counters.frames_received += numbered
        # Acknowledged now, not at the next beat, if much has arrived: the peer's window may be
        # full.
        if session.on_arrived(numbered, size):
            self.acknowledge()
        return False

    def _as_peers_error(self, error: BaseException) -> ProtocolError:
        """Return the ProtocolError for `error`, which the handler of a frame has raised. Raises
        `error` itself if it is a genuine interrupt.
        """
        if isinstance(error, DecodeError):
            # Handlers of frames with values of users deal with those that cannot be read here. The
            # other frames are the runtime's own.
            return ProtocolError(
                f"a frame of the runtime itself has a value that cannot be read here: {error}"
            )
        if isinstance(error, ProtocolError):
            return error
        if is_interrupt(error):
            raise error
        # A mistake of ours, or user code where none was expected. It was this frame that met it: it
        # costs its sender the link, as any breach by a peer does, and no other link is affected.
        self._log.log(
            logging.ERROR,
            "a frame from %s could not be handled:\n%s",
            self.peer.name,
            traceback_of(error),
        )
        return UnhandledFrameError(f"a frame that could not be handled: {summary_of(error)}")

    def _part(self, frame: Frame) -> None:
        """Handle a frame of a transfer or a loan, and the one that it completes; or one that was
        taken back.
        """
        if frame.kind == Kind.EMPTY:
            return
        whole = frame if frame.kind in LENDING_KINDS else self._reassembly.take(frame)
        # A loan travels in parts as well, if what it has besides is large.
        if whole is not None and whole.kind in LENDING_KINDS:
            whole = self._about_memory(whole)
        if whole is not None:
            handler = self._handlers.get(whole.kind)
            if handler is None:
                raise ProtocolError(
                    f"a frame of kind {whole.kind}, which this version does not know"
                )
            handler(self, whole)

    def _about_memory(self, frame: Frame) -> Frame | None:
        """Act upon a frame about shared memory; returns the frame that a loan stands for."""
        if frame.kind == Kind.RETURNED:
            # It asks for no answer: that of the frame beside it need not be gathered.
            self.batch -= 1
        if self.lending is not None:
            return self.lending.on_frame(frame)
        # No connection has shown this end that the peer is of its host. The peer may see that of
        # this process: it is outside of the container that this one is in, for example. What came
        # together with the frame that has ended the link finds nothing here any more.
        answer = declined(frame) if self.ended is None else None
        if answer is not None:
            self.post(answer)
        return None

    def _control(self, frame: Frame) -> bool:
        """Handle an unnumbered frame; True if the peer is leaving."""
        if frame.kind == Kind.ACK:
            if len(frame.control) != 8:
                raise ProtocolError(
                    f"an acknowledgement of {len(frame.control)} bytes; 8 are expected"
                )
            self._on_acknowledged(int.from_bytes(frame.control, "big"))
        elif frame.kind == Kind.PING:
            self.send_control(Kind.PONG, at_once=True)
        elif frame.kind == Kind.GOODBYE:
            # A peer of an earlier version does not say what it has.
            if frame.control:
                if len(frame.control) != 8:
                    raise ProtocolError(f"a goodbye of {len(frame.control)} bytes; 8 are expected")
                self.session.on_goodbye(int.from_bytes(frame.control, "big"))
            self.peer_left = True
            self.end("the peer said goodbye", peer_ended=True)
            return True
        elif frame.kind != Kind.PONG:
            raise ProtocolError(f"a frame of kind {frame.kind} after the handshake")
        return False
