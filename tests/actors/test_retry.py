"""The retry policy's arithmetic, the budget's bound on the load, and the schedule's promises about
deadlines, outcomes and repeats.
"""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import (
    ActorDiedError,
    ActorNotFoundError,
    BadArgumentsError,
    CallTimeoutError,
    MailboxFullError,
    NodeUnreachableError,
    NotExecutedError,
    Outcome,
    RemoteError,
    ReplyDecodeError,
    ReplyEncodeError,
    StaleEpochError,
)
from actors.messages import message_type
from actors.retry import KEPT_ATTEMPTS, GiveUp, Retry, RetryBudget, RetryPolicy, RetrySchedule

NAN = math.nan
INFINITY = math.inf

DRAWS = st.floats(0, 1, exclude_max=True)
POLICIES = st.builds(
    RetryPolicy,
    max_retries=st.integers(0, 10**6),
    initial_delay=st.floats(0, 1e308),
    backoff=st.floats(1, 1e308),
    max_delay=st.floats(0, 1e308),
    jitter=st.floats(0, 1),
    attempt_timeout=st.none() | st.floats(1e-6, 1e6),
    attempt_backoff=st.floats(1, 1e308),
)


def schedule(
    policy: RetryPolicy | None = None,
    *,
    idempotent: bool = False,
    deadline: float = INFINITY,
    now: float = 0.0,
) -> RetrySchedule:
    return RetrySchedule(
        policy or RetryPolicy(jitter=0), idempotent=idempotent, deadline=deadline, now=now
    )


def test_delays_grow_by_the_backoff_from_the_initial_one_up_to_the_longest() -> None:
    policy = RetryPolicy(jitter=0)
    assert [policy.delay(n, 0.5) for n in range(1, 5)] == [1.0, 1.5, 2.25, 3.375]
    assert policy.delay(9, 0.5) == pytest.approx(1.5**8)
    assert policy.delay(10, 0.5) == 30.0


def test_jitter_spreads_a_delay_evenly_to_both_sides() -> None:
    policy = RetryPolicy(initial_delay=10, jitter=0.2)
    assert policy.delay(1, 0.0) == pytest.approx(8)
    assert policy.delay(1, 0.5) == pytest.approx(10)
    assert policy.delay(1, 0.9999999) == pytest.approx(12)


def test_delays_at_the_longest_are_still_spread_so_that_clients_do_not_come_back_together() -> None:
    policy = RetryPolicy(initial_delay=30, jitter=0.2)
    delays = [policy.delay(50, n / 100) for n in range(100)]
    assert len(set(delays)) == 100
    assert min(delays) == pytest.approx(24)
    assert max(delays) <= 30


@given(POLICIES, st.integers(1, 10**30), DRAWS)
def test_every_delay_is_a_number_inside_its_band_and_never_beyond_the_longest(
    policy: RetryPolicy, attempt: int, draw: float
) -> None:
    delay = policy.delay(attempt, draw)
    assert 0 <= delay <= policy.max_delay
    try:
        middle = min(policy.max_delay, policy.initial_delay * policy.backoff ** (attempt - 1))
    except OverflowError:
        middle = (
            policy.max_delay
            if policy.initial_delay and policy.backoff > 1
            else policy.initial_delay
        )
    if not math.isnan(middle):
        middle = min(middle, policy.max_delay)
        assert (
            middle * (1 - policy.jitter) * 0.999999
            <= delay
            <= middle * (1 + policy.jitter) * 1.000001
        )


@given(POLICIES, st.integers(1, 100), DRAWS)
def test_a_later_delay_of_the_same_draw_is_never_shorter(
    policy: RetryPolicy, attempt: int, draw: float
) -> None:
    assert policy.delay(attempt + 1, draw) >= policy.delay(attempt, draw) * 0.999999


def test_the_delay_after_an_absurd_number_of_attempts_is_the_longest() -> None:
    assert RetryPolicy(jitter=0).delay(10**400, 0.5) == 30.0
    assert RetryPolicy(jitter=0, backoff=2, initial_delay=3).delay(10**9, 0.5) == 30.0
    assert RetryPolicy(jitter=0, backoff=1).delay(10**400, 0.5) == 1.0
    assert RetryPolicy(jitter=0, initial_delay=0).delay(10**400, 0.5) == 0.0


