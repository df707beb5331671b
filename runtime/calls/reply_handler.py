"""The reply handler: decodes the answers to this node's calls, and fails the calls whose link ends
first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypedDict, cast

import trio

from actors.errors import (
    CallError,
    ConnectionLostError,
    DecodeError,
    NodeDiedError,
    NodeDrainingError,
    NodeUnreachableError,
    NotAMemberError,
    OutcomeUnknownError,
    ProtocolError,
    ReplyDecodeError,
)
from actors.identifiers import ActorId
from runtime.calls.actor_loads import ActorLoads
from runtime.calls.deadlines import Waiting, wake
from runtime.calls.error_codec import (
    RAISED,
    CallPlace,
    Plain,
    RepeatableError,
    rebuild,
    without_values,
)
from runtime.calls.flow_control import ReadingWindow
from runtime.calls.pending_calls import PendingCall
from runtime.calls.protocol import answer_items, cancel_frame
from runtime.calls.routes import Routes
from runtime.links.link import Link
from runtime.links.peers import LEFT
from runtime.wire.arrays import after_short_number, first_number
from runtime.wire.codec import Codec
from runtime.wire.frames import Frame

MOST_REPEATED = 64
MOST_REPEATED_BYTES = 4096
"""How many descriptions of errors are kept, and below how many bytes each."""


class ReplyHandler:
    """Takes the frames that answer calls, and finishes these calls."""

    def __init__(
        self,
        codec: Codec,
        routes: Routes,
        find_class: Callable[[str], type],
        now: Callable[[], float],
    ) -> None:
        self._codec = codec
        self._routes = routes
        self._find_class = find_class
        self.loads = ActorLoads(now)
        """The numbers of calls of actors that replies report."""
        self._repeated: dict[bytes, RepeatableError] = {}
        """Errors that may come again, by their descriptions in ERROR frames."""

    def on_reply(self, link: Link, frame: Frame) -> None:
        """Handle a REPLY frame: `[number, value]`, or `[number, value, depth]`."""
        try:
            answer = self._codec.decode(frame.control, frame.segments)
        except DecodeError as error:
            # The answer is there and cannot be read here: its call must still end, and we know only
            # its number.
            self._on_unreadable(link, frame, error, ran=True)
            return
        # Inline, for the hot path; see `answer_items`.
        items: Any = answer
        if type(items) is not list or len(items) < 2 or type(items[0]) is not int:
            items = answer_items(answer, 2)
        table = self._routes.tables.get(link)
        call = table.pending.pop(items[0], None) if table is not None else None
        if call is not None:
            call.value = items[1]
            call.finished = True
            if frame.segments:
                call.large_answer = True
            if len(items) > 2:
                self.loads.on_depth(ActorId(call.place.actor, call.place.epoch), items[2])
            wake(call)

    def on_error(self, link: Link, frame: Frame) -> None:
        """Handle an ERROR frame: `[number, code, description]`."""
        control, table = frame.control, self._routes.tables.get(link)
        said = _after_number(control) if not frame.segments else b""
        repeated = self._repeated.get(said)
        if repeated is not None:
            call = table.take(first_number(control)) if table is not None else None
            if call is not None:
                self._fail(call, repeated.at(call.place))
            return
        try:
            description = self._codec.decode(control, frame.segments)
        except DecodeError as error:
            description = self._texts_of(frame, error)
            if description is None:
                self._on_unreadable(link, frame, error, ran=False)
                return
            said = b""
        number, code, plain, *_ = answer_items(description, 3)
        call = table.pending.get(number) if table is not None else None
        if table is not None and call is not None:
            # Taken off only once it is understood: otherwise the call has to end with its link.
            outcome = rebuild(code, plain, call.place, self._find_class)
            table.take(number)
            if said:
                self._keep(said, outcome)
            self._fail(call, outcome)

    def _texts_of(self, frame: Frame, error: DecodeError) -> object:
        """Return the parts of an ERROR frame without the values in it, one of which cannot be built
        here for the reason `error`: the method has certainly raised. None if it is no such frame.
        """
        try:
            parts = self._codec.skim(frame.control, frame.segments, lambda path, fields: None)
        except ProtocolError:
            # Without the objects, some keys of a dict look alike.
            return None
        number, code, plain, *_ = answer_items(parts, 3)
        if code != RAISED or type(plain) is not dict:
            return None
        return [number, code, without_values(cast("Plain", plain), str(error))]

    def _keep(self, said: bytes, outcome: CallError) -> None:
        """Keep what the next error of this description is rebuilt from, if errors can share it."""
        found = RepeatableError.of(outcome)
        if found is not None:
            # The table begins anew: which errors come again changes with what the program does.
            if len(self._repeated) >= MOST_REPEATED:
                self._repeated.clear()
            self._repeated[said] = found

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps: for tests and simulations."""
        assert len(self._repeated) <= MOST_REPEATED
        assert all(len(said) < MOST_REPEATED_BYTES for said in self._repeated)

    def link_ended(self, link: Link) -> None:
        """End all calls that waited on `link`."""
        table = self._routes.tables.pop(link, None)
        if table is not None:
            for call in table.end(lambda call: self.lost(link, call)):
                wake(call)

    def lost(self, link: Link, call: Waiting) -> CallError:
        """Return the error for a call whose link has ended before its answer came."""
        place = call.place
        not_received = link.certainly_not_received(call.ticket)
        certainly_not = not_received and not call.left
        if link.ended == LEFT:
            # It says nothing about the other node that this one has left.
            if certainly_not:
                return NotAMemberError(
                    f"{place.actor}.{place.method} was not called: {link.ended}", **facts(place)
                )
            return ConnectionLostError(
                f"{link.ended} while {place.actor}.{place.method} was under way on node "
                f"{place.node}; the call may have taken effect",
                **facts(place),
            )
        # Of a service, an earlier attempt was answered before the goodbye, and is judged by itself.
        if link.peer_left and (certainly_not or (not_received and place.actor[:1] == "@")):
            return NodeDrainingError(
                f"{place.actor}.{place.method} did not run: node {place.node} has left the cluster",
                **facts(place),
            )
        if certainly_not:
            return NodeUnreachableError(
                f"{place.actor}.{place.method} was never sent to node {place.node}: {link.ended}",
                **facts(place),
            )
        if link.peer_left:
            return NodeDiedError(
                f"node {place.node} left the cluster while {place.actor}.{place.method} was with "
                f"it, and no answer has come: {link.ended}; the call may have taken effect",
                **facts(place),
            )
        if link.peer_ended:
            return NodeDiedError(
                f"node {place.node} ended while {place.actor}.{place.method} was with it: "
                f"{link.ended}; the call may have taken effect",
                **facts(place),
            )
        return ConnectionLostError(
            f"the link to node {place.node} ended while {place.actor}.{place.method} was with it: "
            f"{link.ended}; the call may have taken "
            "effect, and the node may live",
            **facts(place),
        )

    def _on_unreadable(self, link: Link, frame: Frame, error: DecodeError, *, ran: bool) -> None:
        """End the call that a frame answers which cannot be read. `ran`: it has the result of the
        method, and so the method ran.
        """
        number = first_number(frame.control)
        table = self._routes.tables.get(link)
        call = table.take(number) if table is not None else None
        if call is not None:
            place, kind = call.place, ReplyDecodeError if ran else OutcomeUnknownError
            what = "ran, but its result" if ran else "answered, but its answer"
            text = f"{place.actor}.{place.method} {what} cannot be read here: {error}"
            self._fail(call, kind(text, **facts(place)))

    def _fail(self, call: Waiting, error: CallError) -> None:
        call.fail(error)
        wake(call)


