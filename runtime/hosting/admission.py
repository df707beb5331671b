"""Admission: which calls are worth queueing for an actor that has more of them than it can answer.

A first-in-first-out queue that is longer than its callers' patience does nothing but work that comes too late. So a call with a deadline is
turned away at the door when the calls before it take longer than the time it has, and at its turn when the time left is less than a run
takes. The queue is then as long as can be of use, and no longer ("Handling Overload" in Google's SRE book; gRPC and CoDel judge by the time
spent waiting, too).

No I/O and no clock. The estimate is an exponentially weighted mean of how long runs took, measured of calls with deadlines only: nobody
else asks. It cannot lock an actor out: a call that finds nobody waiting is always let through, and corrects the estimate.
"""

from __future__ import annotations

WEIGHT = 0.2
"""Of the latest run in the estimate."""


SHARE = 0.8
"""Of the time that a call has, that waiting and running may take by the estimate; the rest is for the way back, and for surprises."""

SLOW_SECONDS = 0.001
"""From here on a run is long enough that its answer should leave before the next begins."""


class Pace:
    """How long the runs of one actor take, in seconds; 0 while nothing is known."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0

    def ran(self, seconds: float) -> None:
        """A run took so long."""
        self.seconds = seconds if self.seconds == 0 else self.seconds + WEIGHT * (seconds - self.seconds)

    @property
    def is_slow(self) -> bool:
        """True if runs take long by the measure of an event loop."""
        return self.seconds > SLOW_SECONDS

    def too_late_behind(self, waiting: int, left: float) -> bool:
        """True if a call with `left` seconds would be answered too late behind `waiting` others."""
        # Half of what runs now is still to be done, on average.
        return waiting > 0 and (waiting + 1.5) * self.seconds > SHARE * left

    def too_late_now(self, waiting: int, left: float) -> bool:
        """True if a call whose turn has come with `left` seconds is not worth running, while `waiting` others may be."""
        return left <= 0 or (waiting > 0 and self.seconds > left)