@pytest.mark.parametrize("attempt", [0, -1])
def test_there_is_no_delay_before_the_first_failure(attempt: int) -> None:
    with pytest.raises(ValueError, match=f"attempt must be at least 1.*{attempt}"):
        RetryPolicy().delay(attempt, 0.5)


@pytest.mark.parametrize("draw", [-0.1, 1.0, NAN])
def test_a_draw_outside_its_range_is_refused(draw: float) -> None:
    with pytest.raises(ValueError, match="draw must be in"):
        RetryPolicy().delay(1, draw)


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("max_retries", -1, ValueError),
        ("max_retries", 1.0, TypeError),
        ("max_retries", True, TypeError),
        ("max_retries", "3", TypeError),
        ("max_retries", None, TypeError),
        ("initial_delay", -0.001, ValueError),
        ("initial_delay", NAN, ValueError),
        ("initial_delay", INFINITY, ValueError),
        ("initial_delay", True, TypeError),
        ("initial_delay", "1", TypeError),
        ("backoff", 0.999, ValueError),
        ("backoff", 0, ValueError),
        ("backoff", NAN, ValueError),
        ("backoff", INFINITY, ValueError),
        ("backoff", False, TypeError),
        ("max_delay", -1, ValueError),
        ("max_delay", NAN, ValueError),
        ("max_delay", INFINITY, ValueError),
        ("max_delay", 10**400, ValueError),
        ("max_delay", None, TypeError),
        ("jitter", -0.1, ValueError),
        ("jitter", 1.1, ValueError),
        ("jitter", NAN, ValueError),
        ("jitter", True, TypeError),
        ("attempt_timeout", 0, ValueError),
        ("attempt_timeout", -1.0, ValueError),
        ("attempt_timeout", NAN, ValueError),
        ("attempt_timeout", INFINITY, ValueError),
        ("attempt_timeout", True, TypeError),
        ("attempt_backoff", 0.9, ValueError),
        ("attempt_backoff", "2", TypeError),
        ("repeat_unknown", 1, TypeError),
        ("repeat_unknown", None, TypeError),
        ("retry_on", 3, TypeError),
        ("retry_on", (3,), TypeError),
        ("retry_on", (int,), TypeError),
        ("retry_on", KeyboardInterrupt, TypeError),
        ("retry_on", "ValueError", TypeError),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_with_the_field_and_the_value(
    field: str, value: object, error: type[Exception]
) -> None:
    arguments: dict[str, Any] = {field: value}
    with pytest.raises(error) as caught:
        RetryPolicy(**arguments)
    assert field in str(caught.value)
    shown = value[0] if isinstance(value, tuple) else value
    assert repr(shown) in str(caught.value)


def test_a_policy_can_be_sent_and_made_again_from_its_fields() -> None:
    policy = RetryPolicy(retry_on=(ConnectionError, RemoteError), max_retries=7)
    described = message_type(RetryPolicy)
    assert described is not None
    assert (
        RetryPolicy(**{argument: getattr(policy, name) for name, argument in described.fields})
        == policy
    )
    assert all(isinstance(path, str) for path in policy.retry_on)


def test_an_attempt_that_was_not_executed_is_repeated_until_the_retries_are_used_up() -> None:
    calls = schedule()
    now = 0.0
    decisions = []
    for _ in range(4):
        decision = calls.failed("not executed", NodeUnreachableError("no way"), now, 0.5)
        decisions.append(decision)
        if isinstance(decision, Retry):
            now = decision.at
            assert calls.begin(now)
    assert decisions == [Retry(1.0), Retry(2.5), Retry(4.75), GiveUp("retries used up")]
    assert calls.total == 4


def test_delays_count_from_the_failure_not_from_the_start_of_the_attempt() -> None:
    assert schedule().failed("not executed", MailboxFullError(), 7.0, 0.5) == Retry(8.0)


def test_without_retries_the_first_failure_is_the_last() -> None:
    assert schedule(RetryPolicy(max_retries=0)).failed(
        "not executed", MailboxFullError(), 0.0, 0.5
    ) == GiveUp("retries used up")


