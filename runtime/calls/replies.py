"""Replies: outcomes of jobs as the frames that answer."""

from __future__ import annotations

from collections.abc import Callable

from actors.errors import CallError, EncodeError, ReplyEncodeError
from actors.reference import ReferenceAddress
from runtime.calls.failures import Plain, describe, raised_by_method
from runtime.calls.format import array_head, kept, reply_frame
from runtime.hosting.cell import Job
from runtime.wire.codec import Codec
from runtime.wire.frames import Buffer, Kind, encode_frame

Reply = tuple[bytes, tuple[Buffer, ...]]
"""The head of a frame and its segments, as a link takes them."""


class Replies:
    """Writes replies. `keep(value, holder)` makes a reference to a result that stays here."""

    def __init__(self, codec: Codec, keep: Callable[[object, tuple[str, int]], ReferenceAddress]) -> None:
        self._codec = codec
        self._keep = keep

    def of_value(self, number: int, job: Job, value: object, holder: tuple[str, int]) -> Reply:
        """The method returned `value`. If that cannot be sent, the reply says so."""
        segments: list[Buffer] = []
        try:
            if job.keeps_result:
                # Copied, or the actor's later changes would show through the reference.
                value = self._keep(self._codec.copy(value, "result"), holder)
            encoded = self._codec.encode(value, segments, "result")
            return reply_frame(number, encoded, segments), kept(segments) if segments else ()
        except EncodeError as error:
            name = f"{job.cell.address.name}.{job.definition.name}"
            return self.of_error(number, ReplyEncodeError(f"{name} ran, but its result cannot be sent: {error}"))

    def of_error(self, number: int, error: CallError) -> Reply:
        """The runtime ended the call."""
        return self._error(number, *describe(error, self._codec.encodable))

    def of_raised(self, number: int, error: BaseException) -> Reply:
        """The method raised."""
        return self._error(number, *raised_by_method(error, self._codec.encodable))

    def _error(self, number: int, code: str, plain: Plain) -> Reply:
        segments: list[Buffer] = []
        control = array_head(3, number) + self._codec.encode(code, segments) + self._codec.encode(plain, segments)
        return encode_frame(Kind.ERROR, control, segments), kept(segments)
