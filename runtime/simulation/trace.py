"""One number for a whole run: two runs with the same did the same, byte by byte and at the same times."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from runtime.simulation.report import Happening


class Trace:
    """What happened, and a hash over it and over all that went over the network. `now` gives virtual seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._hash = hashlib.sha256()
        self._pending: list[str] = []
        self.happenings: list[Happening] = []

    def note(self, *numbers: int) -> None:
        """Something too small to be told."""
        self._pending.append(f"{self._now()!r} {numbers!r}\n")
        if len(self._pending) > 500:
            self._flush()

    def tell(self, node: str, kind: str, text: str) -> None:
        """Something that people will want to read; see `Happening`."""
        self.happenings.append(Happening(self._now(), node, kind, text))
        self._pending.append(f"{self._now()!r} {node} {kind} {text}\n")

    def _flush(self) -> None:
        self._hash.update("".join(self._pending).encode())
        self._pending.clear()

    def digest(self) -> str:
        """The hash so far, in hexadecimal."""
        self._flush()
        return self._hash.hexdigest()
