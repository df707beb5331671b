"""How the rows measure: works done in turn, several times, in one run; medians; and what a row
says.
"""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import TypeVar, overload

import attrs
import trio

CALLERS = 1_000
MEBIBYTE = 1024 * 1024
LESS_IS_BETTER = ("ms", "KiB", "MiB", "steps")
"""Units of which less is better: the ratio is the other way round, so that more is better
everywhere.
"""

T = TypeVar("T")

Call = Callable[[], Awaitable[object]]
Work = Callable[[], Awaitable[float]]


@attrs.frozen
class Settings:
    """How long to measure, and how much. `short`: sizes that only show that the rows work."""

    seconds: float = 1.0
    rounds: int = 5
    short: bool = False

    def size(self, whole: int) -> int:
        """A count or a size in bytes, or what is left of it in a short run."""
        return max(1, whole // 100) if self.short else whole


@attrs.frozen
class Figure:
    """The median of the counted rounds, and their range."""

    value: float
    least: float
    most: float

    @classmethod
    def of(cls, values: list[float]) -> Figure:
        """From the values of the counted rounds."""
        return cls(median(values), min(values), max(values))


@attrs.frozen
class Row:
    """One line of the report. `floor` is what `against` says: by default the bare floor, measured
    in turn with ours.
    """

    work: str
    unit: str
    ours: Figure
    floor: Figure
    against: str = "floor"
    goal: str = ""
    """In words, "" if there is none. `met` says whether it was reached."""
    met: bool | None = None
    paired: Figure | None = None
    """The ratio, if the two were measured in pairs: see `in_pairs`."""
    bound: float | None = None
    """The least ratio that reaches the goal, if it is one of the ratio."""

    @property
    def ratio(self) -> float:
        """How near to the floor; more is better, whatever the unit."""
        if self.paired is not None:
            return self.paired.value
        mine, floor = self.ours.value, self.floor.value
        return floor / mine if self.unit in LESS_IS_BETTER else mine / floor

    @property
    def within_noise(self) -> bool:
        """True if the pairs differ too much to tell whether the goal was reached."""
        if self.paired is None or self.bound is None:
            return False
        return self.paired.least < self.bound <= self.paired.most


def at_least(row: Row, *, ratio: float = 0.0, value: float = 0.0) -> Row:
    """The row with a goal: so near to the floor, or so many of its unit."""
    if ratio:
        goal = f"{ratio:.0%} of {row.against}"
        return attrs.evolve(row, goal=goal, met=row.ratio >= ratio, bound=ratio)
    return attrs.evolve(row, goal=f"{value:,g} or more", met=row.ours.value >= value)


def at_most(row: Row, value: float) -> Row:
    """The row with a goal: so many of its unit, or less."""
    return attrs.evolve(row, goal=f"{value:,g} or less", met=row.ours.value <= value)


@overload
async def in_turn(rounds: int, ours: Work, floor: Work, /) -> tuple[Figure, Figure]: ...


@overload
async def in_turn(rounds: int, *works: Work) -> tuple[Figure, ...]: ...


async def in_turn(rounds: int, *works: Work) -> tuple[Figure, ...]:
    """Each work once and again, so that a machine whose speed drifts drifts for all; the first
    round is not counted.
    """
    values: list[list[float]] = [[] for _ in works]
    for number in range(rounds + 1):
        for work, found in zip(works, values, strict=True):
            value = await work()
            if number:
                found.append(value)
    return tuple(Figure.of(found) for found in values)


async def in_pairs(count: int, ours: Work, floor: Work) -> tuple[Figure, Figure, Figure]:
    """So many pairs of short works, either of them first in turn: for works that differ by little.
    Gives the median of the ratios of the pairs as well, see `compare_pairs`.
    """
    return compare_pairs(*await taken_in_pairs(count, ours, floor))


async def taken_in_pairs(
    count: int, ours: Callable[[], Awaitable[T]], floor: Callable[[], Awaitable[T]]
) -> tuple[list[T], list[T]]:
    """What each of so many pairs of works returned. The first two pairs are not counted."""
    mine: list[T] = []
    others: list[T] = []
    for number in range(count + 2):
        if number % 2:
            mine.append(await ours())
        others.append(await floor())
        if not number % 2:
            mine.append(await ours())
    return mine[2:], others[2:]


def compare_pairs(mine: Sequence[float], others: Sequence[float]) -> tuple[Figure, Figure, Figure]:
    """Compare what was taken in pairs: both, the median of the ratios of the pairs, and between
    which ratios it lies with 95 % confidence. What else the machine does disturbs a few of the
    pairs, and both works of the others alike.
    """
    ratios = sorted(one / other for one, other in zip(mine, others, strict=True))
    # Ranks in order, which says nothing of how the ratios are spread: so many of them are below the
    # true median as a coin shows heads.
    count = len(ratios)
    beside = math.ceil(0.98 * math.sqrt(count))
    low, high = max(0, count // 2 - beside), min(count - 1, (count - 1) // 2 + beside)
    ratio = Figure(median(ratios), ratios[low], ratios[high])
    return Figure.of(list(mine)), Figure.of(list(others)), ratio


async def sequential(call: Call, seconds: float, step: int = 20) -> float:
    """Calls per second, one after the other. The clock is looked at after `step` calls: one, if
    they are long.
    """
    began, count = trio.current_time(), 0
    while trio.current_time() - began < seconds:
        for _ in range(step):
            await call()
        count += step
    return count / (trio.current_time() - began)


async def pipelined(call: Call, seconds: float, callers: int = CALLERS) -> float:
    """Calls per second of so many tasks that each call again as soon as they are answered."""
    began = trio.current_time()
    counts: list[int] = []

    async def caller() -> None:
        count = 0
        while trio.current_time() - began < seconds:
            await call()
            count += 1
        counts.append(count)

    async with trio.open_nursery() as nursery:
        for _ in range(callers):
            nursery.start_soon(caller)
    return sum(counts) / (trio.current_time() - began)


async def times(call: Call, seconds: float) -> list[float]:
    """How long each of the calls took that follow each other for `seconds`, sorted, in
    milliseconds.
    """
    began = trio.current_time()
    took: list[float] = []
    while not took or trio.current_time() - began < seconds:
        before = trio.current_time()
        await call()
        took.append(1000 * (trio.current_time() - before))
    return sorted(took)


@contextmanager
def spinning(how: str) -> Iterator[None]:
    """Nodes opened in the block, here or in processes that are started in it, spin as
    UNDERSTUDY_SPIN says: auto, on or off.
    """
    before = os.environ.get("UNDERSTUDY_SPIN")
    os.environ["UNDERSTUDY_SPIN"] = how
    try:
        yield
    finally:
        if before is None:
            del os.environ["UNDERSTUDY_SPIN"]
        else:
            os.environ["UNDERSTUDY_SPIN"] = before
