"""Restart intensity, OTP's words and defaults: how often children may be restarted before their supervisor gives up. And how soon."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import attrs

from actors.retry import check_number, check_whole_number
from actors.supervision import PLACEMENT_BACKOFF, ExitReason, RestartBackoff


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


@attrs.define
class RestartDelay:
    """How long the restarts of one child wait, by what has called for them in a row: its own `failures`, and `losses`.

    Losses are deaths of its nodes and starts for which there was no node: they say nothing about the child (see `ExitReason.is_failure`).
    """

    failures: int = 0
    losses: int = 0

    def ran(self, seconds: float, backoff: RestartBackoff | None) -> None:
        """It has run for so long: after long enough, what was before does not count any more."""
        if backoff is not None and seconds >= backoff.calm:
            self.failures = 0
        if seconds >= PLACEMENT_BACKOFF.calm:
            self.losses = 0

    def next(self, reason: ExitReason, backoff: RestartBackoff | None, draw: Callable[[], float]) -> float:
        """Seconds before the restart that `reason` calls for. `backoff` is for failures; the restart after a first loss is immediate."""
        if reason.is_failure:
            self.failures += 1
            return 0.0 if backoff is None else backoff.delay(self.failures, draw())
        if reason.kind == "node left":
            # Nodes leave when they are told to: that cannot become a storm.
            return 0.0
        self.losses += 1
        if self.losses == 1 and reason.kind == "node died":
            return 0.0
        return PLACEMENT_BACKOFF.delay(max(1, self.losses - 1), draw())
