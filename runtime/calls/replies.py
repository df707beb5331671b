"""Replies: outcomes of jobs as the frames that answer."""

from __future__ import annotations

from actors.errors import AnswerDroppedError, CallError, EncodeError, ReplyEncodeError
from runtime.calls.failures import Plain, describe, raised_by_method, told_plainly
from runtime.calls.format import array_head, kept, reply_frame
from runtime.hosting.cell import Job
from runtime.links.link import Link
from runtime.references.values import Kept
from runtime.wire.codec import Codec
from runtime.wire.frames import Buffer, Kind, Outgoing, encode_frame
from runtime.wire.values import SCALARS

SMALL_BYTES = 1024
"""Answers up to this size are not looked at one by one: their number is bounded by `BACKLOG_FRAMES`."""

Reply = tuple[bytes, tuple[Buffer, ...]]
"""The head of a frame and its segments, as a link takes them."""


class Replies:
    """Writes replies. `link`: where they go.

    When a peer has left too much unread its calls are refused (`Outbound.takes_calls`); the answers of those that had been accepted are
    dropped at twice as much, and the replies say so.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def of_value(self, number: int, job: Job, value: object, link: Link) -> Reply:
        """The method returned `value`. If that cannot be sent, the reply says so."""
        segments: list[Buffer] = Outgoing(link.peer.identity) if type(value) not in SCALARS else []
        try:
            encoded = self._codec.encode(value, segments, "result")
            if not segments:
                if len(encoded) > SMALL_BYTES and link.backlog > 2 * link.most_backlog:
                    return self._dropped(number, link, f"{job.cell.address.name}.{job.definition.name}")
                return reply_frame(number, encoded, ()), ()
            if link.backlog > 2 * link.most_backlog:
                return self._dropped(number, link, f"{job.cell.address.name}.{job.definition.name}")
            # What is kept here is not changed by anybody.
            return reply_frame(number, encoded, segments), tuple(segments) if isinstance(value, Kept) else kept(segments)
        except EncodeError as error:
            name = f"{job.cell.address.name}.{job.definition.name}"
            return self.of_error(number, link, ReplyEncodeError(f"{name} ran, but its result cannot be sent: {error}"))

    def of_error(self, number: int, link: Link, error: CallError) -> Reply:
        """The runtime ended the call."""
        return self._error(number, link, *describe(error, self._codec.size_of))

    def of_raised(self, number: int, link: Link, error: BaseException) -> Reply:
        """The method raised."""
        if link.backlog > 2 * link.most_backlog:
            return self._dropped(number, link, "a method that raised")
        return self._error(number, link, *raised_by_method(error, self._codec.size_of))

    def _dropped(self, number: int, link: Link, what: str) -> Reply:
        text = f"{what} ran, and its answer was dropped: node {link.peer.name} leaves {link.backlog} bytes of answers unread"
        return self.of_error(number, link, AnswerDroppedError(text))

    def _error(self, number: int, link: Link, code: str, plain: Plain) -> Reply:
        segments: list[Buffer] = Outgoing(link.peer.identity)
        try:
            control = array_head(3, number) + self._codec.encode(code, segments) + self._codec.encode(plain, segments)
            return encode_frame(Kind.ERROR, control, segments), kept(segments)
        except EncodeError:
            # Each part could be sent when it was looked at. Whatever has changed since, the call ends.
            segments = Outgoing(link.peer.identity)
            control = array_head(3, number) + self._codec.encode(code, segments) + self._codec.encode(told_plainly(plain), segments)
            return encode_frame(Kind.ERROR, control, segments), kept(segments)
