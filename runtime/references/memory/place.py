"""Where a value lies: what its owner tells another process of the same host, so that it can read it without a copy."""

from __future__ import annotations

from typing import Final

import attrs

KEY_SIZE: Final = 16
"""Bytes at the start of an arena that say which one it is."""

HEADER_SIZE: Final = 4096
"""Bytes before the first block of an arena: its key, and nothing, so that blocks begin with a page."""


@attrs.frozen
class Place:
    """A stretch of memory of a process: plain data, to be sent.

    `process`: its id. `descriptor`: of the arena, in that process. `key`: what is at the arena's start; both numbers are reused, the key
    never is. `offset` and `size`: in bytes.
    """

    process: int
    descriptor: int
    key: bytes
    offset: int
    size: int

    def plain(self) -> list[object]:
        """Its parts, in the order in which they make one."""
        return [self.process, self.descriptor, self.key, self.offset, self.size]
