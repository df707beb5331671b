"""Actors that nodes of two versions of Python start and call on each other."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from actors import Actor, method


class Speaker(Actor):
    """Does a little of everything that travels between nodes."""

    @method
    async def version(self) -> tuple[int, int]:
        """That of the Python that runs this."""
        return sys.version_info[:2]

    @method
    async def echo(self, value: Any) -> Any:
        """The value, decoded and encoded here."""
        return value

    @method
    async def fail(self) -> None:
        """Raises a group of exceptions, one of them with a note."""
        error = ValueError("with a note")
        error.add_note("written where it was raised")
        raise ExceptionGroup("two", [error, OSError(2, "no such file")])

    @method
    async def count(self, number: int) -> AsyncIterator[int]:
        """So many numbers."""
        for each in range(number):
            yield each

    @method
    async def ask(self, other: Speaker) -> tuple[int, int]:
        """The version of the Python that runs the other."""
        return await other.version()


VALUES: tuple[Any, ...] = (
    {"text": "é", "bytes": b"\x00\xff", "number": 1 << 70, "half": 0.5, "none": None},
    [Decimal("1.50"), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), {1, 2}, (1, (2, 3))],
    bytes(range(256)) * 4096,
)
