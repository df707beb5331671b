"""Answers: what comes back for the calls of this node, and what becomes of those whose link ends first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

from actors.errors import (
    CallError,
    ConnectionLostError,
    DecodeError,
    NodeDiedError,
    NodeUnreachableError,
    NotAMemberError,
    OutcomeUnknownError,
)
from runtime.calls.deadlines import Waiting, wake
from runtime.calls.failures import Place, rebuild
from runtime.calls.format import answer_items
from runtime.calls.routes import Routes
from runtime.links.link import Link
from runtime.links.peers import LEFT
from runtime.wire.codec import Codec
from runtime.wire.frames import Frame


class Answers:
    """Takes the frames that answer calls, and finishes the calls they are for."""

    def __init__(self, codec: Codec, routes: Routes, find_class: Callable[[str], type]) -> None:
        self._codec = codec
        self._routes = routes
        self._find_class = find_class

    def on_reply(self, link: Link, frame: Frame) -> None:
        """Handle a REPLY frame: `[number, value]`."""
        try:
            answer = self._codec.decode(frame.control, frame.segments)
        except DecodeError as error:
            # The answer is there and cannot be read here: its call must still end, and we know only its number.
            self._on_unreadable(link, frame, error)
            return
        items = answer_items(answer, 2)
        table = self._routes.tables.get(link)
        call = table.take(items[0]) if table is not None else None
        if call is not None:
            call.value = items[1]
            call.finished = True
            wake(call)

    def on_error(self, link: Link, frame: Frame) -> None:
        """Handle an ERROR frame: `[number, code, description]`."""
        try:
            description = self._codec.decode(frame.control, frame.segments)
        except DecodeError as error:
            self._on_unreadable(link, frame, error)
            return
        number, code, plain, *_ = answer_items(description, 3)
        table = self._routes.tables.get(link)
        call = table.pending.get(number) if table is not None else None
        if table is not None and call is not None:
            # Taken off only once it is understood: otherwise the call has to end with its link.
            outcome = rebuild(code, plain, call.place, self._find_class)
            table.take(number)
            self._fail(call, outcome)

    def link_ended(self, link: Link) -> None:
        """End all calls that waited on `link`."""
        table = self._routes.tables.pop(link, None)
        if table is not None:
            for call in table.end(lambda call: self.lost(link, call)):
                wake(call)

    def lost(self, link: Link, call: Waiting) -> CallError:
        """What to raise for a call whose link has ended before its answer came."""
        place = call.place
        certainly_not = link.certainly_not_received(call.ticket)
        if link.ended == LEFT:
            # It says nothing about the other node that this one has left.
            if certainly_not:
                return NotAMemberError(f"{place.actor}.{place.method} was not called: {link.ended}", **facts(place))
            return ConnectionLostError(
                f"{link.ended} while {place.actor}.{place.method} was under way on node {place.node}; the call may have taken effect",
                **facts(place),
            )
        if certainly_not:
            return NodeUnreachableError(f"{place.actor}.{place.method} was never handed to node {place.node}: {link.ended}", **facts(place))
        if link.peer_ended:
            return NodeDiedError(
                f"node {place.node} ended while {place.actor}.{place.method} was with it: {link.ended}; the call may have taken effect",
                **facts(place),
            )
        return ConnectionLostError(
            f"the link to node {place.node} ended while {place.actor}.{place.method} was with it: {link.ended}; the call may have taken "
            "effect, and the node may live",
            **facts(place),
        )

    def _on_unreadable(self, link: Link, frame: Frame, error: DecodeError) -> None:
        number = self._codec.peek_number(frame.control)
        table = self._routes.tables.get(link)
        call = table.take(number) if table is not None else None
        if call is not None:
            place = call.place
            self._fail(
                call,
                OutcomeUnknownError(f"{place.actor}.{place.method} answered, but its answer cannot be read here: {error}", **facts(place)),
            )

    def _fail(self, call: Waiting, error: CallError) -> None:
        call.fail(error)
        wake(call)


class Facts(TypedDict):
    """What a call error is told of its call."""

    actor: str
    method: str
    node: str
    epoch: int
    attempts: int


def facts(place: Place) -> Facts:
    """The facts of one attempt at `place`."""
    return {"actor": place.actor, "method": place.method, "node": place.node, "epoch": place.epoch, "attempts": 1}
