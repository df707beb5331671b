"""Values as they are kept and as they travel: encoded once, and decoded anew for everybody who asks."""

from __future__ import annotations

import attrs

from actors.messages import message
from actors.reference import Reference
from runtime.wire.frames import Buffer

UNKNOWN = 0
NOT_YET = 1
"""What an owner answers instead of a value: that it knows nothing of it, and that it is not there yet, so ask again."""


class Kept:
    """A value at its owner. `size` in bytes, about."""

    __slots__ = ()
    size: int


@attrs.frozen(eq=False)
class Parcel(Kept):
    """An encoded value: its control part and its segments, which nobody changes.

    `references`: those in it. Who keeps the parcel keeps them, so that it can be decoded again.
    """

    control: bytes
    segments: tuple[Buffer, ...] = ()
    references: tuple[Reference[object], ...] = ()
    size: int = attrs.field(
        init=False, default=attrs.Factory(lambda self: len(self.control) + sum(map(len, self.segments)), takes_self=True)
    )


@attrs.frozen(eq=False)
class WithReferences(Kept):
    """A value with references in it. It is encoded anew for each receiver: its references are handed on to somebody."""

    value: object
    size: int


@message
@attrs.frozen
class Failure:
    """Why there is no value: the error of the producing call, described as errors are on the wire, and where it was raised."""

    code: str
    plain: dict[str, object]
    actor: str
    method: str
    node: str
    epoch: int


def _bytes_of(parcel: Parcel) -> int:
    return len(parcel.control) + sum(map(len, parcel.segments))
