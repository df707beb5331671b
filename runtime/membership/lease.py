"""What a node may believe of its own lease, by its own clock.

The store ends a lease some time after its time to live has passed since the last renewal that reached it, never before. A renewal was asked
for before it reached the store, so counting from the asking is on the safe side: until `ttl` after it nobody else can have been given what
the lease holds. A node stops a third of that earlier (Kubernetes' leader election leaves the same kind of gap between "renew deadline" and
"lease duration"). No I/O; the clock is the node's monotonic one.
"""

from __future__ import annotations

HELD_SHARE = 2 / 3
"""Of the time to live, that a node relies on its lease without hearing of it."""


class LeaseClock:
    """One lease of `ttl` seconds, asked for at `asked`."""

    __slots__ = ("_asked", "_ttl")

    def __init__(self, ttl: float, asked: float) -> None:
        self._ttl = ttl
        self._asked = asked

    def renewed(self, asked: float) -> None:
        """A renewal asked for at `asked` was granted."""
        self._asked = max(self._asked, asked)

    @property
    def asked(self) -> float:
        """When the last renewal that was granted was asked for."""
        return self._asked

    @property
    def doubtful_at(self) -> float:
        """From when on the lease is not relied upon, unless it is renewed before."""
        return self._asked + HELD_SHARE * self._ttl

    def is_held(self, now: float) -> bool:
        """True while it is relied upon."""
        return now < self.doubtful_at
