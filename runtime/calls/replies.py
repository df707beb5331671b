"""Replies: outcomes of invocations as the frames that answer.

Nothing here raises but an interrupt of the process. When an outcome is encoded, its call is off the
table of those that wait for an answer: it would wait for ever, and who had the outcome encoded is
the task of a worker, which ends its node.
"""

from __future__ import annotations

from actors.errors import (
    AnswerDroppedError,
    CallError,
    DecodeError,
    EncodeError,
    OutcomeUnknownError,
    ReplyDecodeError,
    ReplyEncodeError,
)
from runtime.calls.error_codec import Plain, describe, raised_by_method, told_plainly
from runtime.calls.plain_errors import PlainErrorEncoder
from runtime.calls.protocol import error_frame, own_copies, reply_frame
from runtime.hosting.cell import Invocation
from runtime.links.link import Link
from runtime.references.values import StoredValue
from runtime.tracebacks import TracebackWriter
from runtime.user_errors import is_interrupt, summary_of, text_of
from runtime.wire.codec import Codec
from runtime.wire.frames import Buffer, Outgoing
from runtime.wire.plain_writer import ALIKE_FOR_ALL

SMALL_BYTES = 1024
"""Answers up to this size are not looked at one by one: their number is bounded by
`BACKLOG_FRAMES`.
"""

Reply = tuple[bytes, tuple[Buffer, ...]]
"""The head of a frame and its segments, as a link takes them."""


class ReplyEncoder:
    """Encodes replies for a link.

    If a peer leaves too many bytes unread, its further calls are refused (`Outbound.takes_calls`).
    At twice as many, the results of calls that were accepted before are dropped, and their replies
    report that.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._tracebacks = TracebackWriter()
        self._plain_errors = PlainErrorEncoder(self._tracebacks)

    def of_value(
        self, number: int, invocation: Invocation, value: object, link: Link, *, copied: bool = True
    ) -> Reply:
        """Encode the `value` that a method has returned; if it cannot be sent, an error that says
        why. `copied`: no code will change the segments; otherwise other tasks may.
        """
        try:
            segments: list[Buffer] = (
                [] if type(value) in ALIKE_FOR_ALL else Outgoing(link.peer.identity)
            )
            encoded = self._codec.encode(value, segments, "result")
            if not segments:
                if len(encoded) > SMALL_BYTES and link.backlog > 2 * link.most_backlog:
                    return self._dropped(number, link, invocation.full_name)
                return reply_frame(number, encoded, ()), ()
            if link.backlog > 2 * link.most_backlog:
                return self._dropped(number, link, invocation.full_name)
            # What is kept here is never changed.
            unchanged = not copied or issubclass(type(value), StoredValue)
            return (
                reply_frame(number, encoded, segments),
                tuple(segments) if unchanged else own_copies(segments),
            )
        except BaseException as error:  # noqa: ASYNC103  no checkpoint
            refused = not_sent(f"{invocation.full_name} ran, but its result", error)
            return self.of_error(number, link, refused)  # noqa: ASYNC104

    def of_error(self, number: int, link: Link, error: CallError) -> Reply:
        """The runtime ended the call."""
        return self._error(number, link, *describe(error, self._codec.size_of))

    def of_raised(self, number: int, link: Link, error: BaseException) -> Reply:
        """The method raised."""
        try:
            encoded = self._plain_errors.encoded(error)
            small = encoded is not None and len(encoded) <= SMALL_BYTES
            if not small and link.backlog > 2 * link.most_backlog:
                return self._dropped(number, link, "a method that raised")
            if encoded is not None:
                return error_frame(number, encoded), ()
            described = raised_by_method(error, self._codec.size_of, self._tracebacks.text_of)
            return self._error(number, link, *described)
        except BaseException as failure:  # noqa: ASYNC103  no checkpoint
            refused = not_sent("the method raised, but its error", failure)
            return self.of_error(number, link, refused)  # noqa: ASYNC104

    def _dropped(self, number: int, link: Link, what: str) -> Reply:
        text = (
            f"{what} ran, and its answer was dropped: node {link.peer.name} leaves "
            f"{link.backlog} bytes of answers unread"
        )
        return self.of_error(number, link, AnswerDroppedError(text))

    def _error(self, number: int, link: Link, code: str, plain: Plain) -> Reply:
        segments: list[Buffer] = Outgoing(link.peer.identity)
        try:
            encoded = self._codec.encode(code, segments) + self._codec.encode(plain, segments)
            return error_frame(number, encoded, segments), own_copies(segments)
        except BaseException as error:  # noqa: ASYNC103  no checkpoint
            if is_interrupt(error):
                raise
            # Each part could be sent when it was looked at. Whatever has changed since then, the
            # call ends.
            segments = Outgoing(link.peer.identity)
            encoded = self._codec.encode(code, segments)
            encoded += self._codec.encode(told_plainly(plain), segments)
            return error_frame(number, encoded, segments), own_copies(segments)  # noqa: ASYNC104


def not_sent(what: str, error: BaseException) -> OutcomeUnknownError:
    """Return the error that ends a call whose outcome cannot be sent, or not be copied for a caller
    on this node, because that has raised `error`. `what`: what ran, and its outcome. Raises `error`
    again if it is an interrupt of the process.
    """
    if is_interrupt(error):
        raise error
    if issubclass(type(error), DecodeError):
        return ReplyDecodeError(f"{what} cannot be read here: {text_of(error)}")
    refused = issubclass(type(error), EncodeError)
    why = text_of(error) if refused else f"looking at it raised {summary_of(error)}"
    return ReplyEncodeError(f"{what} cannot be sent: {why}")
