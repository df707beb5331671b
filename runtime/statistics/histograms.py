"""Histograms of durations: arrays of fixed length, so that to add a duration allocates nothing.

Quantiles are estimated from the counts as Prometheus does (`histogram_quantile`): a straight line
through the bucket that holds the quantile.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final

BOUNDS: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
)
"""Upper bounds of the buckets in seconds; one more bucket has what is longer. Those of
OpenTelemetry's conventions for RPC, and five below their first of 5 ms: most calls take less.
"""


class Histogram:
    """Durations in seconds, counted by bucket: `counts[i]` of those above `BOUNDS[i - 1]` and up to
    `BOUNDS[i]`.
    """

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0
        """The sum of all durations, in seconds."""

    def add(self, seconds: float, weight: int = 1) -> None:
        """Count one duration, which stands for so many."""
        self.counts[bisect_left(BOUNDS, seconds)] += weight
        self.total += seconds * weight

    def take_in(self, other: Histogram) -> None:
        """Add all durations of another one."""
        self.counts = [
            mine + others for mine, others in zip(self.counts, other.counts, strict=True)
        ]
        self.total += other.total

    @property
    def count(self) -> int:
        """How many durations were counted."""
        return sum(self.counts)

    def as_plain(self) -> dict[str, Any] | None:
        """Return plain data: `count`, `sum` (seconds), `counts` by bucket, `p50` and `p99`
        (seconds). None if nothing was counted.
        """
        count = self.count
        if not count:
            return None
        return {
            "count": count,
            "sum": self.total,
            "counts": list(self.counts),
            "p50": quantile(self.counts, 0.5),
            "p99": quantile(self.counts, 0.99),
        }


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Estimate the duration in seconds that a `share` (0 to 1) of those counted do not exceed; None
    if there are none. A quantile in the last bucket is given as the greatest bound: it is at least
    that.

    `counts`: those of a `Histogram`, or the differences between two readings of one, which give the
    quantile of the time between.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"a share is between 0 and 1, not {share}")
    total = sum(counts)
    if total <= 0:
        return None
    rank, below = share * total, 0
    for place, count in enumerate(counts[: len(BOUNDS)]):
        if count and below + count >= rank:
            lower = BOUNDS[place - 1] if place else 0.0
            return lower + (BOUNDS[place] - lower) * max(0.0, rank - below) / count
        below += count
    return BOUNDS[-1]