def test_what_may_have_run_is_not_repeated() -> None:
    assert schedule().failed("unknown", ActorDiedError(), 0.0, 0.5) == GiveUp("not repeatable")


def test_what_may_have_run_is_repeated_if_the_method_is_idempotent() -> None:
    assert schedule(idempotent=True).failed("unknown", ActorDiedError(), 0.0, 0.5) == Retry(1.0)


def test_what_may_have_run_is_repeated_if_the_caller_says_so() -> None:
    policy = RetryPolicy(jitter=0, repeat_unknown=True)
    assert schedule(policy).failed("unknown", ActorDiedError(), 0.0, 0.5) == Retry(1.0)


@pytest.mark.parametrize("error", [ActorNotFoundError("gone"), BadArgumentsError("too many")])
def test_a_refusal_that_a_repeat_would_meet_again_is_final(error: Exception) -> None:
    budget = RetryBudget()
    assert schedule(idempotent=True).failed("not executed", error, 0.0, 0.5, budget) == GiveUp(
        "not repeatable"
    )
    assert budget.tokens == 10


@pytest.mark.parametrize("error", [ReplyDecodeError("odd"), ReplyEncodeError("a socket")])
def test_what_has_answered_is_not_repeated_and_is_no_failure_of_its_target(
    error: Exception,
) -> None:
    budget = RetryBudget()
    budget.failed()
    policy = RetryPolicy(max_retries=5, repeat_unknown=True)
    calls = schedule(policy, idempotent=True)
    decision = calls.failed("unknown", error, 0.0, 0.5, budget)
    assert decision == GiveUp("not repeatable")
    assert calls.explain(decision, budget) == "a repeat would end in the same way"
    assert budget.tokens > 9


class _RemoteValueError(RemoteError, ValueError):
    """As the runtime makes them: of the remote type and a `RemoteError`."""


def test_what_the_method_raised_is_repeated_only_where_the_policy_lists_it() -> None:
    error = _RemoteValueError("bad")
    assert schedule(idempotent=True).failed("raised", error, 0.0, 0.5) == GiveUp("not repeatable")
    assert schedule(RetryPolicy(jitter=0, retry_on=KeyError)).failed(
        "raised", error, 0.0, 0.5
    ) == GiveUp("not repeatable")
    assert schedule(RetryPolicy(jitter=0, retry_on=(KeyError, ValueError))).failed(
        "raised", error, 0.0, 0.5
    ) == Retry(1.0)
    assert schedule(RetryPolicy(jitter=0, retry_on=[Exception])).failed(
        "raised", error, 0.0, 0.5
    ) == Retry(1.0)


def test_an_exception_type_that_is_not_importable_here_is_matched_by_its_path() -> None:
    error = RemoteError("bad")
    error.remote_type = "their.module:Busy"
    assert schedule(RetryPolicy(jitter=0, retry_on="their.module:Busy")).failed(
        "raised", error, 0.0, 0.5
    ) == Retry(1.0)


def test_no_attempt_starts_at_or_after_the_deadline() -> None:
    assert schedule(deadline=1.0).failed("not executed", MailboxFullError(), 0.0, 0.5) == GiveUp(
        "deadline"
    )
    assert schedule(deadline=1.0001).failed("not executed", MailboxFullError(), 0.0, 0.5) == Retry(
        1.0
    )
    late = schedule(deadline=2.0)
    assert late.failed("not executed", MailboxFullError(), 0.0, 0.5) == Retry(1.0)
    assert not late.begin(2.0)
    assert late.begin(1.9999)


STEPS = st.tuples(
    st.sampled_from(["not executed", "unknown", "raised"]),
    st.booleans(),
    st.floats(0, 10),
    st.floats(0, 1),
    DRAWS,
)
"""How an attempt ends, whether that is a mere wait, seconds it took, seconds by which the next one
starts late, and the draw.
"""


