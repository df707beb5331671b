"""At most once: what is recorded of repeatable calls, under loss, repetition, confirmation and full
tables.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from actors.errors import MailboxFullError, OutcomeUnknownError
from runtime.calls.dedup_table import (
    LEAST_RECORDS,
    RECORD_BYTES,
    CallRecord,
    DedupTable,
    RecordsTotal,
)
from runtime.calls.pending_calls import Confirmations
from tests.invariants import checked_in_module

look_through_tables = checked_in_module(DedupTable, Confirmations)


ACTOR = ("counter", 7)


def arrived(
    records: DedupTable[str], number: int, *, repeat: bool = False, target: tuple[str, int] = ACTOR
) -> CallRecord[str]:
    record = records.arrive(number, target, repeat=repeat)
    assert isinstance(record, CallRecord)
    return record


def test_a_repeat_while_the_call_runs_is_attached_to_that_run() -> None:
    records: DedupTable[str] = DedupTable()
    first = arrived(records, 1)
    assert first.state == "new"
    records.on_started(first, "invocation")
    again = arrived(records, 1, repeat=True)
    assert (again.state, again.invocation) == ("running", "invocation")


def test_a_repeat_after_the_answer_was_lost_gets_that_answer() -> None:
    records: DedupTable[str] = DedupTable()
    first = arrived(records, 1)
    records.on_started(first, "invocation")
    records.on_answered(first, (b"answer", b"segment"))
    again = arrived(records, 1, repeat=True)
    assert (again.state, again.answer) == ("answered", (b"answer", b"segment"))


def test_a_call_that_was_refused_runs_when_it_is_made_again() -> None:
    records: DedupTable[str] = DedupTable()
    records.on_not_executed(arrived(records, 1))
    assert arrived(records, 1, repeat=True).state == "new"


def test_a_call_that_died_with_its_actor_is_not_run_again_there_but_by_the_next_epoch() -> None:
    records: DedupTable[str] = DedupTable()
    first = arrived(records, 1)
    records.on_started(first, "invocation")
    records.on_answered(first, (b"died",), unknown=True)
    assert arrived(records, 1, repeat=True).answer == (b"died",)
    assert arrived(records, 1, repeat=True, target=("counter", 8)).state == "new"


def test_an_answer_of_an_earlier_epoch_is_replayed_although_the_actor_has_been_restarted() -> None:
    records: DedupTable[str] = DedupTable()
    first = arrived(records, 1)
    records.on_started(first, "invocation")
    records.on_answered(first, (b"five",))
    assert arrived(records, 1, repeat=True, target=("counter", 8)).answer == (b"five",)


def test_what_is_confirmed_is_forgotten_and_a_late_copy_of_it_is_refused() -> None:
    records: DedupTable[str] = DedupTable()
    for number in (1, 2):
        record = arrived(records, number)
        records.on_started(record, "invocation")
        records.on_answered(record, (b"answer",))
    assert records.confirm(3, []) == []
    assert records.size == 0
    assert isinstance(records.arrive(2, ACTOR, repeat=True), OutcomeUnknownError)
    assert isinstance(records.arrive(2, ACTOR, repeat=False), OutcomeUnknownError)


def test_a_running_call_that_its_client_gives_up_is_handed_out_to_be_cancelled() -> None:
    records: DedupTable[str] = DedupTable()
    first, second = arrived(records, 1), arrived(records, 2)
    records.on_started(first, "first")
    records.on_started(second, "second")
    assert records.confirm(1, [2]) == ["second"]
    records.on_answered(second, (b"too late",))
    assert set(records.records) == {1}
    assert records.give_up(1) == "first"
    records.on_answered(first, (b"too late",))
    assert not records.records
    assert records.size == 0


def test_over_the_bound_the_oldest_answers_go_and_their_repeats_are_refused_rather_than_run() -> (
    None
):
    records: DedupTable[str] = DedupTable(most_records=3)
    for number in range(1, 6):
        record = arrived(records, number)
        records.on_started(record, "invocation")
        records.on_answered(record, (b"answer",))
    assert len(records.records) == 3
    assert isinstance(records.arrive(1, ACTOR, repeat=True), OutcomeUnknownError)
    assert arrived(records, 5, repeat=True).state == "answered"
    # A repeat whose first attempt never arrived is no repeat here.
    assert arrived(records, 9, repeat=True).state == "new"


def test_with_nothing_but_running_calls_a_full_table_takes_no_more_of_them() -> None:
    records: DedupTable[str] = DedupTable(most_records=2)
    for number in (1, 2):
        records.on_started(arrived(records, number), "invocation")
    assert isinstance(records.arrive(3, ACTOR, repeat=False), MailboxFullError)
    assert arrived(records, 1, repeat=True).state == "running"


def test_large_answers_are_kept_only_up_to_the_bound_in_bytes() -> None:
    records: DedupTable[str] = DedupTable(most_bytes=10_000)
    for number in range(1, 20):
        record = arrived(records, number)
        records.on_started(record, "invocation")
        records.on_answered(record, (bytes(3_000),))
        assert records.size <= 10_000
    assert isinstance(records.arrive(1, ACTOR, repeat=True), OutcomeUnknownError)


def test_an_answer_larger_than_the_whole_table_is_not_kept() -> None:
    records: DedupTable[str] = DedupTable(most_bytes=1_000)
    record = arrived(records, 1)
    records.on_started(record, "invocation")
    records.on_answered(record, (bytes(5_000),))
    assert records.size == 0
    assert isinstance(records.arrive(1, ACTOR, repeat=True), OutcomeUnknownError)


def test_a_call_stays_on_record_without_the_bytes_of_an_answer_that_is_under_way() -> None:
    records: DedupTable[str] = DedupTable(most_records=2, most_bytes=1_000)
    record = arrived(records, 1)
    records.on_started(record, "invocation")
    records.on_answered(record, (bytes(100), bytes(5_000)), transfer="transfer")
    again = arrived(records, 1, repeat=True)
    assert (again.state, again.answer, again.transfer) == ("sent", (), "transfer")
    assert (records.size, records.kept) == (RECORD_BYTES, 0)
    answer(records, 2, 1)
    # Too many records: it goes before those that still have their answers.
    arrived(records, 3)
    assert isinstance(records.arrive(1, ACTOR, repeat=True), OutcomeUnknownError)
    assert arrived(records, 2, repeat=True).state == "answered"


def test_an_unknown_outcome_without_its_bytes_does_not_keep_the_next_epoch_from_running() -> None:
    records: DedupTable[str] = DedupTable(most_bytes=1_000)
    record = arrived(records, 1)
    records.on_started(record, "invocation")
    records.on_answered(record, (bytes(5_000),), unknown=True, transfer="transfer")
    assert arrived(records, 1, repeat=True).state == "sent"
    assert arrived(records, 1, repeat=True, target=("counter", 8)).state == "new"


@given(st.data(), st.integers(2, 8))
def test_no_call_runs_twice_and_every_repeat_is_answered_or_refused(
    data: st.DataObject, most_records: int
) -> None:
    records: DedupTable[int] = DedupTable(
        most_records=most_records, most_bytes=most_records * (RECORD_BYTES + 40)
    )
    confirmations = Confirmations()
    runs: Counter[int] = Counter()
    running: dict[int, CallRecord[int]] = {}
    open_calls: list[int] = []
    sent: set[int] = set()
    latest = 0

    def send(number: int) -> None:
        found = records.arrive(number, ACTOR, repeat=number in sent)
        sent.add(number)
        if not isinstance(found, CallRecord):
            return
        if found.state == "new":
            runs[number] += 1
            records.on_started(found, number)
            running[number] = found
        elif found.state == "answered":
            assert found.answer[0] == b"%d" % number
        elif found.state == "sent":
            assert (found.answer, found.transfer) == ((), number)
        else:
            assert found.invocation == number

    for _ in range(data.draw(st.integers(0, 60))):
        step = data.draw(st.sampled_from(["call", "lost call", "repeat", "end", "confirm"]))
        if step in ("call", "lost call"):
            latest += data.draw(st.integers(1, 3))
            confirmations.begin(latest)
            open_calls.append(latest)
            if step == "call":
                send(latest)
        elif step == "repeat" and open_calls:
            send(data.draw(st.sampled_from(open_calls)))
        elif step == "end" and running:
            number = data.draw(st.sampled_from(sorted(running)))
            answer = (b"%d" % number, bytes(data.draw(st.integers(0, 200))))
            transfer = data.draw(st.sampled_from([None, number]))
            records.on_answered(running.pop(number), answer, transfer=transfer)
        elif step == "confirm" and open_calls:
            number = data.draw(st.sampled_from(open_calls))
            open_calls.remove(number)
            due = confirmations.end(number)
            # One that is not due is sent a moment later.
            if due or data.draw(st.booleans()):
                for invocation in records.confirm(*confirmations.take()):
                    running.pop(invocation)
        assert len(records.records) <= most_records
        assert all(count == 1 for count in runs.values())
        # What a client still waits for and what runs for it is never forgotten.
        assert all(number in records.records for number in running if number in open_calls)
    for number in list(open_calls):
        if confirmations.end(number):
            records.confirm(*confirmations.take())
    records.confirm(*confirmations.take())
    assert not records.records
    assert records.size == 0


def test_one_long_call_does_not_hold_back_the_confirmation_of_those_after_it() -> None:
    confirmations = Confirmations()
    confirmations.begin(1)
    due = False
    for number in range(2, 2 + Confirmations.MOST_UNSAID):
        confirmations.begin(number)
        due = confirmations.end(number)
    assert due
    assert confirmations.take() == (1, list(range(2, 2 + Confirmations.MOST_UNSAID)))
    assert not confirmations.end(1)
    assert confirmations.take() == (2 + Confirmations.MOST_UNSAID, [])


def answer(records: DedupTable[str], number: int, size: int) -> None:
    record = arrived(records, number)
    records.on_started(record, "invocation")
    records.on_answered(record, (bytes(size),))


def test_tables_of_all_clients_are_bounded_together_and_each_keeps_a_share() -> None:
    total = RecordsTotal(most_records=300)
    flooding: DedupTable[str] = DedupTable(total=total)
    for number in range(1, 301):
        arrived(flooding, number)
    # All of them run, so none can be forgotten: the 301st is refused, and the client may try again.
    assert isinstance(flooding.arrive(301, ACTOR, repeat=False), MailboxFullError)
    other: DedupTable[str] = DedupTable(total=total)
    for number in range(1, LEAST_RECORDS + 1):
        arrived(other, number)
    assert isinstance(other.arrive(LEAST_RECORDS + 1, ACTOR, repeat=False), MailboxFullError)
    assert total.records == 300 + LEAST_RECORDS
    flooding.end()
    arrived(other, LEAST_RECORDS + 1)
    assert (total.records, total.bytes) == (LEAST_RECORDS + 1, other.size)


def test_a_full_total_forgets_the_oldest_answers_of_the_client_that_asks() -> None:
    total = RecordsTotal(most_records=2 * LEAST_RECORDS)
    records: DedupTable[str] = DedupTable(total=total)
    for number in range(1, 2 * LEAST_RECORDS + 2):
        answer(records, number, 1)
    assert total.records == 2 * LEAST_RECORDS
    assert isinstance(records.arrive(1, ACTOR, repeat=True), OutcomeUnknownError)


def test_bytes_of_answers_are_bounded_for_all_clients_together() -> None:
    total = RecordsTotal(most_bytes=10_000)
    one: DedupTable[str] = DedupTable(total=total)
    two: DedupTable[str] = DedupTable(total=total)
    answer(one, 1, 6_000)
    assert not total.is_over
    answer(two, 1, 6_000)
    assert total.is_over
    one.make_room()
    assert (total.is_over, one.kept, two.kept) == (False, 0, 1)
    two.confirm(2, [])
    assert (total.records, total.bytes) == (0, 0)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(["run", "answer", "refuse", "give up", "confirm", "end"]),
            st.integers(1, 30),
        )
    )
)
def test_the_total_is_the_sum_of_the_tables(steps: list[tuple[int, str, int]]) -> None:
    total = RecordsTotal(most_records=20, most_bytes=4_000)
    tables: list[DedupTable[str]] = [DedupTable(total=total) for _ in range(3)]
    for table, step, number in steps:
        records = tables[table]
        if step == "confirm":
            records.confirm(number, [number + 2])
        elif step == "end":
            records.end()
            tables[table] = DedupTable(total=total)
        elif step == "give up":
            records.give_up(number)
        else:
            record = records.arrive(number, ACTOR, repeat=False)
            if isinstance(record, CallRecord) and record.state == "new":
                records.on_started(record, "invocation")
                if step == "answer":
                    records.on_answered(record, (bytes(number * 50),))
                    records.make_room()
                elif step == "refuse":
                    records.on_not_executed(record)
        assert total.records == sum(len(one.records) for one in tables)
        assert (
            total.bytes
            == sum(one.size for one in tables)
            == sum(record.size for one in tables for record in one.records.values())
        )
