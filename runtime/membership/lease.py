"""What a node may believe of its own lease, by its own clock.

The store ends a lease some time after its time to live has passed since the last renewal that
reached it, never before. A renewal was asked for before it reached the store, so counting from the
asking is on the safe side: until the time to live has passed since then, no other node can have
been given what the lease holds. A node stops a third of that earlier (`Timings.held`). No I/O; the
clock is the node's monotonic one.
"""

from __future__ import annotations


class LeaseClock:
    """One lease, asked for at `asked`, and relied upon for `held` seconds from then."""

    __slots__ = ("_asked", "_held")

    def __init__(self, held: float, asked: float) -> None:
        self._held = held
        self._asked = asked

    def on_renewed(self, asked: float) -> None:
        """A renewal asked for at `asked` was granted."""
        # Answers may come in another order than they were asked for: the latest one counts.
        self._asked = max(self._asked, asked)
        assert self._asked >= asked, "what was granted is never taken back"

    @property
    def asked(self) -> float:
        """When the last renewal that was granted was asked for."""
        return self._asked

    @property
    def doubtful_at(self) -> float:
        """From when on the lease is not relied upon, unless it is renewed before."""
        return self._asked + self._held

    def is_held(self, now: float) -> bool:
        """True while it is relied upon."""
        return now < self.doubtful_at
