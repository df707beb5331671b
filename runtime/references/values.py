"""Values as they are stored and sent: encoded once, and decoded anew for each request."""

from __future__ import annotations

import attrs

from actors.messages import message
from actors.reference import Reference
from runtime.references.memory.spill import Spilled
from runtime.references.memory.values import Segment
from runtime.shared_memory.pool import SharedMemoryLocation
from runtime.wire.frames import Buffer

UNKNOWN = 0
NOT_YET = 1
"""What an owner answers in place of a value: it does not know the value (`UNKNOWN`), or the value
does not exist yet (`NOT_YET`; ask again).
"""


class StoredValue:
    """A value at its owner. All classes but `SharedValue` have a `size` in bytes, approximately."""

    __slots__ = ()


@attrs.frozen(eq=False)
class EncodedValue(StoredValue):
    """An encoded value: its control part and its segments, which never change. `references`: those
    in the value, kept alive with it so that it can be decoded again.
    """

    control: bytes
    segments: tuple[Segment, ...] = ()
    references: tuple[Reference[object], ...] = ()
    size: int = attrs.field(
        init=False, default=attrs.Factory(lambda encoded: _bytes_of(encoded), takes_self=True)
    )

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Bytes of the segments."""
        return tuple(segment.buffer for segment in self.segments)

    @property
    def is_shared(self) -> bool:
        """True if other processes of this host can read at least one segment in place."""
        return any(segment.block is not None for segment in self.segments)


@attrs.frozen(eq=False)
class OnDisk(StoredValue):
    """An encoded value whose segments are in a file."""

    control: bytes
    spilled: Spilled
    size: int


@attrs.frozen(eq=False)
class SharedValue(StoredValue):
    """An encoded value for a process of the same host: its control part, and each segment as bytes
    or as a place in memory.
    """

    control: bytes
    segments: tuple[Buffer | SharedMemoryLocation, ...]

    @property
    def sent(self) -> int:
        """Bytes of the segments that are not read in place."""
        return len(self.control) + sum(
            len(segment)
            for segment in self.segments
            if not isinstance(segment, SharedMemoryLocation)
        )


@attrs.frozen(eq=False)
class ValueWithReferences(StoredValue):
    """A value that contains references. It is encoded anew for each receiver, because its
    references are forks to that receiver.
    """

    value: object
    size: int


@message
@attrs.frozen
class FailedValue:
    """The failure of the producing call, encoded as errors are on the wire, and where it was
    raised. Peers send it, and the node keeps it, so its types are checked.
    """

    code: str = attrs.field(validator=attrs.validators.instance_of(str))
    plain: dict[str, object] = attrs.field(validator=attrs.validators.instance_of(dict))
    actor: str = attrs.field(validator=attrs.validators.instance_of(str))
    method: str = attrs.field(validator=attrs.validators.instance_of(str))
    node: str = attrs.field(validator=attrs.validators.instance_of(str))
    epoch: int = attrs.field(validator=attrs.validators.instance_of(int))


def _bytes_of(encoded: EncodedValue) -> int:
    return len(encoded.control) + sum(len(segment.buffer) for segment in encoded.segments)


SizedValue = EncodedValue | OnDisk | ValueWithReferences
"""A value in the form in which its owner keeps it."""
