"""The pause of a pool between attempts to start members. No I/O."""

from __future__ import annotations

import math

import attrs

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
"""Seconds between attempts to start members, after starts that failed."""


@attrs.define
class StartPause:
    """The pause between attempts to start members, or keepers, after starts that failed."""

    seconds: float = 0.0
    until: float = -math.inf

    def is_over(self, now: float) -> bool:
        """True if another attempt may begin."""
        return now >= self.until

    def on_failed(self, now: float) -> bool:
        """A start has failed: wait longer each time. Returns False if this was known already:
        starts that were begun together and fail together are one failure.
        """
        if not self.is_over(now):
            return False
        self.seconds = min(LONGEST_PAUSE, max(FIRST_PAUSE, 2 * self.seconds))
        self.until = now + self.seconds
        return True

    def end(self) -> None:
        """A start has succeeded."""
        self.seconds = 0.0
