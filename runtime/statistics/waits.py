"""Seconds that were spent waiting, those of waits that still go on included."""

from __future__ import annotations


class WaitedSeconds:
    """The sum of all waits. What it costs does not depend on how many there are: a wait that began
    counts as its beginning taken away, and the present time is added when the sum is read.
    """

    __slots__ = ("_sum", "waiting")

    def __init__(self) -> None:
        self._sum = 0.0
        self.waiting = 0
        """Waits that go on."""

    def begin(self, now: float) -> None:
        """A wait begins at `now`, in seconds."""
        self._sum -= now
        self.waiting += 1

    def end(self, now: float) -> None:
        """One of them ends."""
        assert self.waiting > 0, "each wait ends once"
        self._sum += now
        self.waiting -= 1

    def seconds(self, now: float) -> float:
        """The sum of all waits so far."""
        # The clock's numbers may be large: what is lost in rounding must not read as a step back.
        return max(0.0, self._sum + self.waiting * now)
