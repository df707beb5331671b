"""The bounded memory of log lines: by bytes, cut lines, and answers that pass over none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.logs.archive import LINES_BYTES, ArchiveSlots
from runtime.logs.ring import (
    ANSWER_BYTES,
    LINE_BYTES,
    LogEntry,
    LogQuestion,
    LogRing,
    cut,
    entry_of,
    fitting,
)


def line(text: str, level: int = 20, time: float = 0.0, actor: str = "") -> LogEntry:
    return LogEntry(0, time, level, "test", text, actor)


@given(st.lists(st.integers(0, 3000)), st.integers(0, 5000))
def test_it_never_has_more_than_its_limit_and_drops_the_oldest(
    sizes: list[int], limit: int
) -> None:
    ring = LogRing(limit)
    for size in sizes:
        ring.add(line("x" * size))
        ring.check_invariants()
    numbers = [entry.number for entry in ring.entries()]
    assert ring.last == len(sizes)
    assert numbers == list(range(len(sizes) - len(numbers) + 1, len(sizes) + 1))


def test_a_line_that_is_too_long_is_cut_and_says_so() -> None:
    text = cut("x" * (10 * 2**20))
    assert len(text) < LINE_BYTES + 100
    assert text.endswith(f"[{10 * 2**20 - LINE_BYTES:,} more characters are left out]")


@given(st.lists(st.integers(0, 3 * LINE_BYTES), max_size=40))
def test_one_who_asks_again_and_again_gets_every_line_once(sizes: list[int]) -> None:
    ring = LogRing(10**9)
    for size in sizes:
        ring.add(line(cut("x" * size)))
    seen: list[int] = []
    while True:
        told, left = fitting(
            ring.entries(), LogQuestion(after=seen[-1] if seen else 0), onwards=True
        )
        assert sum(entry.size for entry in told) <= ANSWER_BYTES
        seen += [entry.number for entry in told]
        assert told or not left
        if not left:
            break
    assert seen == list(range(1, len(sizes) + 1))


def test_the_first_answer_has_the_latest_lines_that_fit_and_counts_the_others() -> None:
    ring = LogRing(10**9)
    for _ in range(20):
        ring.add(line("x" * LINE_BYTES))
    told, left = fitting(ring.entries(), LogQuestion())
    assert told[-1].number == 20
    assert len(told) + left == 20
    assert left


def test_a_question_chooses_by_level_time_and_actor() -> None:
    ring = LogRing(10**6)
    ring.add(line("a", 10, 1.0, "one"))
    ring.add(line("b", 30, 2.0, "one"))
    ring.add(line("c", 40, 3.0, "two"))
    for question, texts in (
        (LogQuestion(level=30), "bc"),
        (LogQuestion(since=2.5), "c"),
        (LogQuestion(actor="one"), "ab"),
        (LogQuestion(after=1, actor="one"), "b"),
    ):
        assert "".join(entry.text for entry in fitting(ring.entries(), question)[0]) == texts


@pytest.mark.parametrize(
    "told",
    [None, 5, [], {"text": b"bytes"}, {"text": "x", "time": "noon"}, {"text": "x", "actor": 5}],
)
def test_what_a_peer_sends_is_a_line_or_refused(told: object) -> None:
    with pytest.raises(ValueError, match="log entry"):
        entry_of(told)


def test_a_line_of_another_version_is_read() -> None:
    entry = entry_of({"text": "x" * 10**6, "time": 5, "colour": "red"})
    assert entry.level == 0
    assert len(entry.text) < LINE_BYTES + 100


@given(st.lists(st.lists(st.integers(0, 20_000), max_size=30), max_size=8))
def test_the_slots_hold_the_last_lines_and_write_only_what_has_changed(
    rounds: list[list[int]],
) -> None:
    ring = LogRing(10**9)
    slots = ArchiveSlots()
    stored: dict[int, bytes] = {}
    for sizes in rounds:
        for size in sizes:
            ring.add(line("x" * size))
        slots.add(ring.entries())
        slots.check_invariants()
        assert bool(slots.unwritten) == bool(sizes)
        for slot in slots.unwritten:
            stored[slot] = slots.content(slot)
        slots.unwritten.clear()
        slots.rewrite()
        assert {slot: slots.content(slot) for slot in slots.unwritten} == stored
        slots.unwritten.clear()
        assert slots.taken == ring.last
        assert sum(map(len, stored.values())) < 2 * LINES_BYTES
