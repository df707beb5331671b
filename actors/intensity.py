"""Restart intensity: how often children may be restarted before their supervisor gives up. OTP's words and defaults."""

from __future__ import annotations

import math
from collections import deque

from actors.retry import check_number, check_whole_number


class RestartIntensity:
    """More than `intensity` restarts within `period` seconds are too many. The window is over the times of the restarts.

    Raises TypeError or ValueError for what makes no sense.
    """

    def __init__(self, intensity: int = 1, period: float = 5.0) -> None:
        check_whole_number("intensity", intensity)
        if period != math.inf:
            check_number("period", period, above=True)
        self.intensity = intensity
        self.period = period
        self._times: deque[float] = deque()

    def allows(self, now: float) -> bool:
        """Count a restart; False if it is one too many."""
        self._times.append(now)
        while self._times[0] + self.period < now:
            self._times.popleft()
        return len(self._times) <= self.intensity

    def recent(self, now: float) -> int:
        """Restarts that count at the moment. Looking changes nothing: a restart that happened before may be counted after it."""
        return sum(time + self.period >= now for time in self._times)

    def exceeded(self, child: str, last: object) -> str:
        """What to say when it was one too many: the last was of `child`, for the reason `last`."""
        return f"more than {self.intensity} restarts within {self.period:g} s, the last of child {child!r}: {last}"
