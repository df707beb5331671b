"""A link: the trio shell around a session, over whatever connection there is at the moment.

Many frames are parsed per receive; nothing here costs a task, an event or a cancel scope per frame.
A link without a connection keeps what is posted until one stands again, as far as its window
allows. It ends only when its owner says so: because the peer's incarnation has ended, said goodbye,
or broke the protocol. Its sending half is `Outbound`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Protocol

import attrs
import trio

from actors.errors import DecodeError, ProtocolError
from actors.own_logger import own_logger
from actors.peers import VerifiedPeer
from runtime.environment import Process
from runtime.limited_log import LimitedLog
from runtime.links.deferred_posts import MOST_UNWRITTEN, DeferredPost, DeferredPosts
from runtime.links.loans import LENDING_KINDS, LOAN_BYTES, Lending, LendingPools
from runtime.links.session import WINDOW_FRAMES, Session, may_change, unchanging
from runtime.links.settlement import Settlement
from runtime.links.spin import SMALL_RECEIVE
from runtime.links.spinner import PollableConnection
from runtime.links.transfers import (
    FIRST_UNNUMBERED_KIND,
    WHOLE,
    Reassembly,
    Ticket,
    Transfer,
    Transfers,
)
from runtime.links.transports import Connection, with_address
from runtime.statistics.waits import WaitedSeconds
from runtime.user_errors import is_interrupt, summary_of, traceback_of
from runtime.wire.frames import LIMITS, Buffer, Frame, FrameReader, Kind, encode_frame
from runtime.wire.handshake import Peer

# The sending half of a link: what is posted, what waits, and the task that writes it.
#
# Everything queued in one pass of the scheduler leaves in one send. Large frames wait in
# `transfers` and are written part by part, whenever nothing else is to be written and the session
# has room for more of them; so a small frame waits for one part at most, besides what the kernel
# holds already.

BACKLOG_BYTES = LIMITS.frame
"""Bytes of frames that the peer has not acknowledged, from which on its calls are refused: their
answers would only add to them. Above the window of requests, so that requests of our own never have
calls of the peer's refused, and no less than the largest frame.
"""


BACKLOG_FRAMES = 2 * WINDOW_FRAMES
"""The same in frames."""


JOINED_BYTES = 8 * 1024
"""Frames up to this size are joined for one send; larger ones are gathered by the kernel, so that
they are not copied here.
"""


class Outbound:
    """The sending half of a link. `Link` opens and closes the connection."""

    def __init__(self) -> None:
        self.session = Session()
        """It exists before the first connection: frames that are posted by then are numbered like
        all later ones.
        """
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
        self.lending: Lending | None = None
        """Hands large segments over in shared memory; None with a peer of another host."""
        self._progress: trio.Event | None = None
        """There only while a task waits for it, so that it costs nothing otherwise."""
        self.bytes_sent = 0
        self.bytes_shared = 0
        """Bytes that were handed over in shared memory, which count in no other number."""
        self.batch = 0
        """Frames of the latest receive: after one only, the next answer is sent at once rather than
        gathered. 0 after that.
        """
        self.most_unwritten = MOST_UNWRITTEN
        """See `is_crowded`."""
        self._deferred = DeferredPosts()
        self._urgent = DeferredPosts()
        """Those that wait for room in the window only; see `defer`."""
        self._in_turn = False
        """True while deferred posts have their turns: what is posted then was deferred."""
        self._lot_began = 0
        """How many frames had been posted when the present, or latest, of these turns began."""
        self._waiting = 0
        """Tasks that wait for room, and one for all posts that are deferred for the lack of it."""
        self._held_up = False
        """True while that one is counted."""
        self.window_full = WaitedSeconds()
        """While at least one of them waits."""

    @property
    def deferred(self) -> int:
        """How many posts of the program wait for their turns; see `defer`."""
        return self._deferred.waiting

    @property
    def has_room(self) -> bool:
        """False while the window is full, or too much waits for its turn."""
        if self._transfers.unfinished and not self._transfers.has_room:
            return False
        return self.session.has_room

    @property
    def is_crowded(self) -> bool:
        """True if what is posted now is to be deferred: because other posts are, because the window
        is full, or because `most_unwritten` frames wait to be written.
        """
        session = self.session
        if self._in_turn:
            return session.sent - self._lot_began >= self.most_unwritten or not self.has_room
        return (
            session.sent - session.written >= self.most_unwritten
            or self._deferred.waiting > 0
            # Before these, too: calls of one service run in order.
            or self._urgent.waiting > 0
            or not self.has_room
        )

    @property
    def backlog(self) -> int:
        """Bytes that were posted and that the peer has not acknowledged, those included that wait
        for their turn.
        """
        return self.session.kept_bytes + self._transfers.waiting_bytes

    @property
    def backlog_frames(self) -> int:
        """The same in frames."""
        return self.session.kept_frames + self._transfers.waiting_frames

    @property
    def takes_calls(self) -> bool:
        """False while the peer leaves so many bytes unread that its requests could not be answered:
        they are refused.
        """
        if not self._transfers.unfinished:
            # Nothing waits for its turn then.
            return self.session.keeps_less(self.most_backlog, BACKLOG_FRAMES)
        return self.backlog < self.most_backlog and self.backlog_frames < BACKLOG_FRAMES

    async def room(self, size: int = 0) -> None:
        """Wait until `has_room`, or the end of the link.

        `size`, in bytes, of the frame to come: if it is a large one, wait until few enough of these
        are queued, too. Code that can make large frames faster than they leave, and does not wait
        for their answers, passes it; nothing else bounds the memory that they take.
        """
        if self._is_open_for(size):
            return
        self._wait_begins()
        try:
            while not self._is_open_for(size):
                await self._progress_made()
        finally:
            self._wait_ends()

    def _is_open_for(self, size: int) -> bool:
        return self.ended is not None or (self.has_room and self._transfers.takes(size))

    def _wait_begins(self) -> None:
        if not self._waiting:
            self.window_full.begin(trio.current_time())
        self._waiting += 1

    def _wait_ends(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            self.window_full.end(trio.current_time())

    def holds_back(self, *, urgent: bool) -> bool:
        """Like `is_crowded`; see `defer`."""
        if urgent:
            return not self.has_room or (self._urgent.waiting > 0 and not self._in_turn)
        return self.is_crowded

    def defer(
        self,
        act: Callable[[], object],
        on_end: Callable[[], object] | None = None,
        *,
        urgent: bool = False,
    ) -> DeferredPost | None:
        """Have `act` called when its turn has come, after all that was deferred before it. It posts
        then, and raises nothing. Returns its ticket; or None if its turn is now, so that the caller
        acts. `on_end` is called instead if the link ends first.

        `urgent`: for a service of the runtime. It waits for nothing but room in the window: not
        for the calls of the program, behind which a lease would not be renewed in time.
        """
        # Over a link that has ended nothing is sent, and what is posted on it fails at once.
        if not self.holds_back(urgent=urgent) or self.ended is not None:
            return None
        queue = self._urgent if urgent else self._deferred
        post = queue.add(act, on_end)
        if queue.waiting == 1:
            self._note_whether_held_up()
        # It may have been parked with nothing to do: whatever keeps this back, it looks again.
        self._wake_writer()
        return post

    @trio.lowlevel.enable_ki_protection
    async def in_turn(self, act: Callable[[], object], *, urgent: bool = False) -> bool:
        """Have `act` called when its turn has come, see `defer`; wait until then. Returns False if
        the link ends first. Raises what `act` raises.
        """
        task = trio.lowlevel.current_task()
        outcomes: list[BaseException | None] = []

        def acted() -> None:
            try:
                act()
            except BaseException as error:  # noqa: ASYNC103  raised below
                outcomes.append(error)
            else:
                outcomes.append(None)
            trio.lowlevel.reschedule(task)

        def withdraw(raise_cancel: object) -> trio.lowlevel.Abort:
            assert post is not None
            self.abandon(post)
            return trio.lowlevel.Abort.SUCCEEDED

        # No await from here to the parking: both functions wake a task that is parked.
        post = self.defer(acted, partial(trio.lowlevel.reschedule, task), urgent=urgent)
        if post is None:
            act()
            return True
        await trio.lowlevel.wait_task_rescheduled(withdraw)
        if not outcomes:
            return False
        error = outcomes.pop()
        try:
            if error is not None:
                raise error
        finally:
            # No circle with this frame, which the traceback has.
            del error
        return True

    @trio.lowlevel.enable_ki_protection
    def _take_turns(self) -> None:
        """Give deferred posts their turns: as many as are written at once, and as there is room
        for.
        """
        session = self.session
        # Answers that wait to be written are not counted: a peer that has its calls answered in
        # each pass would leave no turn for calls to it.
        self._lot_began = session.sent
        self._in_turn = True
        try:
            for queue in (self._urgent, self._deferred):
                # Counted as well, because a turn may post nothing: arguments that cannot be sent.
                for _ in range(self.most_unwritten):
                    if self.is_crowded:
                        break
                    act = queue.next()
                    if act is None:
                        break
                    act()
        finally:
            self._in_turn = False
        self._note_whether_held_up()

    @property
    def _turn_is_due(self) -> bool:
        """True if one of the deferred posts can have its turn now."""
        session = self.session
        return (
            (self._deferred.waiting > 0 or self._urgent.waiting > 0)
            and session.sent - session.written < self.most_unwritten
            and self.has_room
        )

    def _note_whether_held_up(self) -> None:
        held_up = (self._deferred.waiting > 0 or self._urgent.waiting > 0) and not self.has_room
        if held_up != self._held_up:
            self._held_up = held_up
            if held_up:
                self._wait_begins()
            else:
                self._wait_ends()

    # Ctrl-C, which may meet any task that posts, never comes between the number of a frame and its
    # place among what is to be written: each frame behind it would have the number of another.
    @trio.lowlevel.enable_ki_protection
    def post(
        self,
        frame: bytes,
        segments: tuple[Buffer, ...] = (),
        *,
        lane: Hashable = None,
        at_once: bool = False,
        changing: bool = False,
    ) -> Ticket:
        """Send a numbered frame, now or when a connection stands; returns the ticket by which the
        link knows it.

        A large frame travels in parts, between which others are sent. Frames of one `lane` are
        nevertheless received in the order in which they were posted; None is no lane. `at_once`
        tries the kernel right away: for a caller that has nothing else to gather the frame with.
        Never blocks; never raises for a connection that breaks.

        Segments are sent from where they lie: what is not bytes must not change before the peer has
        them, or `own` was called. `changing`: they may change as soon as this returns, so that what
        is not lent is copied.
        """
        if segments or self._lanes:
            return self._post_segments(frame, segments, lane, at_once, changing)
        # Numbered without a connection as well: `open` sends everything that the peer does not
        # have.
        number = self.session.keep((frame,))
        if self._connection is not None:
            self._out.append(frame)
            if len(frame) > JOINED_BYTES:
                self._large = True
            # The writer is parked only while `_writer` is set. Otherwise it is in its loop, and
            # sees the frame in `_out` by itself.
            if at_once and self._writer is not None and len(self._out) == 1:
                self._flush_at_once()
            elif self._writer is not None:
                self._wake_writer()
        return number

    def certainly_not_received(self, ticket: Ticket | DeferredPost) -> bool:
        """True if the frame of this ticket was never handed to any connection, or not to its end. 0
        is the ticket of no frame at all.
        """
        number = ticket if isinstance(ticket, int) else ticket.number
        return number == 0 or number > self.session.written

    @trio.lowlevel.enable_ki_protection
    def abandon(self, ticket: Ticket | DeferredPost) -> bool:
        """Abandon a frame that is not needed any more: do not send (the rest of) it, if that is
        still possible.

        True: it certainly will not be received, nothing needs to be taken back, and its segments
        may change. False: it is on its way.
        """
        if isinstance(ticket, int):
            return self._take_back(ticket)
        if isinstance(ticket, DeferredPost):
            ticket.withdraw()
            self._note_whether_held_up()
            return True
        if self.ended is not None:
            return not ticket.number
        transfers = self._transfers.abandon(ticket)
        if transfers is None:
            return False
        if self.lending is not None:
            self.lending.lender.on_abandoned(ticket)
        self._ship(transfers)
        self._wake_writer()
        self._tell_progress()
        return True

    def _take_back(self, number: int) -> bool:
        """Take back a small frame. While a connection stands it is gone with the next send: only
        without one there is something to win.
        """
        if not number:
            return True
        if self.ended is not None:
            return self.certainly_not_received(number)
        # While a connection stands, the writer may hand it over in this very pass of the scheduler.
        if self._connection is not None:
            return False
        taken = self.session.take_back(number, encode_frame(Kind.EMPTY, b""))
        if taken and self.lending is not None:
            self.lending.lender.on_abandoned(number)
        return taken

    @trio.lowlevel.enable_ki_protection
    def own(self, ticket: Ticket) -> None:
        """The owner of the segments of this frame may change them from now on: what the link still
        needs of them is copied.

        To be called by the code that posted segments other than bytes and gives them back to their
        owner while the peer may not have them: when a call ends without an answer (cancelled,
        expired), and right after posting what no task waits for (one-way calls, answers). After an
        answer it is not needed: the peer has the request then, and it is never sent again.
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

    @trio.lowlevel.enable_ki_protection
    def send_control(self, kind: Kind, control: bytes = b"", *, at_once: bool = False) -> None:
        """Send an unnumbered frame if a connection stands; otherwise it is pointless and dropped. A
        GOODBYE waits for all transfers.

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
        """Wait until all that was posted was handed to the kernel, or there is no connection to
        hand it to.
        """
        while (self._out or self._transfers.unfinished) and self._connection is not None:
            await self._progress_made()

    async def _progress_made(self) -> None:
        """Wait until something was sent or acknowledged, a connection opened or closed, or the link
        ended.
        """
        # Made only while a task waits, since almost no link is waited for; `_tell_progress` drops
        # it.
        if self._progress is None:
            self._progress = trio.Event()
        await self._progress.wait()

    def _tell_progress(self) -> None:
        if self._progress is not None:
            self._progress.set()
            self._progress = None

    def _post_segments(
        self,
        frame: bytes,
        segments: tuple[Buffer, ...],
        lane: Hashable,
        at_once: bool,
        changing: bool,
    ) -> Ticket:
        """Post a frame that has segments, or that may have to wait behind another of its lane."""
        if self.ended is not None:
            return 0
        buffers = tuple(map(_flat, segments))
        loan = 0
        if self.lending is not None and max(map(len, buffers), default=0) >= LOAN_BYTES:
            found = self.lending.lender.lend(frame, buffers)
            if found is not None:
                loan, frame, buffers = found
                self.bytes_shared = self.lending.lender.loaned_bytes
        if changing:
            # Only now: lending copies, and a copy before it would be as slow as all the rest.
            buffers = tuple(map(unchanging, buffers))
        ticket = self._post_buffers((frame, *buffers), lane, at_once)
        if loan and self.lending is not None:
            self.lending.lender.on_posted(loan, ticket)
        return ticket

    def _post_buffers(self, buffers: tuple[Buffer, ...], lane: Hashable, at_once: bool) -> Ticket:
        size = sum(map(len, buffers))
        # A small frame waits behind a large one of its lane: sent directly, it would arrive first.
        if size > WHOLE or lane in self._lanes:
            queued = self._transfers.add(buffers, size, lane)
            self._wake_writer()
            return queued
        # Loans that have ended here are returned along: they need no message of their own.
        returned = None if self.lending is None else self.lending.borrower.returned()
        if returned is not None:
            self.session.keep((returned,))
            if self._connection is not None:
                self._out.append(returned)
        number = self.session.keep(buffers)
        if self._connection is not None:
            self._large = self._large or len(buffers) > 1
            self._out.extend(buffers)
            # The writer is parked only with nothing left: what waits was added just now.
            if at_once and self._writer is not None:
                self._flush_at_once()
            else:
                self._wake_writer()
        return number

    def _ship(self, transfers: list[Transfer]) -> None:
        """Number what leaves `_transfers`, and queue it for writing."""
        session = self.session
        for buffers, completes, part in transfers:
            number = session.keep(buffers) if part is None else session.keep_part(buffers)
            if completes is not None:
                completes.number = number
            if part is not None and part.parts is not None:
                part.parts.append(number)
            if self._connection is not None:
                self._out.extend(buffers)
                self._large = self._large or len(buffers) > 1
        # GOODBYE leaves after the last part, because the peer ends its link when it reads it.
        if self._farewell and not self._transfers.unfinished and self._connection is not None:
            self._out.append(self._farewell)
            self._farewell = b""

    def _next_part(self) -> bool:
        """Queue the next part of a transfer for writing, if there is one and it may be sent."""
        if not self._transfers.unfinished or not self.session.has_room_for_part:
            return False
        self._ship(self._transfers.next())
        return True

    def _next_posts(self) -> bool:
        """Queue for writing what has waited for its turn, and the next part of a transfer; False if
        that is nothing.
        """
        if self._deferred.waiting or self._urgent.waiting:
            self._take_turns()
        # Also behind posts that had their turns: there may be more of them each time.
        self._next_part()
        return bool(self._out)

    async def _write(self, connection: Connection, scope: trio.CancelScope) -> None:
        # each turn waits for the socket, a post, or one pass of the scheduler
        while True:  # noqa: ASYNC913
            # No await between this look and the parking: the wake-up of a post in between would be
            # lost.
            if not self._out and not self._next_posts():
                if self._turn_is_due:
                    # Those that had their turns have posted nothing.
                    await trio.lowlevel.checkpoint()
                    continue
                self._writer = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._abort_parking)
                continue
            try:
                if not self._flush(connection):
                    await connection.wait_writable()
                    continue
            except (OSError, trio.ClosedResourceError):
                # The reader sees the end too, but perhaps much later: what is wrong with writing is
                # enough to redial.
                scope.cancel()
                return
            if self._progress is not None:
                self._tell_progress()
            if self._transfers.unfinished or self._deferred.waiting or self._urgent.waiting:
                # Between two parts, or two lots of deferred posts, all other tasks have a turn.
                await trio.lowlevel.checkpoint()
                # They may post something in each pass, such as answers: what is deferred does not
                # wait until nothing else is to be written.
                if self._deferred.waiting or self._urgent.waiting:
                    self._take_turns()

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
        # Once for each receive, whenever that was: the answers of calls that have waited here come
        # one right after the other, and would cost a system call each.
        self.batch = 0
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
        # Before the send, which may fail after the kernel took some of it: then it is unknown what
        # arrives, and unknown must count as sent.
        session.written = session.sent
        if not self._large:
            data: Buffer = b"".join(out) if len(out) > 1 else out[0]
            count = connection.send_some((data,))
            self.bytes_sent += count
            if count == len(data):
                out.clear()
                return True
            # The kernel has the first part of a frame: the rest must be the next bytes on this
            # connection.
            self._out = [memoryview(data)[count:]]
            return False
        while out:
            count = connection.send_some(out)
            if not count:
                return False
            self.bytes_sent += count
            self._out = out = _after(out, count)
        self._large = False
        return True


def _flat(segment: Buffer) -> Buffer:
    """A segment whose length is its number of bytes, and that its owner may resize."""
    # A bytearray cannot be resized by its owner as long as a view of it lives, and the error would
    # not show why: it is copied.
    if type(segment) is bytearray:
        return bytes(segment)
    if type(segment) is memoryview and segment.itemsize != 1:
        return segment.cast("B")
    return segment


def _after(buffers: list[Buffer], count: int) -> list[Buffer]:
    """Return what remains of `buffers` after their first `count` bytes."""
    for index, buffer in enumerate(buffers):
        size = len(buffer)
        if count < size:
            return [memoryview(buffer)[count:] if count else buffer, *buffers[index + 1 :]]
        count -= size
    return []


logger = own_logger("understudy.links")


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
        self.peer_ended = False
        """True once the link has ended because the peer's incarnation has: nothing else proves a
        peer's death.
        """
        self.life = ""
        """The life of the process that was last connected; see `Peer.life`."""
        self.counters = LinkCounters()
        self.last_heard = 0.0
        self.last_much = -math.inf
        """When `SMALL_RECEIVE` bytes or more last arrived at once: more may wait unread."""
        self.lost_at: float | None = None
        """When the latest connection broke, while there is none."""
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
        """The process at the other end, where the kernel reports which one it is: of the latest
        connection that was a Unix socket, to a process of this user.
        """
        self.receiver = receiver
        self._handlers = receiver.handlers
        self._reassembly = Reassembly()
        self.socket: PollableConnection | None = None
        """The socket of the connection that stands, in which other tasks may receive in the place
        of the reader; None while there is none.
        """
        self._connection_scope: trio.CancelScope | None = None
        self._refused: ProtocolError | None = None
        self._interrupted: FrameReader | None = None
        """Of the connection whose frames an interrupt has left unhandled."""
        self._down = trio.Event()
        self._down.set()

    @property
    def connected(self) -> bool:
        """True while a connection stands."""
        return self._connection is not None

    @property
    def connection(self) -> Connection | None:
        """The connection that stands; None while none does."""
        return self._connection

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

    def share_memory(self, pools: LendingPools, process: int) -> None:
        """The peer is this process of the same host and user, and both ends lend segments: from
        the first of the connections that show it.
        """
        if self.lending is None and self.ended is None:
            self.lending = Lending(pools, self.post, process)

    def on_beat(self) -> None:
        """Acknowledge what has arrived, and return shared memory that is not read any more."""
        if self.lending is not None and self.ended is None:
            self.lending.on_beat()
        self.acknowledge(at_once=True)

    def undialled(self) -> str:
        """Return the addresses that could not be reached, each with the reason."""
        return "; ".join(with_address(address, why) for address, why in self.dial_errors.items())

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
        again = self.session.resume(peer_received)
        # Replaces what was queued for the last connection: numbered frames are in `again`, and
        # unnumbered ones mean nothing to a new connection. The peer reads `first`, the end of the
        # handshake, before any frame.
        self._out = [first] if first else []
        self._out += [buffer for buffers in again for buffer in buffers]
        self._large = any(len(buffers) > 1 for buffers in again)
        self._connection = connection
        self.lost_at = None
        self.dial_errors.clear()
        # The event of the connection before was set when that was lost: no task waits for it.
        self._down = trio.Event()
        self.counters.connections += 1
        self.counters.frames_sent_again += len(again)
        self._tell_progress()

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
                    scope.cancel()
        finally:
            # All in one step, with no await: nothing may be posted to a connection that is closed.
            connection.close()
            self._connection = self.socket = None
            self.lost_at = trio.current_time()
            self._connection_scope = None
            self._writer = None
            self._down.set()
            self._tell_progress()
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
            self._transfers.clear()
            self._reassembly.clear()
            self.session.clear()
            for on_end in (*self._urgent.end(), *self._deferred.end()):
                on_end()
            self._note_whether_held_up()
            if self.lending is not None:
                self.lending.lender.close()
                self.lending = None
            self._out = []
            self._tell_progress()
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
        if self.ended is None:
            session = self.session
            session.check_invariants()
            # A peer that lies may acknowledge what is numbered and not written yet. No honest one
            # can, and simulated peers are honest.
            assert session.acknowledged <= session.written, "acknowledged before it left"
            assert session.owes_acknowledgement <= session.received, "only what came is owed one"
        else:
            assert not self._out, "what a link held is freed with it"
        self._transfers.check_invariants()
        self._reassembly.check_invariants()
        self._deferred.check_invariants()
        self._urgent.check_invariants()
        assert not self._in_turn, "a turn is one step"
        assert not self._held_up or self._deferred.waiting or self._urgent.waiting
        assert self._writer is None or not self._turn_is_due, "the writer gives turns"
        if self.lending is not None:
            assert self.ended is None, "what a link has lent ends with it"
            self.lending.lender.check_invariants()
        assert self.connected == (not self._down.is_set())
        assert self.lost_at is None or not self.connected
        # Otherwise nothing would ever send this.
        assert not self._out or self._writer is None, "the writer is parked only with nothing left"

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
        except ProtocolError as error:
            self._refused = error
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
        self.batch = len(frames)
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
        if size >= SMALL_RECEIVE:
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
        if whole is not None and whole.kind in LENDING_KINDS and self.lending is not None:
            if whole.kind == Kind.RETURNED:
                # It asks for no answer: that of the frame beside it need not be gathered.
                self.batch -= 1
            whole = self.lending.on_frame(whole)
        if whole is not None:
            handler = self._handlers.get(whole.kind)
            if handler is None:
                raise ProtocolError(
                    f"a frame of kind {whole.kind}, which this version does not know"
                )
            handler(self, whole)

    def _control(self, frame: Frame) -> bool:
        """Handle an unnumbered frame; True if the peer is leaving."""
        if frame.kind == Kind.ACK:
            if len(frame.control) != 8:
                raise ProtocolError(
                    f"an acknowledgement of {len(frame.control)} bytes; 8 are expected"
                )
            self.session.acknowledge(int.from_bytes(frame.control, "big"))
            self._tell_progress()
            # The acknowledgement has made room in the window for more parts, or deferred posts.
            if self._transfers.unfinished or self._deferred.waiting or self._urgent.waiting:
                self._wake_writer()
        elif frame.kind == Kind.PING:
            self.send_control(Kind.PONG, at_once=True)
        elif frame.kind == Kind.GOODBYE:
            self.end("the peer said goodbye", peer_ended=True)
            return True
        elif frame.kind != Kind.PONG:
            raise ProtocolError(f"a frame of kind {frame.kind} after the handshake")
        return False