@given(policy=POLICIES, deadline=st.floats(0.01, 1e6), steps=st.lists(STEPS, max_size=60))
def test_whatever_happens_attempts_stay_before_the_deadline_and_counted_ones_within_the_limit(
    policy: RetryPolicy, deadline: float, steps: list[tuple[Outcome, bool, float, float, float]]
) -> None:
    calls = schedule(policy, idempotent=True, deadline=deadline)
    now = 0.0
    counted = 0
    for outcome, uncounted, taken, late, draw in steps:
        now += taken
        uncounted = uncounted and outcome == "not executed"
        decision = calls.failed(outcome, NodeUnreachableError(), now, draw, uncounted=uncounted)
        counted += not uncounted
        if isinstance(decision, GiveUp):
            return
        assert now <= decision.at < deadline
        assert counted <= policy.max_retries
        now = decision.at + late
        if not calls.begin(now):
            assert now >= deadline
            return
        assert now < deadline
        assert calls.attempt_deadline <= deadline


def test_a_wait_for_an_actor_that_is_being_restarted_uses_up_neither_retries_nor_tokens() -> None:
    calls = schedule(RetryPolicy(max_retries=1, jitter=0))
    budget = RetryBudget()
    now = 0.0
    for _ in range(500):
        decision = calls.failed(
            "not executed",
            NodeUnreachableError("being restarted"),
            now,
            0.5,
            budget,
            uncounted=True,
        )
        assert isinstance(decision, Retry)
        assert now < decision.at <= now + 1.2
        now = decision.at
        assert calls.begin(now)
    assert budget.tokens == 10
    assert calls.failed("not executed", MailboxFullError(), now, 0.5, budget) == Retry(now + 1.0)


def test_a_wait_for_an_actor_looks_again_soon_at_first() -> None:
    decision = schedule().failed("not executed", NodeUnreachableError(), 0.0, 0.5, uncounted=True)
    assert isinstance(decision, Retry)
    assert decision.at == pytest.approx(0.01)


def test_a_wait_for_an_actor_goes_on_until_just_before_the_deadline() -> None:
    calls = schedule(deadline=10.0)
    now = 0.0
    for _ in range(1000):
        decision = calls.failed("not executed", NodeUnreachableError(), now, 0.5, uncounted=True)
        if isinstance(decision, GiveUp):
            break
        assert decision.at < 10.0
        now = decision.at
        assert calls.begin(now)
    assert decision == GiveUp("deadline")
    assert now > 9.99
    assert calls.total < 60


def test_an_attempt_that_was_handed_over_is_never_a_mere_wait() -> None:
    with pytest.raises(ValueError, match="uses up a retry"):
        schedule(idempotent=True).failed("unknown", ActorDiedError(), 0.0, 0.5, uncounted=True)


def test_an_attempt_ends_at_its_own_timeout_or_at_the_calls_deadline_whichever_is_first() -> None:
    calls = schedule(RetryPolicy(attempt_timeout=2.0, jitter=0), idempotent=True, deadline=5.0)
    assert calls.attempt_deadline == 2.0
    assert calls.failed("unknown", CallTimeoutError(), 2.0, 0.5) == Retry(3.0)
    assert calls.begin(4.0)
    assert calls.attempt_deadline == 5.0


