"""The oracle of the chaos runs finds what is planted."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.books import Books, Outcome


@pytest.mark.parametrize(
    ("told", "applied", "wrong"),
    [
        ("value", 1, False),
        ("value", 0, True),
        ("value", 2, True),
        ("not executed", 0, False),
        ("not executed", 1, True),
        ("unknown", 0, False),
        ("unknown", 1, False),
        ("unknown", 2, True),
    ],
)
def test_an_entry_is_wrong_if_its_outcome_and_its_ledger_disagree(
    told: Outcome, applied: int, wrong: bool
) -> None:
    books = Books()
    books.note(7, told)
    books.applied = Counter({7: applied})
    assert bool(books.mistakes()) is wrong
    assert (books.lost == [7]) is (told == "value" and applied == 0)
    assert (books.doubled == [7]) is (applied == 2)


def test_an_entry_that_no_caller_asked_for_a_surprise_and_a_leak_are_mistakes() -> None:
    books = Books(
        applied=Counter({3: 1}),
        surprises=["a call ended with none of its outcomes"],
        leaks=["a process was left behind"],
    )
    assert len(books.mistakes()) == 3
    assert "1 leaked, 3 mistakes" in books.summary()


def test_an_entry_has_one_outcome() -> None:
    books = Books()
    books.note(1, "value")
    with pytest.raises(AssertionError, match="two outcomes"):
        books.note(1, "unknown")
