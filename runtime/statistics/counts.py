"""Counts that the machines of a node keep all the time: plain integers, added to where something
happens that is no part of the way of every call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from actors.options import check_name
from actors.short_repr import short_repr
from runtime.statistics.call_statistics import OTHER
from runtime.statistics.histograms import Histogram
from runtime.statistics.waits import WaitedSeconds

MOST_LABELS = 300
"""Combinations of labels that one count keeps apart."""

MOST_NAMES = 10_000
"""Names of which a count is kept."""

MOST_NAMED = 100
"""Supervisors that metrics tell apart."""


class LabelledCount:
    """A count for each combination of labels; the number of combinations is bounded, further ones
    are counted as `OTHER`.
    """

    __slots__ = ("_counts", "_most")

    def __init__(self, most: int = MOST_LABELS) -> None:
        self._counts: dict[tuple[str, ...], int] = {}
        self._most = most

    def add(self, *labels: str, count: int = 1) -> None:
        """Add `count` under these labels. A negative one takes back what was added."""
        counts = self._counts
        try:
            counts[labels] += count
        except KeyError:
            if len(counts) >= self._most:
                labels = (OTHER,) * len(labels)
            counts[labels] = counts.get(labels, 0) + count

    def __iter__(self) -> Iterator[tuple[tuple[str, ...], int]]:
        """Labels and counts."""
        return iter(self._counts.items())

    def __getitem__(self, labels: tuple[str, ...]) -> int:
        """The count under these labels; 0 if there is none."""
        return self._counts.get(labels, 0)


class LatestCounts:
    """How often something happened to each of many names. Bounded: the name that was counted
    longest ago is forgotten first, and counts from 0 when it comes again.
    """

    def __init__(self, most: int = MOST_NAMES) -> None:
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._most = most

    def add(self, name: str) -> None:
        """Count one."""
        self._counts[name] = self._counts.pop(name, 0) + 1
        if len(self._counts) > self._most:
            self._counts.popitem(last=False)
        assert len(self._counts) <= self._most

    def copy(self) -> dict[str, int]:
        """The counts at this moment."""
        return dict(self._counts)

    def since(self, before: dict[str, int]) -> dict[str, int]:
        """Return what was counted since the copy `before` was taken, for the names whose counts
        have changed.
        """
        return {
            name: count - known
            for name, count in self._counts.items()
            if count > (known := before.get(name, 0))
        }


def checked_supervisors(given: Iterable[str]) -> frozenset[str]:
    """Names of supervisors for labels of metrics. Raises TypeError or ValueError for what are no
    names of actors, and for more than `MOST_NAMED`.
    """
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(
            f"measured_supervisors is a list of names of supervisors, not {short_repr(given)}"
        )
    names = frozenset(given)
    for name in names:
        check_name("measured_supervisors", name)
    if len(names) > MOST_NAMED:
        raise ValueError(f"metrics tell at most {MOST_NAMED} supervisors apart, not {len(names)}")
    return names


class NodeCounts:
    """Counters of events on one node since it was opened, besides calls."""

    def __init__(self) -> None:
        self.refused = LabelledCount()
        """Calls that mailboxes refused, by reason."""
        self.stale_epochs = 0
        """Calls for an earlier epoch of an actor, which were refused."""
        self.attempts = LabelledCount()
        """Attempts of calls that failed and were followed by another one, by reason."""
        self.budget_empty = 0
        """Calls that were not made again because the retry budget of their target was used up."""
        self.repeats = 0
        """Repeats that arrived of calls that ran already, or had run."""
        self.living = LabelledCount()
        """Actors that are here, by class."""
        self.starting = LabelledCount()
        """Of these, those whose `on_start` has not returned."""
        self.starts = LabelledCount()
        """Starts of actors, by class, also those that failed."""
        self.ends = LabelledCount()
        """Ends of actors, by class and kind of their exit reason."""
        self.restarts = LabelledCount()
        """Ends of children after which supervisors here act, by the supervisor if it is among
        `named_supervisors`, else "", and by kind of exit reason.
        """
        self.named_supervisors: frozenset[str] = frozenset()
        """Supervisors that metrics tell apart. The names of others are no labels: of those there
        may be any number.
        """
        self.restarted = LatestCounts()
        """Restarts by supervisors here, by the names of their children."""
        self.escalations = 0
        """Supervisors here that gave up."""
        self.orphans = 0
        """Actors that were stopped because their supervisor does not come back."""
        self.adoptions = 0
        """Living children that a restarted supervisor kept."""
        self.deaths = LabelledCount()
        """Other nodes that were found dead, by proof: `kernel` or `lease`."""
        self.credit_waits = WaitedSeconds()
        """Of streams that are produced here, until their readers have taken more."""
        self.deadlines_late = Histogram()
        """By how much deadlines of calls were handled after their time."""
