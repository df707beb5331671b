"""Keys in order are those that were added and not removed, whatever the order of that."""

from __future__ import annotations

import random

import pytest

from runtime.store import sorted_keys
from runtime.store.sorted_keys import SortedKeys

LETTERS = "ab/é\U0001f600"


def drawn_key(drawn: random.Random) -> str:
    return "".join(drawn.choices(LETTERS, k=drawn.randint(1, 4)))


@pytest.mark.parametrize("seed", range(20))
def test_they_are_what_a_set_that_is_sorted_each_time_would_be(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Short lists: they are divided and joined all the time.
    monkeypatch.setattr(sorted_keys, "MOST_IN_LIST", 6)
    monkeypatch.setattr(sorted_keys, "FEW_IN_LIST", 2)
    drawn = random.Random(seed)
    model = {drawn_key(drawn) for _ in range(drawn.choice([0, 1, 50]))}
    keys = SortedKeys(model)
    lists: list[int] = []
    for step in range(600):
        # Growing, and shrinking again, to nothing at the end.
        grows = drawn.random() < (0.7 if step < 250 else 0.2)
        key = drawn_key(drawn)
        if grows and key not in model:
            keys.add(key)
            model.add(key)
        elif not grows and model:
            gone = drawn.choice(sorted(model))
            keys.remove(gone)
            model.remove(gone)
        keys.check_invariants()
        lists.append(len(keys._lists))
        assert list(keys) == sorted(model)
        assert len(keys) == len(model)
        for prefix in ("", drawn_key(drawn), key[:1]):
            found = [one for one in sorted(model) if one.startswith(prefix)]
            assert list(keys.beginning_with(prefix)) == found
    assert max(lists) > 4


def test_the_lists_stay_few_when_most_keys_go() -> None:
    texts = [f"{number:06}" for number in range(20_000)]
    keys = SortedKeys(texts)
    for place, text in enumerate(texts):
        if place % 500:
            keys.remove(text)
    keys.check_invariants()
    assert len(keys) == 40
    assert len(keys._lists) <= 2
