"""Which values stay in memory, and which are written to disk when there is too little of it. No I/O, no clock."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

WORTH_A_FILE: Final = 16 * 1024
"""Bytes. Smaller values stay in memory: a descriptor and a file's pages would cost more than they save."""


class MemoryBudget(Generic[K]):
    """Values that may take `limit` bytes of memory together; those of fewer than `worth_a_file` bytes always stay."""

    def __init__(self, limit: int, worth_a_file: int = WORTH_A_FILE) -> None:
        self.limit = limit
        self._worth_a_file = worth_a_file
        self._small: dict[K, int] = {}
        """Those that stay."""
        self._large: OrderedDict[K, int] = OrderedDict()
        """Least recently used first."""
        self._in_memory = 0

    @property
    def in_memory(self) -> int:
        """Bytes of all values that were added and not removed."""
        return self._in_memory

    def add(self, key: K, size: int) -> None:
        """A value is in memory, and is used now. Raises `ValueError` for a key that is there, or a size below 0."""
        if key in self._small or key in self._large or size < 0:
            raise ValueError(f"value {key!r} of {size} bytes cannot be added: it is there already, or has no size")
        (self._large if size >= self._worth_a_file else self._small)[key] = size
        self._in_memory += size

    def used(self, key: K) -> None:
        """A value is used now. One that is not in memory any more changes nothing."""
        if key in self._large:
            self._large.move_to_end(key)

    def pin(self, key: K) -> None:
        """A value must stay in memory from now on: it is read there by others."""
        size = self._large.pop(key, None)
        if size is not None:
            self._small[key] = size

    def remove(self, key: K) -> None:
        """A value is not in memory any more: it is on disk, or nobody holds it. One that is not there changes nothing."""
        size = self._small.pop(key, None)
        if size is None:
            size = self._large.pop(key, 0)
        self._in_memory -= size

    def victims(self) -> list[K]:
        """Which values to write to disk so that the others fit, least recently used first; all that can be if they do not fit even so.

        They count until they are removed, so ask again only when these have been.
        """
        found: list[K] = []
        surplus = self._in_memory - self.limit
        for key, size in self._large.items():
            if surplus <= 0:
                break
            found.append(key)
            surplus -= size
        return found
