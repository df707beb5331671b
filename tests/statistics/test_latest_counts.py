"""Counts by name, bounded in number."""

from __future__ import annotations

from runtime.statistics.counts import LatestCounts


def test_the_name_that_was_counted_longest_ago_is_forgotten() -> None:
    counts = LatestCounts(most=2)
    for name in "aabac":
        counts.add(name)
    assert counts.copy() == {"a": 3, "c": 1}


def test_what_happened_since_is_the_difference() -> None:
    counts = LatestCounts(most=2)
    for name in "aab":
        counts.add(name)
    before = counts.copy()
    assert counts.since(before) == {}
    counts.add("b")
    assert counts.since(before) == {"b": 1}
    # "a" is forgotten, and begins again.
    for name in "cda":
        counts.add(name)
    assert counts.since(before) == {"d": 1}
