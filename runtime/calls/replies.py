"""Replies: outcomes of jobs as the frames that answer."""

from __future__ import annotations

from actors.errors import CallError, EncodeError, ReplyEncodeError
from runtime.calls.failures import Plain, describe, raised_by_method
from runtime.calls.format import array_head, kept, reply_frame
from runtime.hosting.cell import Job
from runtime.references.values import Kept
from runtime.wire.codec import Codec
from runtime.wire.frames import Buffer, Kind, Outgoing, encode_frame
from runtime.wire.values import SCALARS

Reply = tuple[bytes, tuple[Buffer, ...]]
"""The head of a frame and its segments, as a link takes them."""


class Replies:
    """Writes replies. `peer`: name and incarnation of the node that they go to."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def of_value(self, number: int, job: Job, value: object, peer: tuple[str, int]) -> Reply:
        """The method returned `value`. If that cannot be sent, the reply says so."""
        segments: list[Buffer] = Outgoing(peer) if type(value) not in SCALARS else []
        try:
            encoded = self._codec.encode(value, segments, "result")
            if not segments:
                return reply_frame(number, encoded, ()), ()
            # What is kept here is not changed by anybody.
            return reply_frame(number, encoded, segments), tuple(segments) if isinstance(value, Kept) else kept(segments)
        except EncodeError as error:
            name = f"{job.cell.address.name}.{job.definition.name}"
            return self.of_error(number, peer, ReplyEncodeError(f"{name} ran, but its result cannot be sent: {error}"))

    def of_error(self, number: int, peer: tuple[str, int], error: CallError) -> Reply:
        """The runtime ended the call."""
        return self._error(number, peer, *describe(error, self._codec.encodable))

    def of_raised(self, number: int, peer: tuple[str, int], error: BaseException) -> Reply:
        """The method raised."""
        return self._error(number, peer, *raised_by_method(error, self._codec.encodable))

    def _error(self, number: int, peer: tuple[str, int], code: str, plain: Plain) -> Reply:
        segments: list[Buffer] = Outgoing(peer)
        control = array_head(3, number) + self._codec.encode(code, segments) + self._codec.encode(plain, segments)
        return encode_frame(Kind.ERROR, control, segments), kept(segments)
