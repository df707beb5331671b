"""At most once: what is recorded of repeatable calls, under loss, repetition, confirmation and full tables."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from actors.errors import MailboxFullError, OutcomeUnknownError
from runtime.calls.outgoing import Confirmations
from runtime.calls.records import RECORD_BYTES, CallRecords, Record

ACTOR = ("counter", 7)


def arrived(records: CallRecords[str], number: int, *, repeat: bool = False, target: tuple[str, int] = ACTOR) -> Record[str]:
    record = records.arrive(number, target, repeat=repeat)
    assert isinstance(record, Record)
    return record


def test_a_repeat_while_the_call_runs_is_attached_to_that_run() -> None:
    records: CallRecords[str] = CallRecords()
    first = arrived(records, 1)
    assert first.state == "new"
    records.started(first, "job")
    again = arrived(records, 1, repeat=True)
    assert (again.state, again.job) == ("running", "job")


def test_a_repeat_after_the_answer_was_lost_gets_that_answer() -> None:
    records: CallRecords[str] = CallRecords()
    first = arrived(records, 1)
    records.started(first, "job")
    records.answered(first, (b"answer", b"segment"))
    again = arrived(records, 1, repeat=True)
    assert (again.state, again.answer) == ("answered", (b"answer", b"segment"))


def test_a_call_that_was_refused_runs_when_it_is_made_again() -> None:
    records: CallRecords[str] = CallRecords()
    records.not_executed(arrived(records, 1))
    assert arrived(records, 1, repeat=True).state == "new"


def test_a_call_that_died_with_its_actor_is_not_run_again_there_but_by_the_next_epoch() -> None:
    records: CallRecords[str] = CallRecords()
    first = arrived(records, 1)
    records.started(first, "job")
    records.answered(first, (b"died",), unknown=True)
    assert arrived(records, 1, repeat=True).answer == (b"died",)
    assert arrived(records, 1, repeat=True, target=("counter", 8)).state == "new"


def test_an_answer_of_an_earlier_epoch_is_replayed_although_the_actor_has_been_restarted() -> None:
    records: CallRecords[str] = CallRecords()
    first = arrived(records, 1)
    records.started(first, "job")
    records.answered(first, (b"five",))
    assert arrived(records, 1, repeat=True, target=("counter", 8)).answer == (b"five",)


def test_what_is_confirmed_is_forgotten_and_a_late_copy_of_it_is_refused() -> None:
    records: CallRecords[str] = CallRecords()
    for number in (1, 2):
        record = arrived(records, number)
        records.started(record, "job")
        records.answered(record, (b"answer",))
    assert records.confirm(3, []) == []
    assert records.size == 0
    assert isinstance(records.arrive(2, ACTOR, repeat=True), OutcomeUnknownError)
    assert isinstance(records.arrive(2, ACTOR, repeat=False), OutcomeUnknownError)


def test_a_running_call_that_its_client_wants_no_more_is_handed_out_to_be_cancelled_and_leaves_nothing_behind() -> None:
    records: CallRecords[str] = CallRecords()
    first, second = arrived(records, 1), arrived(records, 2)
    records.started(first, "first")
    records.started(second, "second")
    assert records.confirm(1, [2]) == ["second"]
    records.answered(second, (b"too late",))
    assert set(records.records) == {1}
    assert records.give_up(1) == "first"
    records.answered(first, (b"too late",))
    assert not records.records
    assert records.size == 0


def test_over_the_bound_the_oldest_answers_go_and_their_repeats_are_refused_rather_than_run() -> None:
    records: CallRecords[str] = CallRecords(most_records=3)
    for number in range(1, 6):
        record = arrived(records, number)
        records.started(record, "job")
        records.answered(record, (b"answer",))
    assert len(records.records) == 3
    assert isinstance(records.arrive(1, ACTOR, repeat=True), OutcomeUnknownError)
    assert arrived(records, 5, repeat=True).state == "answered"
    # A repeat whose first attempt never arrived is no repeat here.
    assert arrived(records, 9, repeat=True).state == "new"


def test_with_nothing_but_running_calls_a_full_table_takes_no_more_of_them() -> None:
    records: CallRecords[str] = CallRecords(most_records=2)
    for number in (1, 2):
        records.started(arrived(records, number), "job")
    assert isinstance(records.arrive(3, ACTOR, repeat=False), MailboxFullError)
    assert arrived(records, 1, repeat=True).state == "running"


def test_large_answers_are_kept_only_up_to_the_bound_in_bytes() -> None:
    records: CallRecords[str] = CallRecords(most_bytes=10_000)
    for number in range(1, 20):
        record = arrived(records, number)
        records.started(record, "job")
        records.answered(record, (bytes(3_000),))
        assert records.size <= 10_000
    assert isinstance(records.arrive(1, ACTOR, repeat=True), OutcomeUnknownError)


def test_an_answer_larger_than_the_whole_table_is_not_kept() -> None:
    records: CallRecords[str] = CallRecords(most_bytes=1_000)
    record = arrived(records, 1)
    records.started(record, "job")
    records.answered(record, (bytes(5_000),))
    assert records.size == 0
    assert isinstance(records.arrive(1, ACTOR, repeat=True), OutcomeUnknownError)


@given(st.data(), st.integers(2, 8))
def test_no_call_runs_twice_and_every_repeat_is_answered_or_refused(data: st.DataObject, most_records: int) -> None:
    records: CallRecords[int] = CallRecords(most_records=most_records, most_bytes=most_records * (RECORD_BYTES + 40))
    confirmations = Confirmations()
    runs: Counter[int] = Counter()
    running: dict[int, Record[int]] = {}
    open_calls: list[int] = []
    sent: set[int] = set()
    latest = 0

    def send(number: int) -> None:
        found = records.arrive(number, ACTOR, repeat=number in sent)
        sent.add(number)
        if not isinstance(found, Record):
            return
        if found.state == "new":
            runs[number] += 1
            records.started(found, number)
            running[number] = found
        elif found.state == "answered":
            assert found.answer == (b"%d" % number,)
        else:
            assert found.job == number

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
            records.answered(running.pop(number), (b"%d" % number,))
        elif step == "confirm" and open_calls:
            number = data.draw(st.sampled_from(open_calls))
            open_calls.remove(number)
            if confirmations.end(number):
                for job in records.confirm(*confirmations.take()):
                    running.pop(job)
        assert len(records.records) <= most_records
        assert all(count == 1 for count in runs.values())
        # What a client still waits for and what runs for it is never forgotten.
        assert all(number in records.records for number in running if number in open_calls)
    for number in list(open_calls):
        if confirmations.end(number):
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
    assert confirmations.end(1)
    assert confirmations.take() == (2 + Confirmations.MOST_UNSAID, [])
