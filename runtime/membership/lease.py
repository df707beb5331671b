"""How long a node may rely on its own lease, by its own monotonic clock. No I/O.

The store ends a lease when its time to live has passed since the last renewal that reached it, and
never earlier. The node sent that renewal before it reached the store, so counting from the sending
is safe: until the time to live has passed since then, no other node can have the names of the
lease. A node stops relying on it a third of that time earlier (`Timings.held`).
"""

from __future__ import annotations

from collections.abc import Callable


class LeaseClock:
    """One lease, requested at `asked`, that the node relies on for `held` seconds from then."""

    __slots__ = ("_asked", "_held", "report")

    def __init__(self, held: float, asked: float) -> None:
        self._held = held
        self._asked = asked
        self.report: Callable[[float], None] = lambda asked: None
        """Called with `asked` after each renewal, in the thread that made it."""

    def report_to(self, report: Callable[[float], None]) -> None:
        """Call `report` after each renewal from now on."""
        self.report = report

    def on_renewed(self, asked: float) -> None:
        """Note that a renewal requested at `asked` was granted."""
        # Answers may arrive out of order: the latest request counts.
        self._asked = max(self._asked, asked)
        assert self._asked >= asked, "what was granted is never taken back"
        self.report(self._asked)

    @property
    def asked(self) -> float:
        """When the latest granted renewal was requested."""
        return self._asked

    @property
    def doubtful_at(self) -> float:
        """When the node stops relying on the lease, unless it is renewed before."""
        return self._asked + self._held

    def is_held(self, now: float) -> bool:
        """True while the node relies on the lease."""
        return now < self.doubtful_at
