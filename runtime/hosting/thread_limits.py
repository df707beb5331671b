"""Limits on threads that are not exhausted by those that wait for a further thread.

A plain method may call another plain method, and keeps its thread until that one has ended. If both
counted towards one limit, methods could hold all threads and each wait for one more. So a limit
holds for each place in a call chain: what has a thread waits only for threads of later places, here
and on other nodes, and what is last always goes on.
"""

from __future__ import annotations

from typing import NamedTuple

import trio


class ChainPlace(NamedTuple):
    """A place in a call chain: later ones are greater."""

    waiting: int
    """Methods and starts that wait for this one, each for the next. As many as a chain keeps, at
    most: see `runtime.hosting.chains.LONGEST`.
    """
    around: int
    """Threads in which this very method waits for itself: a plain method may run another one as a
    function of its object.
    """


FIRST = ChainPlace(0, 0)


class ThreadLimits:
    """Threads that may be used at once, `limit` for each place in a call chain. Raises ValueError
    for a limit that leaves none.
    """

    __slots__ = ("_first", "_later", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._first = trio.CapacityLimiter(limit)
        # Most calls are made by programs, and are first. As many others as chains are long.
        self._later: dict[ChainPlace, trio.CapacityLimiter] = {}

    @property
    def used(self) -> int:
        """Threads in use, of all places."""
        return self._first.borrowed_tokens + sum(
            limiter.borrowed_tokens for limiter in self._later.values()
        )

    def at(self, place: ChainPlace) -> trio.CapacityLimiter:
        """Return the limiter of a place."""
        if place == FIRST:
            return self._first
        limiter = self._later.get(place)
        if limiter is None:
            limiter = self._later[place] = trio.CapacityLimiter(self.limit)
        return limiter
