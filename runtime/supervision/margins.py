"""How long a supervisor waits for the end of children that it stops, beyond the time that each is given to stop in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

STOP_MARGIN = 1.0
"""Seconds for the request and its answer."""

STOP_EACH = 0.01
"""Seconds more for each child stopped at the same time: the node that stops thousands has work with each of them before the last has
ended. What ends with its node is known at once, however long this is.
"""


class Margins:
    """The stops of one supervisor that are under way."""

    def __init__(self) -> None:
        self._under_way: dict[trio.CancelScope, None] = {}
        self._room = 1
        """For so many at once those under way are given time: a power of two, so that it is seldom that all must be told of more."""

    @contextmanager
    def given(self, seconds: float) -> Iterator[trio.CancelScope]:
        """Cancel the block when the time of a child that may take `seconds` is over."""
        before = self._room
        while len(self._under_way) >= self._room:
            self._room *= 2
        if self._room > before:
            # The first to be asked for may be the last to be answered.
            for each in self._under_way:
                each.deadline += STOP_EACH * (self._room - before)
        with trio.CancelScope(deadline=trio.current_time() + seconds + STOP_MARGIN + STOP_EACH * self._room) as scope:
            self._under_way[scope] = None
            try:
                yield scope
            finally:
                del self._under_way[scope]
                if not self._under_way:
                    self._room = 1