class Facts(TypedDict):
    """The keywords with which a call error is made."""

    actor: str
    method: str
    node: str
    epoch: int
    attempts: int


def facts(place: CallPlace) -> Facts:
    """The facts of one attempt at `place`."""
    return {
        "actor": place.actor,
        "method": place.method,
        "node": place.node,
        "epoch": place.epoch,
        "attempts": 1,
    }


def _after_number(control: bytes) -> bytes:
    """Return the bytes after the number in the control part of an ERROR frame; b"" if the number is
    not short, which is rare, or if the frame is too long to be worth remembering.
    """
    return after_short_number(control, 3) if len(control) < MOST_REPEATED_BYTES else b""


# What arrives of streams that this node reads: items, kept until the reader asks for them.


class StreamCall(PendingCall[trio.lowlevel.Task]):
    """A call that is answered item by item. It is `finished` when no more will come; `items` may
    wait even then.
    """

    __slots__ = ("items", "window")

    def __init__(self, number: int, place: CallPlace) -> None:
        super().__init__(number, place, None)
        self.items: deque[Any] = deque()
        self.window = ReadingWindow()

    def arrive(self, item: object, size: int) -> None:
        """Note that an item of `size` bytes has arrived. Raises ProtocolError if there was no
        credit for it.
        """
        self.window.arrive(size)
        self.items.append(item)
        if self.waiter is not None:
            wake(self)


class StreamItemHandler:
    """Takes the items that other nodes send."""

    def __init__(self, codec: Codec, routes: Routes) -> None:
        self._codec = codec
        self._routes = routes

    def on_item(self, link: Link, frame: Frame) -> None:
        """Handle an ITEM frame: `[number, value]`. Raises ProtocolError."""
        table = self._routes.tables.get(link)
        if table is None:
            return
        try:
            number, item, *_ = answer_items(self._codec.decode(frame.control, frame.segments), 2)
        except DecodeError as error:
            number, item = first_number(frame.control), error
        call = table.pending.get(number)
        if call is None:
            # Late: this stream has no reader any more, and its producer is about to learn that.
            return
        if not isinstance(call, StreamCall):
            raise ProtocolError(f"an item for call {number}, which is not a stream")
        if isinstance(item, DecodeError):
            table.take(number)
            link.post(cancel_frame(number))
            place = call.place
            text = f"{place.actor}.{place.method} yielded an item that cannot be read here: {item}"
            call.fail(ReplyDecodeError(text, **facts(place)))
            wake(call)
            return
        call.arrive(item, frame_size(frame))


def frame_size(frame: Frame) -> int:
    """Bytes of an ITEM frame, as both ends count them."""
    return (
        len(frame.control) + sum(map(len, frame.segments)) if frame.segments else len(frame.control)
    )
