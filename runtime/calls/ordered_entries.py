"""Ordered entries: what waits in the order of its numbers, and may leave from anywhere.

No I/O and no clock. A sorted list would cost each that leaves a walk over those before it: many
thousands of calls that are cancelled in one moment would block the loop for seconds. So this is a
heap, in which the places of those that have left stay until they are the first, or the most.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, TypeAlias, TypeVar

E = TypeVar("E")

Place: TypeAlias = tuple[int, int]
"""The number of an entry, and how many were added before it: unique, and in order."""

FEWEST_TO_CLEAR = 64
"""Places of entries that have left which are worth a pass over the heap."""


class OrderedEntries(Generic[E]):
    """Entries in the order of their numbers; those with the same number in the order in which they
    were added. An entry that has left is not kept.
    """

    __slots__ = ("_added", "_entries", "_heap")

    def __init__(self) -> None:
        self._entries: dict[Place, E] = {}
        self._heap: list[Place] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[E]:
        """Go over those that are there now, the first first. They may leave meanwhile."""
        return iter([entry for _, entry in sorted(self._entries.items(), key=_place)])

    @property
    def first(self) -> E:
        """The entry with the smallest number. Only while there is one."""
        while self._heap[0] not in self._entries:
            heapq.heappop(self._heap)
        return self._entries[self._heap[0]]

    def add(self, number: int, entry: E) -> Place:
        """Add an entry, and return the place by which it is removed."""
        self._added += 1
        place = (number, self._added)
        self._entries[place] = entry
        heapq.heappush(self._heap, place)
        return place

    def remove(self, place: Place) -> None:
        """Remove an entry that is there."""
        del self._entries[place]
        # Bounded, however long the first stays and however many come and go behind it.
        if len(self._heap) > 2 * len(self._entries) + FEWEST_TO_CLEAR:
            self._heap = sorted(self._entries)

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. For tests and simulations."""
        places = set(self._heap)
        assert len(places) == len(self._heap), "one place each"
        assert self._entries.keys() <= places
        assert len(self._heap) <= 2 * len(self._entries) + FEWEST_TO_CLEAR


def _place(item: tuple[Place, object]) -> Place:
    return item[0]
