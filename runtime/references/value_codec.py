"""Encodes values into the form in which they are stored and sent, and decodes them."""

from __future__ import annotations

from typing import cast

import attrs

from actors.errors import DecodeError, EncodeError, ProtocolError
from actors.reference import Reference, ReferencedValue
from runtime.references.memory.values import Memory, Segment
from runtime.references.values import (
    EncodedValue,
    SharedValue,
    StoredValue,
    ValueWithReferences,
)
from runtime.shared_memory.pool import SharedMemoryLocation
from runtime.wire.codec import Codec
from runtime.wire.frames import Attachment, Buffer, Outgoing

STORED_VALUE_TAG = 64_102


class PassedReferences:
    """Records which references the codec of this node has read and written."""

    __slots__ = ("arrivals", "read_any", "wrote_any")

    def __init__(self) -> None:
        self.arrivals: list[Reference[object]] | None = None
        """A list to which references are added as they are read; None if they are not collected."""
        self.read_any = False
        self.wrote_any = False
        """Set when a reference is read from a message or written."""


class ValueCodec:
    """Encodes and decodes values for one node with its `codec`, which records in `passed` the
    references that it reads and writes.
    """

    def __init__(self, codec: Codec, passed: PassedReferences, memory: Memory) -> None:
        self._codec = codec
        self._passed = passed
        self._memory = memory

    def pack(self, value: object, path: str) -> EncodedValue | ValueWithReferences:
        """Encode the value as it is now; later changes of it have no effect. Raises EncodeError,
        with the way to what cannot be sent.
        """
        segments: list[Buffer] = []
        self._passed.wrote_any = False
        control = self._codec.encode(value, segments, path)
        if self._passed.wrote_any:
            return ValueWithReferences(
                self._codec.copy(value, path), len(control) + sum(map(len, segments))
            )
        return EncodedValue(control, self._memory.hold(segments))

    def unpack(self, stored: StoredValue, state: ReferencedValue) -> object:
        """Decode a separate copy for each caller; its arrays are read-only. Raises DecodeError,
        which names the value.
        """
        try:
            if isinstance(stored, EncodedValue):
                return self._codec.decode_shared(stored.control, stored.buffers)
            assert isinstance(stored, ValueWithReferences)
            return self._codec.copy(stored.value)
        except (DecodeError, EncodeError, ProtocolError) as error:
            raise _unreadable(state, error) from None

    def received(self, encoded: EncodedValue, state: ReferencedValue) -> EncodedValue:
        """Decode a value together with the references in it. Raises DecodeError, which names the
        value.
        """
        try:
            return self._received(encoded)
        except (DecodeError, ProtocolError) as error:
            raise _unreadable(state, error) from None

    def _received(self, encoded: EncodedValue) -> EncodedValue:
        before, self._passed.arrivals = self._passed.arrivals, []
        try:
            self._codec.decode_shared(encoded.control, encoded.buffers)
            references = self._passed.arrivals
        finally:
            self._passed.arrivals = before
        return attrs.evolve(encoded, references=tuple(references)) if references else encoded

    def taken_over(self, encoded: EncodedValue) -> EncodedValue | ValueWithReferences:
        """Decode a value that another owner had, in the form in which this node keeps it. Raises
        DecodeError, ProtocolError.
        """
        received = self._received(encoded)
        if received.references:
            return ValueWithReferences(
                self._codec.copy(self._codec.decode_shared(received.control, received.buffers)),
                received.size,
            )
        return EncodedValue(received.control, self._memory.hold(received.buffers))


def _unreadable(state: ReferencedValue, error: Exception) -> DecodeError:
    """The error for a value that is there, and that this process cannot read."""
    return DecodeError(f"{state!r} has a value that cannot be read here: {error}")


# The codec's extension for stored values.


def stored_to_plain(codec: Codec, stored: StoredValue, segments: list[Buffer]) -> object:
    """Encode a stored value as its control part and its segments; `codec` calls this, as one of its
    extensions.
    """
    if isinstance(stored, EncodedValue):
        return [stored.control, list(stored.buffers)]
    if isinstance(stored, SharedValue):
        return [
            stored.control,
            [
                one.plain() if isinstance(one, SharedMemoryLocation) else one
                for one in stored.segments
            ],
        ]
    assert isinstance(stored, ValueWithReferences)
    inner: list[Buffer] = Outgoing(segments.peer) if type(segments) is Outgoing else []
    control = codec.encode(stored.value, inner)
    if type(segments) is Outgoing and inner and isinstance(inner[-1], Attachment):
        segments.attach(inner.pop())
    return [control, list(inner)]


def stored_from_plain(plain: object) -> StoredValue:
    """Decode a stored value. Raises ProtocolError."""
    if (
        not isinstance(plain, list)
        or len(plain) != 2
        or type(plain[0]) is not bytes
        or not isinstance(plain[1], list)
    ):
        raise ProtocolError("malformed kept value: expected control part and list of segments")
    segments: list[object] = plain[1]
    if all(type(segment) is bytes for segment in segments):
        return EncodedValue(
            plain[0], tuple(Segment(cast("bytes", segment)) for segment in segments)
        )
    return SharedValue(
        plain[0],
        tuple(segment if type(segment) is bytes else _place(segment) for segment in segments),
    )


def _place(plain: object) -> SharedMemoryLocation:
    if not isinstance(plain, list) or [type(item) for item in plain] != [int, int, bytes, int, int]:
        raise ProtocolError(
            "malformed place: expected a process, a descriptor, a key, an offset and a size"
        )
    return SharedMemoryLocation(*plain)
