"""The sending half of a link: what is posted, what waits, and the task that writes it.

Everything queued in one pass of the scheduler leaves in one send. Large frames wait in `transfers`
and are written part by part, whenever nothing else is to be written and the session has room for
more of them. So a small frame waits for one part at most, besides what the kernel holds already.

The window of the session bounds what the peer has not acknowledged. While it is full, or much waits
to be written, posts of the program are deferred; see `Outbound.defer`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial

import trio

from runtime.links.deferred_posts import MOST_UNWRITTEN, DeferredPost, DeferredPosts
from runtime.links.loans import LOAN_BYTES, Lending
from runtime.links.session import WINDOW_FRAMES, Session, may_change, unchanging
from runtime.links.transfers import WHOLE, Ticket, Transfer, Transfers
from runtime.links.transports import Connection
from runtime.statistics.waits import WaitedSeconds
from runtime.wire.frames import LIMITS, Buffer, Kind, encode_frame

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
        """What is to be written to the connection next, in its order."""
        self._large = False
        """True if some of it is gathered by the kernel; see `JOINED_BYTES`."""
        self._transfers = Transfers()
        self._lanes = self._transfers.lanes
        """The lanes of the large frames that wait there: read for each post."""
        self._leaves = False
        """True from `say_goodbye` on, until all that was posted before is written."""
        self.said_goodbye = False
        """True once a GOODBYE has said which frames of the peer were taken: no further one is."""
        self.most_backlog = BACKLOG_BYTES
        """See `takes_calls`. Twice as much is never exceeded by more than one frame of answers."""
        self._writer: trio.lowlevel.Task | None = None
        """The task that writes, while it is parked; else None."""
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
    def connected(self) -> bool:
        """True while a connection stands."""
        return self._connection is not None

    @property
    def connection(self) -> Connection | None:
        """The connection that stands; None while none does."""
        return self._connection

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
        """True if the frame of this ticket was never handed to any connection, or not to its end,
        or if the peer has left without it. 0 is the ticket of no frame at all.
        """
        number = ticket if isinstance(ticket, int) else ticket.number
        return number == 0 or not self.session.may_have_arrived(number)

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
        self._notify_progress()
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
        """Send an unnumbered frame if a connection stands; otherwise it is pointless and dropped.

        `at_once`: see `post`.
        """
        if self._connection is not None:
            self._out.append(encode_frame(kind, control))
            if at_once and self._writer is not None and len(self._out) == 1:
                self._flush_at_once()
            else:
                self._wake_writer()

    def say_goodbye(self) -> None:
        """Send a GOODBYE behind all that was posted, if a connection stands. It says which frames
        of the peer were taken, and no further one is: a request that crosses it certainly does not
        run, and its caller knows that.
        """
        if self._connection is not None:
            self._leaves = True
            self._wake_writer()

    async def flushed(self) -> None:
        """Wait until all that was posted was handed to the kernel, or there is no connection to
        hand it to.
        """
        while (
            self._out or self._transfers.unfinished or self._leaves
        ) and self._connection is not None:
            await self._progress_made()

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
        self._deferred.check_invariants()
        self._urgent.check_invariants()
        assert not self._in_turn, "a turn is one step"
        assert not self._held_up or self._deferred.waiting or self._urgent.waiting
        assert self._writer is None or not self._turn_is_due, "the writer gives turns"
        if self.lending is not None:
            assert self.ended is None, "what a link has lent ends with it"
            self.lending.lender.check_invariants()
        # Otherwise nothing would ever send this.
        assert not self._out or self._writer is None, "the writer is parked only with nothing left"

    # For `Link`, which opens and closes connections, and reads what the peer acknowledges.

    def _begin_writing(self, connection: Connection, peer_received: int, first: bytes) -> int:
        """Queue `first` and all frames that the peer does not have, to be written to this
        connection; returns how many frames. `_write` writes them. Raises ProtocolError if the peer
        cannot have received so many.
        """
        again = self.session.resume(peer_received)
        # Replaces what was queued for the last connection: numbered frames are in `again`, and
        # unnumbered ones mean nothing to a new connection. The peer reads `first`, the end of the
        # handshake, before any frame.
        self._out = [first] if first else []
        self._out += [buffer for buffers in again for buffer in buffers]
        self._large = any(len(buffers) > 1 for buffers in again)
        self._connection = connection
        self._notify_progress()
        return len(again)

    def _stop_writing(self) -> None:
        """The connection is closed: what is posted from now on waits for the next one."""
        self._connection = None
        self._writer = None
        self._notify_progress()

    def _on_acknowledged(self, received: int) -> None:
        """The peer has the first `received` numbered frames. Raises ProtocolError if that cannot be
        true.
        """
        self.session.acknowledge(received)
        self._notify_progress()
        # The acknowledgement has made room in the window for more parts, or deferred posts.
        if self._transfers.unfinished or self._deferred.waiting or self._urgent.waiting:
            self._wake_writer()

    def _end_sending(self) -> None:
        """The link has ended, and `ended` is set: free what waits to be sent, and the shared
        memory that is lent.
        """
        self._transfers.clear()
        self.session.clear()
        for on_end in (*self._urgent.end(), *self._deferred.end()):
            on_end()
        self._note_whether_held_up()
        if self.lending is not None:
            self.lending.lender.close()
            self.lending = None
        self._out = []
        self._notify_progress()

    async def _progress_made(self) -> None:
        """Wait until something was sent or acknowledged, a connection opened or closed, or the link
        ended.
        """
        # Made only while a task waits, since almost no link is waited for; `_notify_progress` drops
        # it.
        if self._progress is None:
            self._progress = trio.Event()
        await self._progress.wait()

    def _notify_progress(self) -> None:
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
        # After the last part, because the peer ends its link when it reads this. Only here, in the
        # task that writes: among the frames of one receive, some would be handled after the count.
        if self._leaves and not self._out and not self._transfers.unfinished:
            self._leaves, self.said_goodbye = False, True
            self._out.append(encode_frame(Kind.GOODBYE, self.session.received.to_bytes(8, "big")))
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
            except (OSError, MemoryError, trio.ClosedResourceError):
                # The reader sees the end too, but perhaps much later: what is wrong with writing is
                # enough to redial. Where there is no memory to join frames, nothing is lost either:
                # they are sent again over the next connection.
                scope.cancel()
                return
            if self._progress is not None:
                self._notify_progress()
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
        except (OSError, MemoryError):
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