def test_an_attempt_after_unanswered_ones_has_more_time() -> None:
    policy = RetryPolicy(
        max_retries=10**6, initial_delay=0, attempt_timeout=0.25, attempt_backoff=2.0
    )
    calls = schedule(policy, idempotent=True)
    limits = []
    for _ in range(7):
        limits.append(calls.attempt_limit)
        calls.failed("unknown", CallTimeoutError(), calls.attempt_deadline, 0.5)
        calls.begin(calls.attempts[-1].ended)
    assert limits == [0.25, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    calls = schedule(policy, idempotent=True)
    calls.failed("not executed", NodeUnreachableError(), 0.1, 0.5)
    assert calls.attempt_limit == 0.25, "an answer was not what it lacked"


@given(POLICIES, st.integers(0, 10**9))
def test_an_attempt_has_its_timeout_at_least_and_sixteen_times_that_at_most(
    policy: RetryPolicy, unanswered: int
) -> None:
    limit = policy.attempt_limit(unanswered)
    if policy.attempt_timeout is None:
        assert limit == math.inf
    else:
        assert policy.attempt_timeout <= limit <= 16 * policy.attempt_timeout * (1 + 1e-9)


def test_a_call_that_may_have_run_once_stays_unknown_when_its_repeats_are_refused() -> None:
    calls = schedule(idempotent=True)
    calls.failed("not executed", MailboxFullError(), 0.0, 0.5)
    assert calls.outcome == "not executed"
    calls.failed("unknown", ActorDiedError(), 1.0, 0.5)
    calls.failed("not executed", MailboxFullError(), 2.0, 0.5)
    assert calls.outcome == "unknown"
    calls.failed("raised", RemoteError(), 3.0, 0.5)
    assert calls.outcome == "raised"


def test_the_history_names_each_attempt_with_its_error_and_time() -> None:
    calls = schedule()
    calls.failed("not executed", MailboxFullError("counter is full"), 0.25, 0.5)
    calls.begin(1.25)
    calls.failed("not executed", NodeUnreachableError("w1 does not answer"), 3.25, 0.5)
    assert calls.history().splitlines() == [
        "attempt 1, after 0.250 s: MailboxFullError: counter is full",
        "attempt 2, after 2.000 s: NodeUnreachableError: w1 does not answer",
    ]
    assert [(a.number, a.started, a.ended, a.counted) for a in calls.attempts] == [
        (1, 0.0, 0.25, True),
        (2, 1.25, 3.25, True),
    ]


def test_the_history_of_a_call_that_waits_for_ever_is_bounded() -> None:
    calls = schedule()
    for n in range(1000):
        calls.failed("not executed", NodeUnreachableError(), float(n), 0.5, uncounted=True)
    assert len(calls.attempts) == KEPT_ATTEMPTS
    assert calls.attempts[-1].number == calls.total == 1000
    assert calls.history().startswith(f"{1000 - KEPT_ATTEMPTS} earlier attempts")


def test_the_budget_allows_retries_only_while_more_than_half_is_left() -> None:
    budget = RetryBudget()
    for left in (9, 8, 7, 6):
        budget.failed()
        assert budget.tokens == left
        assert budget.allows_retries
    budget.failed()
    assert budget.tokens == 5
    assert not budget.allows_retries
    budget.succeeded()
    assert budget.allows_retries


def test_the_budget_neither_overflows_nor_goes_below_nothing() -> None:
    budget = RetryBudget()
    budget.succeeded()
    assert budget.tokens == 10
    for _ in range(100):
        budget.failed()
    assert budget.tokens == 0
    for _ in range(50):
        assert not budget.allows_retries
        budget.succeeded()
    assert budget.tokens == 5
    assert not budget.allows_retries
    budget.succeeded()
    assert budget.allows_retries


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("tokens", 0, ValueError),
        ("tokens", NAN, ValueError),
        ("tokens", True, TypeError),
        ("per_success", -1, ValueError),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(
    field: str, value: float, error: type[Exception]
) -> None:
    with pytest.raises(error, match=field):
        RetryBudget(**{field: value})


def test_an_empty_budget_ends_a_calls_retries() -> None:
    budget = RetryBudget()
    for _ in range(5):
        budget.failed()
    assert schedule().failed("not executed", MailboxFullError(), 0.0, 0.5, budget) == GiveUp(
        "budget used up"
    )


def test_a_death_is_one_failure_however_many_calls_it_ends() -> None:
    budget = RetryBudget()
    for _ in range(1_000):
        assert isinstance(
            schedule(idempotent=True).failed(
                "unknown", ActorDiedError(), 0.0, 0.5, budget, incident=("node", 1, 7)
            ),
            Retry,
        )
    assert budget.tokens == 9
    for epoch in range(8, 11):
        schedule(idempotent=True).failed(
            "unknown", ActorDiedError(), 0.0, 0.5, budget, incident=("node", 1, epoch)
        )
    # Those who learn of an earlier one late do not count it again.
    schedule(idempotent=True).failed(
        "unknown", ActorDiedError(), 0.0, 0.5, budget, incident=("node", 1, 7)
    )
    assert budget.tokens == 6
    decision = schedule(idempotent=True).failed(
        "unknown", ActorDiedError(), 0.0, 0.5, budget, incident=("node", 1, 11)
    )
    assert decision == GiveUp("budget used up")


def test_failures_that_are_no_common_one_count_each() -> None:
    budget = RetryBudget()
    for _ in range(4):
        assert isinstance(
            schedule(idempotent=True).failed("unknown", CallTimeoutError(), 0.0, 0.5, budget), Retry
        )
    assert schedule(idempotent=True).failed(
        "unknown", CallTimeoutError(), 0.0, 0.5, budget
    ) == GiveUp("budget used up")


def test_what_certainly_did_not_run_is_free_also_when_the_budget_is_used_up() -> None:
    budget = RetryBudget()
    for _ in range(10):
        budget.failed()
    for error in (NodeUnreachableError(), StaleEpochError(), NotExecutedError("the store is away")):
        assert isinstance(schedule().failed("not executed", error, 0.0, 0.5, budget), Retry)
    assert budget.tokens == 0
    # But for what is turned away because there is too much of it.
    assert schedule().failed("not executed", MailboxFullError(), 0.0, 0.5, budget) == GiveUp(
        "budget used up"
    )


def test_without_a_budget_only_the_policy_bounds_the_repeats() -> None:
    calls = schedule(RetryPolicy(max_retries=50, initial_delay=0, budget=None), idempotent=True)
    decisions = [calls.failed("unknown", CallTimeoutError(), 0.0, 0.5, None) for _ in range(51)]
    assert decisions == [Retry(0.0)] * 50 + [GiveUp("retries used up")]


def test_why_there_is_no_further_attempt_is_said_with_what_to_do() -> None:
    budget = RetryBudget(tokens=4)
    calls = schedule(RetryPolicy(max_retries=5), idempotent=True)
    for _ in range(2):
        decision = calls.failed("unknown", ActorDiedError(), 0.0, 0.5, budget)
    assert isinstance(decision, GiveUp)
    text = calls.explain(decision, budget)
    assert "2 of 4 tokens are left" in text
    assert "RetryPolicy(budget=None)" in text
    careful = schedule(RetryPolicy(max_retries=5))
    decision = careful.failed("unknown", ActorDiedError(), 0.0, 0.5)
    assert isinstance(decision, GiveUp)
    assert "repeat_unknown=True" in careful.explain(decision, None)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (0, ValueError),
        (-1.0, ValueError),
        (math.inf, ValueError),
        (True, TypeError),
        ("5", TypeError),
    ],
)
def test_a_policy_with_a_budget_that_makes_no_sense_is_refused(
    value: object, error: type[Exception]
) -> None:
    with pytest.raises(error, match="budget"):
        RetryPolicy(budget=value)  # type: ignore[arg-type]


