"""Keyed calls, without nodes: at most once for each key, within bounds that are said."""

from __future__ import annotations

import random

import pytest

from actors.errors import KeyReusedError, MailboxFullError
from runtime.plain_calls.keyed_calls import (
    CallKey,
    KeyedCall,
    KeyedCalls,
    PlainOutcome,
    fingerprint,
)

VALUE = PlainOutcome("value", b"1")
UNKNOWN = PlainOutcome("unknown", error={"type": "NodeDiedError", "message": "gone"})
REFUSED = PlainOutcome("not executed", error={"type": "MailboxFullError", "message": "full"})
MARK = fingerprint("add", b"1")


def key(number: int = 0, actor: str = "counter") -> CallKey:
    """A key."""
    return CallKey((actor, f"k{number}"))


def test_a_call_is_on_record_while_it_runs_and_after_it_has_ended() -> None:
    calls: KeyedCalls[str] = KeyedCalls()
    assert calls.find(key(), MARK, 0) is None
    call = calls.begin(key(), MARK, "run", 0)
    assert calls.find(key(), MARK, 1) is call
    assert call.run == "run"
    calls.on_ended(call, VALUE, 1)
    assert (call.run, call.outcome) == (None, VALUE)
    assert calls.find(key(), MARK, 24 * 3600) is call
    assert calls.find(key(), MARK, 24 * 3600 + 2) is None
    calls.check_invariants()


def test_another_request_with_the_key_is_refused_also_while_the_first_runs() -> None:
    calls: KeyedCalls[str] = KeyedCalls()
    calls.begin(key(), MARK, "run", 0)
    for other in (fingerprint("add", b"2"), fingerprint("sub", b"1")):
        with pytest.raises(KeyReusedError):
            calls.find(key(), other, 0)
    assert calls.find(key(actor="other"), fingerprint("sub", b""), 0) is None


def test_what_was_not_executed_leaves_nothing_but_an_earlier_doubt() -> None:
    calls: KeyedCalls[str] = KeyedCalls()
    call = calls.begin(key(), MARK, "run", 0)
    calls.on_ended(call, REFUSED, 0)
    assert len(calls) == 0
    call = calls.begin(key(), MARK, "run", 0)
    calls.on_ended(call, UNKNOWN, 0)
    calls.begin_again(call, "again")
    calls.on_ended(call, REFUSED, 0)
    assert call.outcome == UNKNOWN
    calls.begin_again(call, "again")
    calls.on_ended(call, VALUE, 0)
    assert calls.find(key(), MARK, 0) is call
    assert call.outcome == VALUE
    calls.check_invariants()


def test_a_young_record_is_never_pushed_out() -> None:
    calls: KeyedCalls[str] = KeyedCalls(most_calls=2)
    for number in range(2):
        calls.on_ended(calls.begin(key(number), MARK, "run", 0), VALUE, 0)
    with pytest.raises(MailboxFullError):
        calls.begin(key(2), MARK, "run", 59)
    assert calls.find(key(0), MARK, 59) is not None
    running = calls.begin(key(2), MARK, "run", 61)
    assert calls.find(key(0), MARK, 61) is None
    calls.begin(key(3), MARK, "run", 61)
    # What runs is not pushed out however long it takes.
    with pytest.raises(MailboxFullError):
        calls.begin(key(4), MARK, "run", 10_000)
    assert calls.find(key(2), MARK, 10_000) is running


def test_answers_go_before_records_do() -> None:
    calls: KeyedCalls[str] = KeyedCalls(most_bytes=25)
    for number in range(4):
        call = calls.begin(key(number), MARK, "run", 0)
        calls.on_ended(call, PlainOutcome("value", b"x" * 10), 0)
        calls.check_invariants()
    for number, outcome in enumerate(("unknown", "unknown", "value", "value")):
        found = calls.find(key(number), MARK, 0)
        assert found is not None
        assert found.outcome is not None
        assert found.outcome.outcome == outcome


def test_one_client_leaves_room_for_others() -> None:
    calls: KeyedCalls[str] = KeyedCalls(most_calls=64)
    numbers = iter(range(1000))
    refusals: list[tuple[str, bool]] = []

    def begun(client: str, now: float) -> int:
        """How many calls with keys a client can make in one moment."""
        for count in range(100):
            try:
                call = calls.begin(key(next(numbers)), MARK, "run", now, None, client)
            except MailboxFullError as error:
                refusals.append((client, " of them of this client" in str(error)))
                return count
            calls.on_ended(call, VALUE, now)
            calls.check_invariants()
        raise AssertionError

    assert [begun(client, 0) for client in ("ann", "ben", "cid")] == [32, 16, 8]
    assert begun("ann", 59) == 0
    # Nodes have the whole table.
    assert begun("", 59) == 8
    # After a minute the oldest make room, whosever they are; those of the nodes are young.
    assert [begun(client, 61) for client in ("ann", "ben")] == [28, 14]
    assert all(told == bool(client) for client, told in refusals)


def test_one_clients_answers_push_out_its_own_first() -> None:
    calls: KeyedCalls[str] = KeyedCalls(most_bytes=100)
    begun = list[KeyedCall[str]]()
    for number, client in enumerate(["ben", "ben", *["ann"] * 20, "ben", "", "cid"]):
        call = calls.begin(key(number), MARK, "run", 0, None, client)
        calls.on_ended(call, PlainOutcome("value", b"x" * 10), 0)
        calls.check_invariants()
        begun.append(call)
    kept = [call.client for call in begun if call.outcome and call.outcome.outcome == "value"]
    # Others push out the oldest, whosever it is.
    assert kept == [*["ann"] * 7, "ben", "", "cid"]


@pytest.mark.parametrize("seed", range(20))
def test_no_key_runs_twice_while_it_is_on_record(seed: int) -> None:
    chance = random.Random(seed)
    calls: KeyedCalls[int] = KeyedCalls(
        most_calls=8, most_bytes=40, least_seconds=5, most_seconds=50
    )
    now, ended = 0.0, dict[CallKey, float]()
    running = set[CallKey]()
    for _ in range(500):
        now += chance.random()
        name = key(chance.randrange(12))
        found = calls.find(name, MARK, now)
        if name in running:
            assert found is not None
            assert found.run is not None
            if chance.random() < 0.6:
                running.discard(name)
                outcome = chance.choice([VALUE, UNKNOWN, REFUSED, PlainOutcome("value", b"x" * 9)])
                before = found.outcome
                calls.on_ended(found, outcome, now)
                if outcome is not REFUSED or before is not None:
                    ended[name] = now
                else:
                    ended.pop(name, None)
        elif found is None:
            assert now - ended.get(name, -100.0) >= 5, "a young record is kept"
            try:
                calls.begin(name, MARK, 1, now, None, chance.choice(["", "ann", "ben"]))
            except MailboxFullError:
                continue
            running.add(name)
        elif found.outcome is not None and found.outcome.outcome == "unknown":
            calls.begin_again(found, 1)
            running.add(name)
        calls.check_invariants()
