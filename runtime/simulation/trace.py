"""One number for a whole run: two runs with the same did the same, byte by byte and at the same times."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable

from runtime.simulation.report import Happening

_PACK = struct.Struct("<dqqq").pack


class Trace:
    """What happened, and a hash over it and over all that went over the network. `now` gives virtual seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._hash = hashlib.sha256()
        self._pending = bytearray()
        self.happenings: list[Happening] = []

    def note(self, first: int, second: int, third: int) -> None:
        """Something too small to be told, which happens a hundred times a second: packed, for that is quickest."""
        self._pending += _PACK(self._now(), first, second, third)

    def tell(self, node: str, kind: str, text: str) -> None:
        """Something that people will want to read; see `Happening`."""
        self.happenings.append(Happening(self._now(), node, kind, text))
        self._pending += f"{self._now()!r} {node} {kind} {text}\n".encode()

    def digest(self) -> str:
        """The hash so far, in hexadecimal."""
        self._hash.update(self._pending)
        self._pending.clear()
        return self._hash.hexdigest()
