"""Keys in order, of which any may be added or removed at a cost that hardly grows with their
number.

They are kept in short lists, one after the other. To add a key moves half of one short list, and
not half of all keys, as it would in one long list.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise

MOST_IN_LIST = 1_024
"""A list with more keys is divided in two. The list of first keys is as long as that at about a
million keys.
"""

FEW_IN_LIST = MOST_IN_LIST // 8
"""A list with fewer keys is joined with one beside it, if that leaves room for more."""


class SortedKeys:
    """A set of keys, in the order of code points."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        ordered = sorted(keys)
        half = MOST_IN_LIST // 2
        self._lists = [ordered[begin : begin + half] for begin in range(0, len(ordered), half)]
        # The first key of each list. Exactly that: a search in it finds the list of a key.
        self._firsts = [keys[0] for keys in self._lists]
        self._length = len(ordered)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._lists)

    def add(self, key: str) -> None:
        """Add a key that is not among them."""
        self._length += 1
        if not self._lists:
            self._lists.append([key])
            self._firsts.append(key)
            return
        place = max(0, bisect_right(self._firsts, key) - 1)
        keys = self._lists[place]
        insort(keys, key)
        self._firsts[place] = keys[0]
        if len(keys) > MOST_IN_LIST:
            half = len(keys) // 2
            self._lists.insert(place + 1, keys[half:])
            self._firsts.insert(place + 1, keys[half])
            del keys[half:]

    def remove(self, key: str) -> None:
        """Remove a key that is among them."""
        place = bisect_right(self._firsts, key) - 1
        keys = self._lists[place]
        index = bisect_left(keys, key)
        assert keys[index] == key
        del keys[index]
        self._length -= 1
        if not keys:
            del self._lists[place]
            del self._firsts[place]
            return
        self._firsts[place] = keys[0]
        # Otherwise there could in time be as many lists as keys.
        if len(keys) < FEW_IN_LIST and not self._join(place):
            self._join(place - 1)

    def _join(self, place: int) -> bool:
        """Join the list at `place` with the next one, if both exist and leave room for more."""
        if not 0 <= place < len(self._lists) - 1:
            return False
        keys, following = self._lists[place : place + 2]
        if len(keys) + len(following) > MOST_IN_LIST // 2:
            return False
        keys += following
        del self._lists[place + 1]
        del self._firsts[place + 1]
        return True

    def beginning_with(self, prefix: str) -> Iterator[str]:
        """The keys that begin with `prefix`, in order. Costs what is found."""
        place = max(0, bisect_right(self._firsts, prefix) - 1)
        for number in range(place, len(self._lists)):
            keys = self._lists[number]
            start = bisect_left(keys, prefix) if number == place else 0
            for index in range(start, len(keys)):
                if not keys[index].startswith(prefix):
                    return
                yield keys[index]

    def check_invariants(self) -> None:
        """Assert what holds between two steps. Looks at every key: for tests and simulations."""
        assert self._firsts == [keys[0] for keys in self._lists], "no list is empty"
        assert all(len(keys) <= MOST_IN_LIST for keys in self._lists)
        assert all(first < second for first, second in pairwise(self))
        assert self._length == sum(map(len, self._lists))
