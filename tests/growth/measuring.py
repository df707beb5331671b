"""A curve of costs over powers of ten, and how it grows."""

from __future__ import annotations

import gc
import math
from collections.abc import Awaitable, Callable, Sequence
from statistics import median

import attrs

WORSE = 1.25
"""An exponent above this is worse than linear. The measurements of one machine differ by more than
a tenth, and the logarithm of a million is twice that of a thousand.
"""

FEW = 1_000
"""Counts up to this are measured several times, because they are soon done."""

REPEATS = 3

Work = Callable[[int], Awaitable[float]]
"""Makes so many things, and returns the seconds that it took."""


@attrs.frozen
class Curve:
    """Seconds by the number of things, which are powers of ten."""

    what: str
    seconds: dict[int, float]

    @property
    def exponent(self) -> float | None:
        """By which power of the number the costs grow at the end of the curve: over the last two
        powers of ten, because the first ones show fixed costs. None for a curve that is too short.
        """
        points = sorted(self.seconds.items())[-3:]
        if len(points) < 3:
            return None
        (least, first), (most, last) = points[0], points[-1]
        return math.log(last / first) / math.log(most / least)

    @property
    def is_worse_than_linear(self) -> bool:
        """True if an item costs more the more there are."""
        return self.exponent is not None and self.exponent > WORSE


async def measure(what: str, work: Work, most: int) -> Curve:
    """Measure the powers of ten up to `most`."""
    seconds: dict[int, float] = {}
    count = 1
    while count <= most:
        times: list[float] = []
        for _ in range(REPEATS if count <= FEW else 1):
            # What an earlier count has left behind is not this one's cost.
            gc.collect()
            times.append(await work(count))
        seconds[count] = median(times)
        count *= 10
    return Curve(what, seconds)


def table(curves: Sequence[Curve]) -> str:
    """The curves as a table in Markdown: microseconds of each item, by the number of items."""
    counts = sorted({count for curve in curves for count in curve.seconds})
    lines = [
        "| µs each, of so many | " + " | ".join(f"{count:,}" for count in counts) + " | grows |",
        "|---|" + "---:|" * len(counts) + "---|",
    ]
    for curve in curves:
        cells = [
            _each(curve.seconds[count] / count) if count in curve.seconds else ""
            for count in counts
        ]
        lines.append(f"| {curve.what} | " + " | ".join(cells) + f" | {verdict(curve)} |")
    return "\n".join(lines)


def verdict(curve: Curve) -> str:
    """In words."""
    if curve.exponent is None:
        return "too few to say"
    how = "worse than linear" if curve.is_worse_than_linear else "linear or less"
    return f"{how}: n^{curve.exponent:.2f}"


def _each(seconds: float) -> str:
    microseconds = seconds * 1e6
    return f"{microseconds:,.0f}" if microseconds >= 10 else f"{microseconds:.1f}"
