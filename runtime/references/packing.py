"""Packing: values into what is kept and travels, and back."""

from __future__ import annotations

from typing import cast

import attrs

from actors.errors import ProtocolError
from runtime.references.memory.place import Place
from runtime.references.memory.values import Memory, Segment
from runtime.references.table import ReferenceTable
from runtime.references.values import Kept, Lent, Parcel, WithReferences
from runtime.wire.codec import Codec
from runtime.wire.frames import Attachment, Buffer, Outgoing

PARCEL_TAG = 64_102


class Packing:
    """The packing of one node. `plain` and `parcel` are the codec's extension for values that are kept."""

    def __init__(self, table: ReferenceTable, memory: Memory) -> None:
        self._table = table
        self._memory = memory
        self.codec: Codec
        """Of the node; it knows this as an extension, so it comes later."""

    def pack(self, value: object, path: str) -> Parcel | WithReferences:
        """The value as it is now, whatever becomes of it. Raises EncodeError, with the way to what cannot be sent."""
        segments: list[Buffer] = []
        self._table.wrote_any = False
        control = self.codec.encode(value, segments, path)
        if self._table.wrote_any:
            return WithReferences(self.codec.copy(value, path), len(control) + sum(map(len, segments)))
        return Parcel(control, self._memory.hold(segments))

    def unpack(self, kept: Kept) -> object:
        """A value of its own for whoever asked; its arrays are read-only."""
        if isinstance(kept, Parcel):
            return self.codec.decode_shared(kept.control, kept.buffers)
        assert isinstance(kept, WithReferences)
        return self.codec.copy(kept.value)

    def received(self, parcel: Parcel) -> Parcel:
        """The same, with the references in it. Raises DecodeError, ProtocolError."""
        before, self._table.arrivals = self._table.arrivals, []
        try:
            self.codec.decode_shared(parcel.control, parcel.buffers)
            references = self._table.arrivals
        finally:
            self._table.arrivals = before
        return attrs.evolve(parcel, references=tuple(references)) if references else parcel

    def taken_over(self, parcel: Parcel) -> Parcel | WithReferences:
        """What another owner had, as this node keeps it from now on. Raises DecodeError, ProtocolError."""
        received = self.received(parcel)
        if received.references:
            return WithReferences(self.codec.copy(self.codec.decode_shared(received.control, received.buffers)), received.size)
        return Parcel(received.control, self._memory.hold(received.buffers))

    def plain(self, kept: Kept, segments: list[Buffer]) -> object:
        """See `Extension.to_plain`."""
        if isinstance(kept, Parcel):
            return [kept.control, list(kept.buffers)]
        if isinstance(kept, Lent):
            return [kept.control, [one.plain() if isinstance(one, Place) else one for one in kept.segments]]
        assert isinstance(kept, WithReferences)
        inner: list[Buffer] = Outgoing(segments.peer) if type(segments) is Outgoing else []
        control = self.codec.encode(kept.value, inner)
        if type(segments) is Outgoing and inner and isinstance(inner[-1], Attachment):
            segments.attach(inner.pop())
        return [control, list(inner)]

    def parcel(self, plain: object) -> Kept:
        """See `Extension.from_plain`."""
        if not isinstance(plain, list) or len(plain) != 2 or type(plain[0]) is not bytes or not isinstance(plain[1], list):
            raise ProtocolError("a kept value is its control part and a list of segments")
        segments: list[object] = plain[1]
        if all(type(segment) is bytes for segment in segments):
            return Parcel(plain[0], tuple(Segment(cast("bytes", segment)) for segment in segments))
        return Lent(plain[0], tuple(segment if type(segment) is bytes else _place(segment) for segment in segments))


def _place(plain: object) -> Place:
    if not isinstance(plain, list) or [type(item) for item in plain] != [int, int, bytes, int, int]:
        raise ProtocolError("a place is a process, a descriptor, a key, an offset and a size")
    return Place(*plain)
