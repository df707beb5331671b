"""The bounded history: what it keeps, what it cuts and what it refuses."""

from __future__ import annotations

import pytest

from actors.errors import StoreCompactedError
from runtime.store.interface import StoreEvent
from runtime.store.memory import BATCH_BYTES, BATCH_EVENTS, ChangeHistory
from tests.invariants import checked_in_module

look_through_tables = checked_in_module(ChangeHistory)


def put(revision: int, key: str = "a", value: bytes = b"") -> StoreEvent:
    return StoreEvent("put", key, value, revision, revision)


def history(
    *events: StoreEvent, max_events: int = 100_000, max_bytes: int = 1 << 30
) -> ChangeHistory:
    made = ChangeHistory(max_events, max_bytes)
    for event in events:
        made.add(event)
    return made


def test_the_oldest_revision_goes_whole_when_there_are_too_many_events() -> None:
    made = history(put(2, "a"), put(2, "b"), put(2, "c"), put(3), put(4), max_events=4)
    assert [event.revision for event in made.after(0)] == [3, 4]
    assert made.compacted == 2


def test_large_values_push_older_changes_out() -> None:
    made = history(put(2), put(3, value=b"x" * 600), put(4, value=b"x" * 600), max_bytes=1000)
    assert [event.revision for event in made.after(0)] == [4]


def test_previous_values_count_as_well() -> None:
    made = history(
        put(2),
        StoreEvent("delete", "a", b"", 3, 2, b"x" * 600),
        StoreEvent("delete", "b", b"", 4, 2, b"x" * 600),
        max_bytes=1000,
    )
    assert [event.revision for event in made.after(0)] == [4]


def test_bytes_that_were_forgotten_no_longer_count() -> None:
    made = history(*(put(revision, value=b"x" * 300) for revision in range(2, 100)), max_bytes=1000)
    assert len(made) == 3


def test_the_newest_revision_stays_however_large_it_is() -> None:
    made = history(
        put(2),
        *(put(3, str(number), b"x" * 100) for number in range(50)),
        max_events=10,
        max_bytes=100,
    )
    assert len(made) == 50
    batch = made.since("", 3, 3)
    assert batch is not None
    assert len(batch.events) == 50


def test_a_batch_ends_at_the_revision_that_fills_it_and_the_next_one_goes_on_there() -> None:
    made = history(*(put(2 + number // 7, str(number)) for number in range(3 * BATCH_EVENTS)))
    present = 2 + 3 * BATCH_EVENTS // 7
    seen: list[StoreEvent] = []
    start, batches = 1, 0
    while (batch := made.since("", start, present)) is not None:
        assert len(batch.events) < BATCH_EVENTS + 7
        seen += batch.events
        start, batches = batch.revision + 1, batches + 1
    assert seen == made.after(0)
    assert batches == 3


def test_large_values_fill_a_batch_as_well() -> None:
    made = history(*(put(revision, value=b"x" * (BATCH_BYTES // 2)) for revision in range(2, 8)))
    batch = made.since("", 1, 7)
    assert batch is not None
    assert [event.revision for event in batch.events] == [2, 3]
    assert batch.revision == 3


def test_a_batch_that_holds_all_there_is_reaches_to_the_present_past_changes_of_other_keys() -> (
    None
):
    batch = history(put(2, "a/1"), put(3, "b/1"), put(4, "b/2")).since("a/", 1, 4)
    assert batch is not None
    assert [event.revision for event in batch.events] == [2]
    assert batch.revision == 4


def test_a_revision_that_is_no_longer_kept_is_refused_and_the_one_after_it_is_not() -> None:
    made = history(put(2), put(3), put(4))
    made.compact(3)
    with pytest.raises(
        StoreCompactedError,
        match="up to revision 3 are no longer kept and 3 was asked for; read the keys afresh",
    ):
        made.since("a", 3, 4)
    assert made.since("a", 4, 4) is not None


def test_compacting_less_than_was_compacted_before_brings_nothing_back() -> None:
    made = history(put(2), put(3))
    made.compact(3)
    made.compact(2)
    assert made.compacted == 3


def test_a_history_that_could_keep_nothing_is_refused() -> None:
    for bounds in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="at least one"):
            ChangeHistory(*bounds)
