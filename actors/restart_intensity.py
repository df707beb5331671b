"""Restart intensity, with OTP's words and defaults: how often children may be restarted before
their supervisor gives up, and after which delay. No clock: times are passed in.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import attrs

from actors.retry import check_number, check_whole_number
from actors.supervision import PLACEMENT_BACKOFF, ExitReason, RestartBackoff


class RestartIntensity:
    """More than `intensity` restarts within `period` seconds are too many. The window is over the
    times of the restarts. Raises TypeError or ValueError for invalid values.
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
        # Counted whether it is allowed or not, and so never empty in the loop below.
        self._times.append(now)
        while self._times[0] + self.period < now:
            self._times.popleft()
        return len(self._times) <= self.intensity

    def recent(self, now: float) -> int:
        """Restarts that count at the moment. Looking changes nothing: a restart that happened
        before may be counted after it.
        """
        return sum(time + self.period >= now for time in self._times)

    def check_invariants(self) -> None:
        """Assert what must hold between any two restarts. For tests and simulations."""
        times = list(self._times)
        assert times == sorted(times), "restarts are counted in the order of their times"
        # One too many is counted too: with it the supervisor gives up.
        assert not times or times[-1] - times[0] <= self.period

    def exceeded(self, child: str, last: object) -> str:
        """Return the text for one restart too many: the last was of `child`, for the reason
        `last`.
        """
        return (
            f"more than {self.intensity} {'restart' if self.intensity == 1 else 'restarts'} within "
            f"{self.period:g} s, the last of child {child!r}: {last}"
        )


@attrs.define
class RestartDelay:
    """The delay of one child's next restart, by the causes of those in a row: its own `failures`,
    and `losses`.

    Losses are deaths of its nodes and starts for which there was no node: they say nothing about
    the child (see `ExitReason.is_failure`).
    """

    failures: int = 0
    losses: int = 0

    def on_ran(self, seconds: float, backoff: RestartBackoff | None) -> None:
        """Note that the child has run for so long: after `calm` seconds earlier failures do not
        count any more.
        """
        if backoff is not None and seconds >= backoff.calm:
            self.failures = 0
        if seconds >= PLACEMENT_BACKOFF.calm:
            self.losses = 0

    def next(
        self, reason: ExitReason, backoff: RestartBackoff | None, draw: Callable[[], float]
    ) -> float:
        """Seconds before the restart that `reason` calls for. `backoff` is for failures; the
        restart after a first loss is immediate.
        """
        if reason.is_failure:
            self.failures += 1
            return 0.0 if backoff is None else backoff.delay(self.failures, draw())
        if reason.kind == "node left":
            # Nodes leave on request: that cannot become a storm.
            return 0.0
        self.losses += 1
        if self.losses == 1 and reason.kind == "node died":
            return 0.0
        return PLACEMENT_BACKOFF.delay(max(1, self.losses - 1), draw())
