"""Deadlines of what a supervisor does with many children at the same time: the more there are, the
longer each may take.

A node that starts or stops thousands of children needs time for each of them before the last, and
often the first, is done. That time is not the child's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

EACH = 0.01
"""Seconds more for each child that is started or stopped at the same time. The death of a node ends
the wait at once, however long this is.
"""


class SharedDeadlines:
    """The deadlines of the starts, or of the stops, of one supervisor's children. `margin`: seconds
    for each of them beyond its own time.
    """

    def __init__(self, margin: float = 0.0) -> None:
        self._margin = margin
        self._under_way: dict[trio.CancelScope, None] = {}
        self._room = 1
        """The number of children for which the running ones have time: a power of two, so that
        their deadlines are seldom moved.
        """

    @contextmanager
    def given(self, seconds: float) -> Iterator[trio.CancelScope]:
        """Cancel the block when the time of a child that may take `seconds` is over."""
        before = self._room
        while len(self._under_way) >= self._room:
            self._room *= 2
        if self._room > before:
            # All of them: the node may answer in any order.
            for each in self._under_way:
                each.deadline += EACH * (self._room - before)
        # One that is alone has its own time, and no more.
        extra = self._margin + EACH * (self._room - 1)
        with trio.CancelScope(deadline=trio.current_time() + seconds + extra) as scope:
            self._under_way[scope] = None
            assert len(self._under_way) <= self._room
            try:
                yield scope
            finally:
                del self._under_way[scope]
                if not self._under_way:
                    self._room = 1
