"""What belongs to the process that made it: handles, references, nodes and clusters."""

from __future__ import annotations

from typing import NoReturn, Self, SupportsIndex


class ProcessBound:
    """An object that works only in its process, through connections that no pickle can hold.

    A copy of it is the object itself, so that data which holds it can be copied. To pickle it
    raises a TypeError that says what to do instead.
    """

    __slots__ = ()

    _elsewhere = "connect to the cluster in the other process"
    """What to do instead of pickling it."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"{self!r} belongs to this process and cannot be pickled; {self._elsewhere}"
        )
