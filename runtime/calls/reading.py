"""What arrives of streams that this node reads: items, kept until the reader asks for them."""

from __future__ import annotations

from collections import deque
from typing import Any

import trio

from actors.errors import DecodeError, OutcomeUnknownError, ProtocolError
from runtime.calls.answers import facts
from runtime.calls.credit import ReadingWindow
from runtime.calls.deadlines import wake
from runtime.calls.failures import Place
from runtime.calls.format import answer_items, array_head
from runtime.calls.outgoing import PendingCall
from runtime.calls.routes import Routes
from runtime.links.link import Link
from runtime.wire.codec import Codec
from runtime.wire.frames import Frame, Kind, encode_frame


class StreamCall(PendingCall[trio.lowlevel.Task]):
    """A call that is answered item by item. It is `finished` when no more will come; `items` may wait even then."""

    __slots__ = ("items", "window")

    def __init__(self, number: int, place: Place) -> None:
        super().__init__(number, place, None)
        self.items: deque[Any] = deque()
        self.window = ReadingWindow()

    def arrive(self, item: object, size: int) -> None:
        """An item of `size` bytes is here. Raises ProtocolError if there was no credit for it."""
        self.window.arrive(size)
        self.items.append(item)
        if self.waiter is not None:
            wake(self)


class ArrivingItems:
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
            number, item = self._codec.peek_number(frame.control), error
        call = table.pending.get(number)
        if call is None:
            # Late: nobody reads this stream any more, and its producer is being told so.
            return
        if not isinstance(call, StreamCall):
            raise ProtocolError(f"an item for call {number}, which is no stream")
        if isinstance(item, DecodeError):
            table.take(number)
            link.post(encode_frame(Kind.CANCEL, array_head(1, number)))
            place = call.place
            text = f"{place.actor}.{place.method} yielded an item that cannot be read here: {item}"
            call.fail(OutcomeUnknownError(text, **facts(place)))
            wake(call)
            return
        call.arrive(item, frame_size(frame))


def frame_size(frame: Frame) -> int:
    """Bytes of an ITEM frame, as both ends count them."""
    return len(frame.control) + sum(map(len, frame.segments)) if frame.segments else len(frame.control)