def test_a_method_that_raises_is_no_failure_of_its_target() -> None:
    budget = RetryBudget()
    budget.failed()
    schedule().failed("raised", RemoteError(), 0.0, 0.5, budget)
    assert budget.tokens == 9.1


def load(offered: int, budget: RetryBudget, failing: float, generator: random.Random) -> int:
    """Attempts that reach a target which fails this share of them, when so many calls are made with
    ten retries each.
    """
    attempts = 0
    for number in range(offered):
        calls = schedule(RetryPolicy(max_retries=10), now=float(number))
        for step in itertools.count():
            attempts += 1
            if generator.random() >= failing:
                budget.succeeded()
                break
            if isinstance(
                calls.failed("not executed", MailboxFullError(), number + step / 100, 0.5, budget),
                GiveUp,
            ):
                break
    return attempts


def test_retries_keep_the_load_at_most_at_1_1_times_the_offered_one_when_everything_fails() -> None:
    budget, generator = RetryBudget(), random.Random(1)
    assert load(1_000, budget, 1.0, generator) <= 1_000 + 5
    assert load(1_000, budget, 1.0, generator) == 1_000


@given(failing=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_retries_keep_the_load_at_most_at_1_1_times_the_offered_one_whatever_share_fails(
    failing: float, seed: int
) -> None:
    assert load(300, RetryBudget(), failing, random.Random(seed)) <= 300 * 1.1 + 5
