"""When a lease has ended that only files tell of: the observer times, by its own clock, how long a counter has not
changed. No I/O.

A lease that has not been renewed for its time is suspected first, and ends only if it has still not been renewed after all could see that.
A holder who renews it at that moment sees the suspicion, and clears it, or sees that it is too late: never neither.
"""

from __future__ import annotations

import math

import attrs

LATE_SECONDS = 0.5
"""An observer that looks later than planned by more than this has not observed meanwhile."""


@attrs.define
class _Seen:
    beat: bytes
    since: float


class LeaseTimes:
    """What one observer has seen of all leases. `look_every`: in seconds, how often it means to look."""

    def __init__(self, look_every: float) -> None:
        self._look_every = look_every
        self._seen: dict[int, _Seen] = {}
        self._looked = math.nan

    def look(self, leases: dict[int, float], beats: dict[int, bytes], now: float) -> list[int]:
        """The leases that are overdue. `leases`: seconds by lease; `beats`: what their holders have last written."""
        late = now - self._looked - self._look_every
        if late > LATE_SECONDS:
            # This process was stopped, or its loop blocked: what was written meanwhile may not be what is read now.
            for seen in self._seen.values():
                seen.since += late
        self._looked = now
        self._seen = {lease: seen for lease, seen in self._seen.items() if lease in leases}
        overdue = []
        for lease, seconds in leases.items():
            beat = beats.get(lease, b"")
            known = self._seen.get(lease)
            if known is None or known.beat != beat:
                self._seen[lease] = _Seen(beat, now)
            elif now - known.since >= seconds:
                overdue.append(lease)
        return overdue

    def left(self, lease: int, seconds: float, now: float) -> float:
        """Seconds that a lease has left, as far as this observer knows."""
        seen = self._seen.get(lease)
        return seconds if seen is None else max(0.0, seen.since + seconds - now)
