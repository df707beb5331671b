"""Which names may have been meant by one that is not there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from operator import eq


def nearest(name: str, names: Iterable[str], most: int = 1) -> list[str]:
    """The names that are most like `name`: first those of which it is the last part, since children
    are called after their supervisors (`top/a` for `a`), then those that are written like it.
    """
    given = list(names)
    ends = sorted(
        (one for one in given if one.endswith(f"/{name}")), key=lambda one: (len(one), one)
    )
    like = difflib.get_close_matches(name, given, n=most)
    return list(dict.fromkeys([*ends, *like]))[:most]


def likeliest(name: str, names: Iterable[str], most_pairs: int) -> list[str]:
    """The names to compare with `name` where the time for it is bounded: those that have the same
    characters in most places, counted from either end, as a misspelt name has. A comparison takes
    time for each pair of characters, 25 ns or so; these have at most `most_pairs` in all, or are
    one name.
    """
    backwards = name[::-1]
    ranked = sorted(
        names,
        key=lambda one: sum(map(eq, name, one)) + sum(map(eq, backwards, reversed(one))),
        reverse=True,
    )
    left = most_pairs
    for count, one in enumerate(ranked):
        left -= len(name) * len(one)
        if left < 0:
            return ranked[: max(count, 1)]
    return ranked
