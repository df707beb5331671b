"""Call statistics: each outcome is counted once, and their number is bounded whatever is called."""

from __future__ import annotations

import pytest

from actors.errors import (
    CallError,
    CallTimeoutError,
    EncodeError,
    MailboxFullError,
    MethodNotFoundError,
    NodeDiedError,
    RemoteError,
)
from actors.method import Address
from runtime.statistics.call_statistics import (
    ALL_TIMED,
    BUSY_GAPS,
    GAPS,
    LONG_TURN_SECONDS,
    OTHER,
    SAMPLE,
    SATURATED_GAPS,
    UNKNOWN_CLASS,
    CallSampler,
    CallStatistics,
    MethodStatistics,
    class_of,
    reason_of,
)

PLACE = Address("counter", "n", 1, 1, "shop:Counter", True)


def pairs(statistics: CallStatistics) -> dict[tuple[str, str], MethodStatistics]:
    statistics.check_invariants()
    return {(one.class_path, one.method): one for one in statistics}


def test_each_outcome_is_counted_as_what_it_is() -> None:
    statistics = CallStatistics()
    statistics.returned(PLACE, "add", 0.001)
    statistics.failed(PLACE, "add", RemoteError("boom", actor="counter"), 0.001)
    statistics.failed(PLACE, "add", MailboxFullError("full"), 0.001)
    statistics.failed(PLACE, "add", MailboxFullError("full"), 0.001)
    statistics.failed(PLACE, "add", CallTimeoutError("late"), 2.0)
    statistics.failed(PLACE, "add", NodeDiedError("gone"), 0.2)
    statistics.failed(PLACE, "add", EncodeError("a lambda"), 0.0)
    statistics.failed(PLACE, "add", None, 0.5)
    one = pairs(statistics)["shop:Counter", "add"]
    assert (one.value, one.raised, one.cancelled) == (1, 1, 1)
    assert one.not_executed == {"MailboxFullError": 2, "EncodeError": 1}
    assert one.unknown == {"CallTimeoutError": 1, "NodeDiedError": 1}
    assert one.client.count == 8


def test_a_run_has_a_wait_and_a_turn() -> None:
    statistics = CallStatistics()
    statistics.ran(PLACE, "add", 0.2, 0.001)
    statistics.ran(PLACE, "add", 0.0, LONG_TURN_SECONDS * 2)
    statistics.ran_long(PLACE, "add")
    statistics.run_raised(PLACE, "add")
    one = pairs(statistics)["shop:Counter", "add"]
    assert (one.wait.total, one.turn.count, one.long_turns, one.server_raised) == (0.2, 2, 1, 1)
    assert one.server.total == one.wait.total + one.turn.total


def test_further_pairs_are_counted_together() -> None:
    statistics = CallStatistics(most=3)
    for number in range(100):
        statistics.returned(Address("a", "n", 1, 1, f"m:C{number}"), "get", 0.001)
        statistics.ran(PLACE, f"method_{number}", 0.0, 0.001)
    found = pairs(statistics)
    assert len(found) == 4
    other = found[OTHER, OTHER]
    assert other.value + other.turn.count == 200 - 3


def test_names_of_no_method_make_no_pairs() -> None:
    statistics = CallStatistics()
    statistics.returned(PLACE, "add", 0.001)
    for number in range(50):
        statistics.failed(PLACE, f"guess_{number}", MethodNotFoundError("no"), 0.001)
    found = pairs(statistics)
    assert set(found) == {("shop:Counter", "add"), (OTHER, OTHER)}
    assert found[OTHER, OTHER].not_executed == {"MethodNotFoundError": 50}


def test_reasons_are_classes_of_ours_alone() -> None:
    class UsersOwnError(MailboxFullError):
        pass

    assert reason_of(UsersOwnError("x")) == "MailboxFullError"
    assert reason_of(CallError("x")) == "CallError"
    assert reason_of(ValueError("x")) == OTHER


