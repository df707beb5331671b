"""Ordered entries: in the order of their numbers, and cheap to leave from anywhere."""

from __future__ import annotations

import random
import weakref

import pytest

from runtime.calls.ordered_entries import FEWEST_TO_CLEAR, OrderedEntries, Place


class Waiting:
    """Cannot be compared, as calls cannot."""


def test_entries_are_in_the_order_of_their_numbers_while_others_leave() -> None:
    for seed in range(50):
        draw = random.Random(seed)
        entries: OrderedEntries[Waiting] = OrderedEntries()
        there: dict[Place, Waiting] = {}
        for _ in range(300):
            if there and draw.random() < 0.5:
                place = draw.choice([*there, min(there)])
                del there[place]
                entries.remove(place)
            else:
                entry = Waiting()
                there[entries.add(draw.randrange(40), entry)] = entry
            entries.check_invariants()
            assert len(entries) == len(there)
            assert list(entries) == [there[place] for place in sorted(there)]
            if there:
                assert entries.first is there[min(there)]


def test_equal_numbers_are_in_the_order_in_which_they_were_added() -> None:
    entries: OrderedEntries[str] = OrderedEntries()
    for word in ("b", "a", "c"):
        entries.add(7, word)
    entries.add(6, "z")
    assert list(entries) == ["z", "b", "a", "c"]


def test_what_has_left_is_kept_by_nothing() -> None:
    entries: OrderedEntries[Waiting] = OrderedEntries()
    entries.add(1, Waiting())
    later = Waiting()
    seen = weakref.ref(later)
    entries.remove(entries.add(2, later))
    del later
    assert seen() is None, "its arguments may be large, and the first may stay for long"
    for number in range(10_000):
        entries.remove(entries.add(number + 2, Waiting()))
    assert len(entries._heap) <= FEWEST_TO_CLEAR + 2, "nor do the places of many take memory"


class Counted(int):
    """A number that counts how often numbers are compared."""

    compared = 0

    def __lt__(self, other: object) -> bool:
        Counted.compared += 1
        return int.__lt__(self, other)  # type: ignore[operator]

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return int.__eq__(self, other)

    __hash__ = int.__hash__


@pytest.mark.parametrize("order", ["first", "last", "random"])
def test_the_cost_of_leaving_does_not_grow_with_those_that_wait(order: str) -> None:
    def comparisons(count: int) -> float:
        entries: OrderedEntries[Waiting] = OrderedEntries()
        places = [entries.add(Counted(number), Waiting()) for number in range(count)]
        if order == "last":
            places.reverse()
        elif order == "random":
            random.Random(1).shuffle(places)
        Counted.compared = 0
        for place in places:
            entries.remove(place)
            if len(entries):
                assert entries.first is not None
        return Counted.compared / count

    few, many = comparisons(500), comparisons(8_000)
    assert many < 2 * few + 20, "a walk over those that wait would take 16 times as many"
