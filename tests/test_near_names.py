"""Which name is suggested for one that is not there."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator

import pytest

from runtime.near_names import ALIKE, likeliest, nearest


def test_a_child_is_found_by_its_own_name_and_others_by_how_they_are_written() -> None:
    names = ["top/a", "top/pool/a", "counter", "count", "b"]
    assert nearest("a", names) == ["top/a"]
    assert nearest("a", names, 3) == ["top/a", "top/pool/a"]
    assert nearest("countr", names) == ["counter"]
    assert nearest("pool/a", names) == ["top/pool/a"]
    assert nearest("a", ["b", "counter"]) == []
    assert nearest("counter", ["top/counter", "counters"], 2) == ["top/counter", "counters"]


@pytest.mark.parametrize("length", [20, 60, 150, 200, 250])
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


@pytest.mark.parametrize("length", [199, 200, 250])
def test_a_long_misspelt_name_is_found_among_others_of_the_same_letters(length: int) -> None:
    draw = random.Random(length)
    names = ["".join(draw.choices("ab-", k=length)) for _ in range(20)]
    for meant in names:
        assert nearest(meant[:50] + meant[51:], names) == [meant]
        assert nearest(meant[:50] + "a" + meant[50:], names) == [meant]


def test_a_comparison_takes_as_long_as_its_names_are_whatever_they_are() -> None:
    class Counted(str):
        """A name whose characters are counted as they are looked at."""

        looked_at = 0

        def __iter__(self) -> Iterator[str]:
            for character in str(self):
                Counted.looked_at += 1
                yield character

    names = [Counted("aabb" * 62 + str(number)) for number in range(10)]
    nearest("ab" * 125, names)
    assert Counted.looked_at == sum(map(len, names))


@pytest.mark.parametrize("seed", range(20))
def test_the_likeness_is_that_of_the_longest_common_subsequence(seed: int) -> None:
    draw = random.Random(seed)
    one, other = ("".join(draw.choices("abc", k=draw.randrange(1, 40))) for _ in range(2))
    row = [0] * (len(other) + 1)
    for character in one:
        before = row
        row = [0]
        for place, another in enumerate(other):
            row.append(
                before[place] + 1 if character == another else max(row[place], before[place + 1])
            )
    expected = 2 * row[-1] / (len(one) + len(other)) >= ALIKE
    assert bool(nearest(one, [other])) is expected
