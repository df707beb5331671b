"""Which names may have been meant by one that is not there."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest
from operator import eq

ALIKE = 0.7
"""The share of the characters of two names that must be in both, in the same order. A misspelt name
has 0.8 and more; names that have nothing to do with each other have half of them by chance.
"""


def nearest(name: str, names: Iterable[str], most: int = 1) -> list[str]:
    """The names that are most like `name`: first those of which it is the last part, since children
    are called after their supervisors (`top/a` for `a`), then those that are written like it.
    """
    given = list(names)
    ends = sorted(
        (one for one in given if one.endswith(f"/{name}")), key=lambda one: (len(one), one)
    )
    places = _places(name)
    likeness = {one: _likeness(places, len(name), one) for one in given}
    like = nlargest(
        most, (one for one in likeness if likeness[one] >= ALIKE), key=likeness.__getitem__
    )
    return list(dict.fromkeys([*ends, *like]))[:most]


def _places(name: str) -> dict[str, int]:
    """Return the places of each character of `name`, as the bits of a number."""
    places: dict[str, int] = {}
    for place, character in enumerate(name):
        places[character] = places.get(character, 0) | 1 << place
    return places


def _likeness(places: dict[str, int], length: int, other: str) -> float:
    """Return the share of the characters of two names that are in their longest common subsequence.

    By Hyyrö's bit-parallel algorithm: one step for each character of `other`, whatever the names
    are. `difflib` takes half a second for two names of 250 characters that consist of two letters,
    and leaves frequent characters out of names of 200 and more.
    """
    most = (1 << length) - 1
    bits = most
    for character in other:
        common = bits & places.get(character, 0)
        bits = (bits + common | bits - common) & most
    return 2 * (length - bits.bit_count()) / ((length + len(other)) or 1)


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
