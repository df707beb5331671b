"""Which name is suggested for one that is not there."""

from __future__ import annotations

import random
import string

import pytest

from runtime.near_names import likeliest, nearest


def test_a_child_is_found_by_its_own_name_and_others_by_how_they_are_written() -> None:
    names = ["top/a", "top/pool/a", "counter", "count", "b"]
    assert nearest("a", names) == ["top/a"]
    assert nearest("a", names, 3) == ["top/a", "top/pool/a"]
    assert nearest("countr", names) == ["counter"]
    assert nearest("pool/a", names) == ["top/pool/a"]
    assert nearest("a", ["b", "counter"]) == []
    assert nearest("counter", ["top/counter", "counters"], 2) == ["top/counter", "counters"]


@pytest.mark.parametrize("length", [20, 60, 150])
def test_a_misspelt_name_is_among_the_likeliest_of_many_and_few_characters_are_compared(
    length: int,
) -> None:
    draw, letters = random.Random(length), string.ascii_lowercase
    names = ["worker-" + "".join(draw.choices(letters, k=length - 7)) for _ in range(500)]
    for meant in draw.sample(names, 20):
        place = draw.randrange(length)
        for name in (
            meant[:place] + meant[place + 1 :],
            meant[:place] + "_" + meant[place:],
            meant[:place] + "_" + meant[place + 1 :],
        ):
            found = likeliest(name, names, 200_000)
            assert len(name) * sum(map(len, found)) <= 200_000
            assert nearest(name, found) == [meant]


def test_one_name_is_compared_however_long_it_is() -> None:
    assert likeliest("a" * 10, ["b" * 20, "a" * 20], 1) == ["a" * 20]
    assert likeliest("a", [], 1) == []


def test_a_child_is_likely_by_the_end_of_its_name() -> None:
    names = [f"top/other-{number}/worker" for number in range(200)]
    assert nearest("a-1", likeliest("a-1", [*names, "top/a-1"], 300)) == ["top/a-1"]
