"""Packing: values into what is kept and travels, and back."""

from __future__ import annotations

import attrs

from actors.errors import ProtocolError
from runtime.references.table import ReferenceTable
from runtime.references.values import Kept, Parcel, WithReferences
from runtime.wire.codec import Codec
from runtime.wire.frames import Attachment, Buffer, Outgoing

PARCEL_TAG = 64_102


class Packing:
    """The packing of one node. `plain` and `parcel` are the codec's extension for values that are kept."""

    def __init__(self, table: ReferenceTable) -> None:
        self._table = table
        self.codec: Codec
        """Of the node; it knows this as an extension, so it comes later."""

    def pack(self, value: object, path: str) -> Kept:
        """The value as it is now, whatever becomes of it. Raises EncodeError, with the way to what cannot be sent."""
        segments: list[Buffer] = []
        self._table.wrote_any = False
        control = self.codec.encode(value, segments, path)
        if self._table.wrote_any:
            return WithReferences(self.codec.copy(value, path), len(control) + sum(map(len, segments)))
        return Parcel(control, tuple(segment if isinstance(segment, bytes) else bytes(segment) for segment in segments))

    def unpack(self, kept: Kept) -> object:
        """A value of its own for whoever asked; its arrays are read-only."""
        if isinstance(kept, Parcel):
            return self.codec.decode_shared(kept.control, kept.segments)
        assert isinstance(kept, WithReferences)
        return self.codec.copy(kept.value)

    def received(self, parcel: Parcel) -> Parcel:
        """The same, with the references in it. Raises DecodeError, ProtocolError."""
        before, self._table.arrivals = self._table.arrivals, []
        try:
            self.codec.decode_shared(parcel.control, parcel.segments)
            references = self._table.arrivals
        finally:
            self._table.arrivals = before
        return attrs.evolve(parcel, references=tuple(references)) if references else parcel

    def plain(self, kept: Kept, segments: list[Buffer]) -> object:
        """See `Extension.to_plain`."""
        if isinstance(kept, Parcel):
            return [kept.control, list(kept.segments)]
        assert isinstance(kept, WithReferences)
        inner: list[Buffer] = Outgoing(segments.peer) if type(segments) is Outgoing else []
        control = self.codec.encode(kept.value, inner)
        if type(segments) is Outgoing and inner and isinstance(inner[-1], Attachment):
            segments.attach(inner.pop())
        return [control, list(inner)]

    def parcel(self, plain: object) -> Parcel:
        """See `Extension.from_plain`."""
        if not isinstance(plain, list) or len(plain) != 2 or type(plain[0]) is not bytes or not isinstance(plain[1], list):
            raise ProtocolError("a kept value is its control part and a list of segments")
        if not all(type(segment) is bytes for segment in plain[1]):
            raise ProtocolError("the segments of a kept value are bytes")
        return Parcel(plain[0], tuple(plain[1]))
