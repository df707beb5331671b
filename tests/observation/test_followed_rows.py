"""Rows of which only the changes are sent: a reader has all of them whatever it has missed."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from runtime.observation.followed_rows import MOST_KEPT, AnsweredRows, FollowedRows

LISTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2))


def rows(listed: dict[str, int]) -> list[dict[str, Any]]:
    return [{"name": name, "served": served} for name, served in listed.items()]


def by_name(found: Any) -> Any:
    return sorted(found, key=lambda row: row["name"])


@given(
    st.lists(
        # Which of three readers asks, whether the answer arrives, and what is there by then.
        st.tuples(st.integers(0, 2), st.booleans(), LISTS),
        max_size=2 * MOST_KEPT + 10,
    )
)
def test_readers_have_all_rows_whichever_answers_are_lost(
    steps: list[tuple[int, bool, dict[str, int]]],
) -> None:
    answered, readers = AnsweredRows(), [FollowedRows() for _ in range(3)]
    for reader, arrives, listed in steps:
        answer = answered.answer(rows(listed), readers[reader].number)
        if arrives:
            assert by_name(readers[reader].take(answer)) == by_name(rows(listed))
    assert len(answered._kept) <= MOST_KEPT


def test_only_what_has_changed_is_sent() -> None:
    answered, reader = AnsweredRows(), FollowedRows()
    first = answered.answer(rows({"a": 1, "b": 1, "c": 1}), reader.number)
    assert (len(first["rows"]), first["since"]) == (3, 0)
    reader.take(first)
    second = answered.answer(rows({"a": 1, "b": 2, "d": 1}), reader.number)
    assert second["rows"] == rows({"b": 2, "d": 1})
    assert second["gone"] == ["c"]
    reader.take(second)
    assert answered.answer(rows({"a": 1, "b": 2, "d": 1}), reader.number)["rows"] == []


def test_a_reader_that_comes_late_is_sent_everything() -> None:
    answered, reader = AnsweredRows(), FollowedRows()
    reader.take(answered.answer(rows({"a": 1}), reader.number))
    for _ in range(MOST_KEPT):
        answered.answer(rows({"a": 1}), 0)
    answer = answered.answer(rows({"a": 1}), reader.number)
    assert (answer["rows"], answer["since"]) == (rows({"a": 1}), 0)


def test_an_answer_about_another_one_changes_nothing_and_the_next_is_whole() -> None:
    reader = FollowedRows()
    reader.take({"since": 0, "number": 1, "rows": rows({"a": 1}), "gone": []})
    later = {"since": 7, "number": 8, "rows": rows({"b": 1}), "gone": ["a"]}
    assert reader.take(later) == rows({"a": 1})
    assert reader.number == 0
