"""Handoff: decides whether the loop of a door waits for the next request of the thread that it has
just answered. A machine without I/O or clock.

A thread that makes one call after the other is woken by the outcome of each, and wakes the loop by
its next request. Between the two the loop would go to sleep; to wake it takes a system call, and a
core that has to leave its idle state. Where the next request comes within some microseconds, the
loop does better to wait for it in a lock, in the middle of its pass: the two threads then hand the
interpreter to each other, and nothing else has to be woken.

The loop runs nothing else meanwhile, so a wait is short, and is left out as soon as it often fails.
"""

from __future__ import annotations

SHORT_GAP = 200e-6
"""Seconds from an outcome to the next request: with longer ones there is nothing to gain."""

STREAK = 16
"""Short gaps, one after the other, before the loop waits for the first time."""

LEAST_SECONDS = 50e-6
MOST_SECONDS = SHORT_GAP
"""Bounds of one wait."""

CREDIT = 40
MISS = 4
"""A wait that ends with a request earns 1 up to `CREDIT`, one that does not costs `MISS`: most of
them must succeed.
"""


class Handoff:
    """The state of one portal. Call `on_ended` when the only request that was under way has ended,
    and `on_request` when the next one has come. Off at first.
    """

    __slots__ = ("_credit", "_ended", "_gap", "_streak", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        """How long to wait for the next request; 0.0 while it is off."""
        self._ended: float | None = None
        self._gap = 0.0
        self._streak = 0
        self._credit = 0

    def is_on(self) -> bool:
        """True while one thread makes one call after the other, and nothing else is under way."""
        return self.seconds > 0.0

    def on_ended(self, now: float) -> None:
        """The outcome of the only request goes to its thread."""
        self._ended = now

    def on_request(self, now: float) -> None:
        """A request has come."""
        if self._ended is None:
            # It comes while another request is under way: the threads do not wait for each other.
            self._streak = 0
            self.seconds = 0.0
            return
        gap, self._ended = now - self._ended, None
        if gap > SHORT_GAP:
            self._streak = 0
            return
        self._gap += (gap - self._gap) / 8
        if self.seconds:
            if self._credit < CREDIT:
                self._credit += 1
            self._set()
            return
        self._streak += 1
        if self._streak >= STREAK:
            self._credit = CREDIT
            self._set()

    def on_missed(self) -> None:
        """Note that no request has come within `seconds`."""
        self._credit -= MISS
        if self._credit < 0:
            self.seconds = 0.0
            self._streak = 0

    def _set(self) -> None:
        # Four times the mean gap: most requests come within it, and the bounds hold where the mean
        # was learnt from few.
        self.seconds = min(MOST_SECONDS, max(LEAST_SECONDS, 4 * self._gap))
        assert 0 <= self._credit <= CREDIT
