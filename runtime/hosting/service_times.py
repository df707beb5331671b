"""Service times: how long the runs of an actor's methods take, and so which calls are worth
queueing for an actor that has more of them than it can answer.

A first-in-first-out queue that is longer than its callers' deadlines allow does only work that
comes too late. So a call with a deadline is refused on arrival when the calls before it take longer
than the time it has, and at its turn when the time left is less than a run takes. Then the queue
holds only calls that can be answered in time ("Handling Overload" in Google's SRE book; gRPC and
CoDel judge by the time spent waiting, too).

No I/O and no clock. Each method has an estimate of its own, for a method that takes minutes says
nothing of the short ones that wait. A refusal must be right, and a call that is accepted wrongly is
still dropped at its turn: so the estimate is the smaller of an exponentially weighted mean and the
median of the last three runs, and one slow run, such as a first one that imports a library, refuses
nothing. Only calls with deadlines are measured, for only they use it; a call of a method that was
never measured counts as 0 seconds. It cannot lock an actor out: a call that finds an empty queue is
always accepted, and corrects the estimate.
"""

from __future__ import annotations

from collections.abc import Iterable

WEIGHT = 0.2
"""Weight of the latest run in the mean."""

SHARE = 0.8
"""The share of a call's remaining time that waiting and running may take by the estimates. The rest
is for the answer's way back, and for errors of the estimates.
"""

SLOW_SECONDS = 0.001
"""Seconds. After a longer run, its answer should leave before the next run begins."""


class ServiceTimeEstimate:
    """How long the runs of one method of an actor take, in seconds; 0 before its second run."""

    __slots__ = ("_before", "_last", "mean", "seconds", "waiting")

    def __init__(self) -> None:
        self.mean = self.seconds = self._last = self._before = 0.0
        self.waiting = 0
        """How many calls of the method wait."""

    def on_ran(self, seconds: float) -> None:
        """Add the duration of one run to the estimate."""
        mean = self.mean
        self.mean = mean = seconds if mean == 0 else mean + WEIGHT * (seconds - mean)
        last, before = self._last, self._before
        low, high = (last, before) if last < before else (before, last)
        # After one run the median is 0, and after two it is the smaller: those that are missing
        # are 0. Without `min` and `max`, which take longer than all the rest, at each timed run.
        median = low if seconds < low else high if seconds > high else seconds
        self.seconds = mean if mean < median else median
        self._before, self._last = last, seconds

    @property
    def is_slow(self) -> bool:
        """True if runs take longer than `SLOW_SECONDS`."""
        return self.mean > SLOW_SECONDS

    def too_late_now(self, waiting: int, left: float) -> bool:
        """True if a call whose turn has come with `left` seconds is not worth running, while
        `waiting` others may be.
        """
        return left <= 0 or (waiting > 0 and self.seconds > left)


class ServiceTimes:
    """The estimates for the methods of one actor that have been measured. There are no more than
    its class has methods.
    """

    __slots__ = ("_by_method",)

    def __init__(self) -> None:
        self._by_method: dict[str, ServiceTimeEstimate] = {}

    def of(self, method: str) -> ServiceTimeEstimate | None:
        """The estimate for a method; None if it has not been measured."""
        return self._by_method.get(method)

    def add(self, method: str) -> ServiceTimeEstimate:
        """Return the estimate for a method that is measured for the first time."""
        assert method not in self._by_method, f"{method} has an estimate"
        estimate = self._by_method[method] = ServiceTimeEstimate()
        return estimate

    def on_queued(self, method: str) -> ServiceTimeEstimate | None:
        """Note that a call of a method waits. Returns what counts it until it waits no more, which
        is for the code that takes it to say; None if the method has not been measured.
        """
        estimate = self._by_method.get(method)
        if estimate is not None:
            estimate.waiting += 1
        return estimate

    def until_done(self, method: str, running: str | None) -> float:
        """The seconds that a call of `method` that comes now takes, with those before it, at least.
        `running`: the method that runs now.
        """
        own = self._by_method.get(method)
        seconds = 0.0 if own is None else own.seconds
        if running is not None:
            current = self._by_method.get(running)
            # Half of what runs now is still to be done, on average.
            seconds += 0.0 if current is None else current.seconds / 2
        for estimate in self._by_method.values():
            seconds += estimate.waiting * estimate.seconds
        return seconds

    def check_invariants(self, waiting: Iterable[ServiceTimeEstimate | None]) -> None:
        """Assert that the counts are right. `waiting`: what counts each call that waits."""
        found = list(waiting)
        for estimate in self._by_method.values():
            assert estimate.waiting == sum(one is estimate for one in found), (
                "an estimate counts the calls of its method that wait"
            )
