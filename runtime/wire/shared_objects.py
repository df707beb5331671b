"""Objects that a value holds many times, while it is written.

25 lists, each of which holds the next one twice, are met 2**25 times by a walk, and are 67
megabytes in CBOR: the event loop would stand still for minutes. So in the walk over a large value
each object is written once for each depth, and what was written for it is used again. Before the
whole is encoded, its size is estimated, in time that is linear in its different objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from types import NoneType
from typing import Any, Final, Protocol, TypeVar, cast

from cbor2 import CBORTag

from runtime.wire.frames import Buffer
from runtime.wire.standard_types import UnsendableError
from runtime.wire.tags import OWN_TAGS

W = TypeVar("W", bound="ValueWalk")

WORTH_KEEPING = 32
"""Objects in an object, roughly, from which it is remembered. To write a smaller one again costs
less, and most values are of many small ones.
"""

MOST_REPEATS = 256 * 1024
"""Containers that are met again and must be written anew, because they hold a reference or a
segment.
"""

MOST_COPIES = 2 * 1024 * 1024
"""Containers of a value that are copies of others. Encoding each takes about half a microsecond,
and decoding it more, and memory: gigabytes where 67 megabytes of CBOR arrive.
"""

_NUMBERS = frozenset({NoneType, bool, int, float})
"""Exact types of a size that does not matter."""

_NOT_MET: Final = object()
_NEVER_ALIKE: Final = object()
"""Instead of what was written for an object: nothing yet, or what may be used only once."""

Weight = tuple[int, int]
"""The least number of bytes in CBOR, and that of containers and tags."""


class ValueWalk(Protocol):
    """A walk over one value: how many objects it may still meet until it counts as large, which is
    below 0 then, and the buffers that travel beside the value.
    """

    left: int
    segments: list[Buffer]


class SharedObjects:
    """What was written for the objects of one value, by their ids and depths."""

    def __init__(self) -> None:
        self._written: dict[tuple[int, int], object] = {}
        self._kept: list[object] = []
        """The objects, so that no other gets the id of one."""
        self._reused = False
        self._repeats = 0
        self._extensions = 0

    def on_extension(self) -> None:
        """Note that an extension has written an object for a message to a peer: a reference there
        is another fork each time.
        """
        self._extensions += 1

    def write(
        self,
        writer: W,
        step: Callable[[W, Any, int], object],
        value: object,
        depth: int,
    ) -> object:
        """Return what `step` writes for an object, or has written for it at this depth. Raises
        UnsendableError.
        """
        # By its depth as well: at a deeper place, it may nest too deep.
        place = id(value), depth
        found = self._written.get(place, _NOT_MET)
        if found is not _NOT_MET and found is not _NEVER_ALIKE:
            self._reused = True
            return found
        if found is _NEVER_ALIKE:
            self._repeats += 1
            if self._repeats > MOST_REPEATS:
                raise UnsendableError(
                    f"is met again after {MOST_REPEATS} objects that were met before, so that it "
                    "would arrive as many copies; send each object once, and indices of them"
                )
        left, count, extensions = writer.left, len(writer.segments), self._extensions
        written = step(writer, value, depth)
        if left - writer.left < WORTH_KEEPING:
            return written
        # A segment is used once, and so is a reference. The object of an extension itself is no
        # container, so it costs no more than its place in one.
        if count == len(writer.segments) and extensions == self._extensions:
            self._written[place] = written
            self._kept.append(value)
        elif found is _NOT_MET and not (type(written) is CBORTag and written.tag not in OWN_TAGS):
            self._written[place] = _NEVER_ALIKE
            self._kept.append(value)
        return written

    def weight_of(self, plain: object) -> tuple[int, int] | None:
        """Return the bytes that the whole value takes at least, and how many of its containers are
        copies of others; None if no object was used again.
        """
        if not self._reused:
            return None
        known: dict[int, Weight] = {}
        size, containers = _least_weight(plain, known)
        return size, containers - len(known)


def _least_weight(plain: object, known: dict[int, Weight]) -> Weight:
    """Return the weight that what was written has at least. `known`: the weights of containers by
    their ids, which stay theirs because they live as long as the whole does. The recursion ends
    where the limit on depth does.
    """
    kind = type(plain)
    if kind is not list and kind is not dict and kind is not CBORTag:
        return 1 + (len(cast("str", plain)) if kind is str or kind is bytes else 0), 0
    weight = known.get(id(plain))
    if weight is not None:
        return weight
    items: Iterable[object]
    if kind is CBORTag:
        items = (cast("CBORTag", plain).value,)
    elif kind is dict:
        items = chain.from_iterable(cast("dict[object, object]", plain).items())
    else:
        items = cast("list[object]", plain)
    size = containers = 1
    if kind is list and _NUMBERS.issuperset(map(type, items)):
        size += len(cast("list[object]", plain))
    else:
        for item in items:
            more_size, more_containers = _least_weight(item, known)
            size += more_size
            containers += more_containers
    known[id(plain)] = size, containers
    return size, containers