def test_services_are_known_by_their_names_and_actors_never_are() -> None:
    assert class_of(Address("@store-0123abcd", "n", 1)) == "@store"
    assert class_of(Address("@node", "n", 1)) == "@node"
    assert class_of(Address("customer-4711", "n", 1)) == UNKNOWN_CLASS
    assert class_of(PLACE) == "shop:Counter"


def test_an_answer_is_bounded_and_says_what_it_leaves_out() -> None:
    statistics = CallStatistics()
    for number in range(20):
        for _ in range(number + 1):
            statistics.ran(PLACE, f"m{number}", 0.0, 0.001)
    told = statistics.as_plain(5)
    assert [one["method"] for one in told["methods"]] == ["m19", "m18", "m17", "m16", "m15"]
    assert told["left_out"] == 15
    assert told["methods"][0]["turn"]["count"] == 20
    assert told["methods"][0]["client"] is None


@pytest.mark.parametrize(
    ("rate", "timed"),
    [(100, SAMPLE), (10_000, 2 * SAMPLE), (30_000, 8 * SAMPLE), (100_000, 32 * SAMPLE)],
)
def test_the_calls_that_are_timed_stand_for_all(rate: int, timed: int) -> None:
    sampler = CallSampler()
    weights, made = [], 0
    while made < 40_000:
        made += 1
        sampler.left -= 1
        if not sampler.left:
            weights.append(sampler.take(made / rate))
    # Of a method that is called seldom every call is known.
    assert weights[:ALL_TIMED] == [1] * ALL_TIMED
    assert made - max(SATURATED_GAPS) < sum(weights) <= made
    assert len(weights) == pytest.approx(ALL_TIMED + made / timed, rel=0.05)


def test_a_busy_method_that_slows_down_is_timed_more_often_again() -> None:
    sampler, now, gaps = CallSampler(), 0.0, []
    for number in range(4000):
        now += 0.0001 if number < 2000 else 1.0
        sampler.left -= 1
        if not sampler.left:
            sampler.take(now)
            gaps.append((number, sampler.left))
    assert {gap for number, gap in gaps if 1000 < number < 2000} <= set(BUSY_GAPS)
    assert {gap for number, gap in gaps if number > 2000 + max(BUSY_GAPS)} <= set(GAPS)


@pytest.mark.parametrize("rate", [100, 10_000, 100_000])
def test_calls_in_rounds_are_all_timed_now_and_then(rate: int) -> None:
    for length in range(1, 40):
        sampler, timed = CallSampler(), set[int]()
        for number in range(60 * (SAMPLE if rate < 100_000 else 32 * SAMPLE) * length):
            sampler.left -= 1
            if not sampler.left:
                sampler.take(number / rate)
                if number >= ALL_TIMED * length:
                    timed.add(number % length)
        assert timed == set(range(length))


def test_the_first_call_of_a_method_is_entered_with_its_outcome() -> None:
    statistics = CallStatistics(most=2)
    first, beside = (statistics.new(PLACE, "add") for _ in range(2))
    for one in (first, beside):
        timer = one.timed(one.made, 1.0)
        timer.ran(1.5)
        timer.answered(2.0)
        one.value += 1
    assert not pairs(statistics), "nothing is known of a method whose first call has not ended"
    statistics.enter(first)
    statistics.enter(beside)
    statistics.enter(first)
    assert pairs(statistics)["shop:Counter", "add"] is first
    assert (first.value, first.client.count, first.turn.count) == (2, 2, 2)
    assert (first.client.total, first.turn.total) == (2.0, 1.0)


def test_first_calls_of_no_method_or_of_one_too_many_are_counted_together() -> None:
    statistics = CallStatistics(most=1)
    for method in ("add", "one_too_many", "guess"):
        one = statistics.new(PLACE, method)
        one.fail(MethodNotFoundError("no") if method == "guess" else MailboxFullError("full"))
        statistics.enter(one)
    other = pairs(statistics)[OTHER, OTHER]
    assert other.not_executed == {"MailboxFullError": 1, "MethodNotFoundError": 1}
    other_node = CallStatistics().new(PLACE, "of_another_measurement")
    statistics.enter(other_node)
    assert not other_node.entered
