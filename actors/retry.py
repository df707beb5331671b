"""The retry policy and its schedule: when, how often and whether a call may be made again.

Pure: times are seconds on any monotonic clock, chance comes in as a number. Three parts, each of
its own:

- `RetryPolicy` is what a user says: how many retries, how long between them.
- `RetryBudget` is kept per target and stops retries while most calls to it fail (gRPC's proposal
  A6, "retry throttling"). What certainly did not run is free, as A6's transparent retries are,
  unless its target turned it away for having too much to do; and however many calls fail by one
  death, that is one failure.
- `RetrySchedule` is one call's history: it takes each failed attempt and decides `Retry` or
  `GiveUp`.

What certainly did not run may always be repeated. What may have run is repeated only if the method
is idempotent or the policy says so: Jepsen's analysis of jetcd 0.8.2 shows what happens otherwise.
Making the attempts, and waiting in between, is left to the caller.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Iterable
from typing import Final, Literal

import attrs

from actors.class_names import bases
from actors.errors import (
    ActorNotFoundError,
    AlreadyAppliedError,
    BadArgumentsError,
    CallCycleError,
    CallTimeoutError,
    ClassMismatchError,
    FunctionNotImportableError,
    MailboxFullError,
    MethodNotFoundError,
    NodeNotFoundError,
    NotAllowedError,
    NotAMemberError,
    Outcome,
    RemoteError,
    ReplyDecodeError,
    ReplyEncodeError,
)
from actors.exact import exact_fields
from actors.keywords import names_options
from actors.messages import import_path, message
from actors.short_repr import short_repr

KEPT_ATTEMPTS: Final = 32
"""Attempts that a schedule remembers one by one, the latest; of those before it keeps the number
alone.
"""

SHORTEST_WAIT: Final = 0.001
"""Seconds. A call that waits for its actor gives up when less than this is left before its
deadline.
"""

_LONGEST_ATTEMPT: Final = 16.0
"""Times an `attempt_timeout`, with its back-off."""

_POINTLESS: Final = (
    ActorNotFoundError,
    BadArgumentsError,
    CallCycleError,
    ClassMismatchError,
    FunctionNotImportableError,
    MethodNotFoundError,
    NodeNotFoundError,
    NotAllowedError,
    NotAMemberError,
)
"""Refusals that a repeat can only meet again, so soon that waiting does not help."""

_ANSWERED: Final = (AlreadyAppliedError, ReplyDecodeError, ReplyEncodeError)
"""Errors of a method that has certainly run. The actor gives a repeat the answer that it has kept,
which is the same one.
"""

BUDGET_TOKENS: Final = 10.0
"""Tokens of a target's retry budget, where a policy does not say otherwise."""

MOST_COUNT: Final = 2**63 - 1
"""The largest number that options for counts and bytes take: no more fits into 64 bits, in which
the operating system keeps limits, and a Python int of any size fits into no float.
"""

_INCIDENTS_KEPT: Final = 8
"""Latest deaths of a target that a budget remembers: calls that failed by the same one may learn it
at different times.
"""


def check_number(
    name: str, value: object, *, least: float = 0.0, most: float = math.inf, above: bool = False
) -> None:
    """Refuse what is no finite number from `least` to `most` (with `above`: greater than `least`),
    naming the field and the value.

    Raises TypeError for other types than int and float, bool included, and ValueError for numbers
    out of range, NaN and infinities.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, not {short_repr(value)}")
    if not (value > least if above else value >= least) or value > min(most, sys.float_info.max):
        wanted = (
            f"greater than {least:g}"
            if above
            else f"at least {least:g}"
            if most == math.inf
            else f"from {least:g} to {most:g}"
        )
        raise ValueError(f"{name} must be a finite number {wanted}, not {short_repr(value)}")


def check_whole_number(name: str, value: object, least: int = 0) -> None:
    """Refuse what is no int from `least` to `MOST_COUNT`. Raises TypeError for other types, bool
    included, and ValueError for others of them.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {short_repr(value)}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {short_repr(value)}")
    if value > MOST_COUNT:
        raise ValueError(f"{name} must be at most {MOST_COUNT}, not {short_repr(value)}")


def growing_delay(
    attempt: int, draw: float, *, initial: float, factor: float, most: float, jitter: float
) -> float:
    """Seconds of exponential back-off after failure number `attempt` (1 is the first).

    That is `min(most, initial * factor**(attempt - 1))`, spread from `1 - jitter` to `1 + jitter`
    times as much; `draw` in [0, 1) picks the point. Nothing goes beyond `most`: there the band is
    cut, not its points moved onto the edge, for else half of all clients would come back at the
    same moment. Raises ValueError if `attempt` < 1 or `draw` is outside [0, 1).
    """
    if attempt < 1:
        raise ValueError(f"attempt must be at least 1, which is the first, not {attempt!r}")
    if not 0 <= draw < 1:
        raise ValueError(f"draw must be in [0, 1), not {draw!r}")
    if initial == 0 or most == 0:
        return 0.0
    try:
        middle = min(most, initial if factor == 1 else initial * float(factor) ** (attempt - 1))
    except OverflowError:
        middle = most
    shortest, longest = middle * (1 - jitter), min(most, middle * (1 + jitter))
    return min(longest, shortest + draw * (longest - shortest))


def _error_path(error: object) -> str:
    if isinstance(error, type) and issubclass(error, Exception):
        return import_path(error)
    if isinstance(error, str) and ":" in error:
        return error
    raise TypeError(
        f"retry_on takes exception classes or their 'module:Class' paths, not {short_repr(error)}"
    )


def _error_paths(
    errors: type[Exception] | str | Iterable[type[Exception] | str],
) -> tuple[str, ...]:
    if isinstance(errors, str) or not isinstance(errors, Iterable):
        return (_error_path(errors),)
    return tuple(_error_path(error) for error in errors)


@message
@names_options("RetryPolicy")
@attrs.frozen(kw_only=True, field_transformer=exact_fields)
class RetryPolicy:
    """When and how often a call may be made again after a failed attempt. All of these may be left
    out:

    - `max_retries`: attempts after the first; 0 for none. A wait for an actor that is being
      restarted or placed uses up none of them.
    - `initial_delay`: seconds from the first failure to the second attempt.
    - `backoff`: what each further delay is multiplied by.
    - `max_delay`: seconds that no delay exceeds.
    - `jitter`: how far delays are spread to either side, as a share from 0 to 1.
    - `attempt_timeout`: seconds for one attempt. By default no limit but the call's own deadline,
      which spans all attempts.
    - `attempt_backoff`: what that is multiplied by after each attempt that got no answer in it, up
      to 16 times as long: what is slow because there is much of it must not become more by being
      repeated.
    - `repeat_unknown`: repeat a call of unknown outcome although its method is not marked
      idempotent.
    - `retry_on`: exception classes (kept as import paths, so that a policy can be sent) that are
      worth a retry when the method raises them.
    - `budget`: tokens of the `RetryBudget` that this node keeps for each target. None for no
      budget, so that only `max_retries` bounds the repeats of a call.

    Raises TypeError or ValueError, naming the field and the value, for what makes no sense.
    """

    max_retries: int = 3
    initial_delay: float = 1.0
    backoff: float = 1.5
    max_delay: float = 30.0
    jitter: float = 0.2
    attempt_timeout: float | None = None
    attempt_backoff: float = 1.0
    repeat_unknown: bool = False
    retry_on: tuple[str, ...] = attrs.field(default=(), converter=_error_paths)
    budget: float | None = BUDGET_TOKENS

    def __attrs_post_init__(self) -> None:
        check_whole_number("max_retries", self.max_retries)
        check_number("initial_delay", self.initial_delay)
        check_number("backoff", self.backoff, least=1.0)
        check_number("max_delay", self.max_delay)
        check_number("jitter", self.jitter, most=1.0)
        if self.attempt_timeout is not None:
            check_number("attempt_timeout", self.attempt_timeout, above=True)
        check_number("attempt_backoff", self.attempt_backoff, least=1.0)
        if not isinstance(self.repeat_unknown, bool):
            raise TypeError(
                f"repeat_unknown must be True or False, not {short_repr(self.repeat_unknown)}"
            )
        if self.budget is not None:
            check_number("budget", self.budget, above=True)

    def delay(self, attempt: int, draw: float) -> float:
        """Seconds to wait after failed attempt number `attempt` (1 is the first) before the next
        one.

        `draw` in [0, 1) picks the point inside the jitter band, so that the schedule is a pure
        function. Where delays are written as `initial_delay * backoff**n`, n counts from 0: the
        first delay is `initial_delay` itself. Never beyond `max_delay`, and then the upper half of
        the band is cut off. Raises ValueError if `attempt` < 1 or `draw` is outside [0, 1).
        """
        return growing_delay(
            attempt,
            draw,
            initial=self.initial_delay,
            factor=self.backoff,
            most=self.max_delay,
            jitter=self.jitter,
        )

    def attempt_limit(self, unanswered: int) -> float:
        """Seconds for an attempt, after so many that got no answer in time; infinite without an
        `attempt_timeout`.
        """
        if self.attempt_timeout is None:
            return math.inf
        if unanswered * math.log(self.attempt_backoff) >= math.log(_LONGEST_ATTEMPT):
            return self.attempt_timeout * _LONGEST_ATTEMPT
        return float(self.attempt_timeout * self.attempt_backoff**unanswered)

    def repeats_raised(self, error: BaseException) -> bool:
        """True if the method raised what `retry_on` lists, or a subclass of it."""
        if not self.retry_on:
            return False
        if isinstance(error, RemoteError) and error.remote_type in self.retry_on:
            return True
        return any(import_path(cls) in self.retry_on for cls in bases(type(error)))


WAIT_FOR_ACTOR: Final = RetryPolicy(max_retries=0, initial_delay=0.01, backoff=1.5, max_delay=1.0)
"""How often a call looks its actor up again while it is being restarted or placed. Retries of this
kind are not counted.
"""


class RetryBudget:
    """Tokens per target that keep retries from multiplying the load on a failing target; the
    numbers are those of gRPC's A6.

    It starts full at `tokens`; a failed attempt takes one, a success gives `per_success` back, and
    retries are allowed only while more than half are left. Each retry is thus paid for by a
    failure's token: at most `tokens / 2` retries plus `per_success` for each success, so that the
    load stays within 1.1 times the offered one, and at the offered one while everything fails.
    Counts in thousandths, as gRPC does, so that tenths add up.
    """

    __slots__ = ("_incidents", "_left", "_most", "_per_success")

    def __init__(self, *, tokens: float = BUDGET_TOKENS, per_success: float = 0.1) -> None:
        check_number("tokens", tokens, above=True)
        check_number("per_success", per_success)
        self._most = self._left = round(tokens * 1000)
        self._per_success = round(per_success * 1000)
        self._incidents: deque[object] = deque(maxlen=_INCIDENTS_KEPT)

    @property
    def tokens(self) -> float:
        """Tokens left."""
        return self._left / 1000

    @property
    def allows_retries(self) -> bool:
        """True while more than half of the tokens are left."""
        return self._left * 2 > self._most

    def succeeded(self) -> None:
        """Note that an attempt was answered."""
        self._left = min(self._most, self._left + self._per_success)
        assert 0 <= self._left <= self._most

    def failed(self, incident: object = None) -> None:
        """Note that an attempt failed in a way that a retry may repair. All failures of one
        `incident`, for example a death, count once.
        """
        if incident is not None:
            # One death fails many calls at once: counted one by one it would use up the budget.
            if incident in self._incidents:
                return
            self._incidents.append(incident)
        self._left = max(0, self._left - 1000)
        assert 0 <= self._left <= self._most

    def __str__(self) -> str:
        return (
            f"{self.tokens:g} of {self._most / 1000:g} tokens are left, and retries need more "
            "than half"
        )


@attrs.frozen
class Attempt:
    """One failed attempt. `number` counts from 1; times are seconds on the caller's clock;
    `counted` is False where it used up no retry.
    """

    number: int
    error: BaseException
    outcome: Outcome
    started: float
    ended: float
    counted: bool


@attrs.frozen
class Retry:
    """Make the next attempt at time `at`; an attempt that waits for its actor may be made sooner,
    when the actor is found.
    """

    at: float


@attrs.frozen
class GiveUp:
    """Make no further attempt, for the reason `why`."""

    why: Literal["not repeatable", "retries used up", "budget used up", "deadline"]


Decision = Retry | GiveUp


class RetrySchedule:
    """The attempts of one call, from the first failure on.

    Create it with the time `now` at which the first attempt starts, or started: a call that
    succeeds at once needs none. Report each failure with `failed`; on `Retry(at)` wait, call
    `begin`, and make the attempt. All times are seconds on one monotonic clock; `deadline` may be
    infinite.
    """

    __slots__ = (
        "_begun",
        "_counted",
        "_earlier_ran",
        "_outcome",
        "_total",
        "_unanswered",
        "_waits",
        "attempts",
        "deadline",
        "idempotent",
        "policy",
    )

    def __init__(
        self, policy: RetryPolicy, *, idempotent: bool, deadline: float, now: float
    ) -> None:
        self.policy = policy
        self.idempotent = idempotent
        self.deadline = deadline
        self.attempts: deque[Attempt] = deque(maxlen=KEPT_ATTEMPTS)
        self._begun = now
        self._total = 0
        self._counted = 0
        self._waits = 0
        self._unanswered = 0
        self._outcome: Outcome = "not executed"
        self._earlier_ran = False

    @property
    def total(self) -> int:
        """Failed attempts so far, those that used up no retry included."""
        return self._total

    @property
    def outcome(self) -> Outcome:
        """The outcome of the whole call after its failures: "unknown" as soon as any attempt may
        have run, unless the last one raised.

        That the last attempt was not executed says nothing about those before it.
        """
        return "unknown" if self._outcome == "not executed" and self._earlier_ran else self._outcome

    @property
    def attempt_deadline(self) -> float:
        """When the running attempt must be given up: its limit after its start, at the latest the
        call's deadline.
        """
        return min(self.deadline, self._begun + self.attempt_limit)

    @property
    def attempt_limit(self) -> float:
        """Seconds for the running attempt; see `RetryPolicy.attempt_limit`."""
        return self.policy.attempt_limit(self._unanswered)

    def begin(self, now: float) -> bool:
        """Note that the next attempt starts now. False, and nothing noted, if the deadline has
        passed: then it must not start.
        """
        # The wait may have lasted longer than planned, because the loop was late.
        if now >= self.deadline:
            return False
        self._begun = now
        return True

    def failed(
        self,
        outcome: Outcome,
        error: BaseException,
        now: float,
        draw: float,
        budget: RetryBudget | None = None,
        *,
        uncounted: bool = False,
        late: bool = False,
        incident: object = None,
    ) -> Decision:
        """Note that the running attempt ended with `error` at `now`, and decide what follows.
        `late`: this is the answer to an attempt after all, of which it was noted that there was
        none in its time. If that was the last one noted, they are one attempt.

        `draw` in [0, 1) picks the point in the jitter band. `budget` is the target's; it is charged
        here, once for all attempts that failed by one `incident` (any hashable value, None for a
        failure of its own). `uncounted`: the actor is being restarted or placed, so the wait uses
        up neither a retry nor a token; only an attempt that was not executed can be of that kind,
        for others ValueError is raised.
        """
        if uncounted and outcome != "not executed":
            raise ValueError(
                f"an attempt of outcome {outcome!r} may have run, so it uses up a retry; "
                "`uncounted` is for attempts that were not executed"
            )
        begun = self._begun
        if late and isinstance(self.attempts[-1].error, CallTimeoutError):
            begun = self.attempts.pop().started
            self._total -= 1
            # It may have run, so it has used up a retry.
            self._counted -= 1
            assert 0 <= self._counted <= self._total
        self._total += 1
        assert len(self.attempts) < self._total, "the latest attempts, and how many in all"
        self._earlier_ran = self._earlier_ran or outcome != "not executed"
        self._outcome = outcome
        self._unanswered += isinstance(error, CallTimeoutError)
        self.attempts.append(Attempt(self._total, error, outcome, begun, now, not uncounted))
        if uncounted:
            return self._wait(now, draw)
        self._counted += 1
        assert self._counted <= self._total, "waits for an actor use up no retry"
        self._waits = 0
        repeatable = self._may_repeat(outcome, error)
        # An attempt that did not run cost its target nothing; only a full mailbox is a sign of
        # load.
        free = outcome == "not executed" and not isinstance(error, MailboxFullError)
        if budget is not None and not free:
            answered = isinstance(error, _ANSWERED) or (outcome == "raised" and not repeatable)
            self._charge(budget, incident, answered=answered)
        if not repeatable:
            return GiveUp("not repeatable")
        if self._counted > self.policy.max_retries:
            return GiveUp("retries used up")
        at = now + self.policy.delay(self._counted, draw)
        assert at >= now, "a delay is never negative"
        # Checked before the wait: the error comes now, not at the deadline.
        if at >= self.deadline:
            return GiveUp("deadline")
        if budget is not None and not free and not budget.allows_retries:
            return GiveUp("budget used up")
        return Retry(at)

    def explain(self, decision: GiveUp, budget: RetryBudget | None) -> str:
        """Why the policy makes no further attempt, as a part of a sentence, with what to do about
        it.
        """
        if decision.why == "retries used up":
            return f"its RetryPolicy allows {self.policy.max_retries}"
        if decision.why == "budget used up":
            return (
                f"the retry budget of its target is used up: {budget}; "
                "RetryPolicy(budget=None) repeats regardless"
            )
        if decision.why == "deadline":
            return "its time is over, or would be before the next attempt"
        answered = isinstance(self.attempts[-1].error, _ANSWERED)
        if self._outcome == "unknown" and not answered:
            return (
                "what may have run is repeated only if the method is idempotent or its "
                "RetryPolicy says repeat_unknown=True"
            )
        return (
            "a repeat would end in the same way"
            if self._outcome == "not executed" or answered
            else "its RetryPolicy does not list that in retry_on"
        )

    def history(self) -> str:
        """The attempts as text, one a line, for the error that the caller gets."""
        lines = [
            f"attempt {a.number}, after {a.ended - a.started:.3f} s: {type(a.error).__name__}: "
            f"{a.error}"
            for a in self.attempts
        ]
        if forgotten := self._total - len(self.attempts):
            lines.insert(0, f"{forgotten} earlier attempts")
        return "\n".join(lines)

    def _may_repeat(self, outcome: Outcome, error: BaseException) -> bool:
        if outcome == "not executed":
            return not isinstance(error, _POINTLESS)
        if outcome == "unknown":
            return (self.idempotent or self.policy.repeat_unknown) and not isinstance(
                error, _ANSWERED
            )
        return self.policy.repeats_raised(error)

    def _charge(self, budget: RetryBudget, incident: object, *, answered: bool) -> None:
        if answered:
            # The target answered, as it should: the failure is the method's own.
            budget.succeeded()
        else:
            budget.failed(incident)

    def _wait(self, now: float, draw: float) -> Decision:
        left = self.deadline - now
        if left < SHORTEST_WAIT:
            return GiveUp("deadline")
        self._waits += 1
        # Halving what is left looks for the actor until the end, where a fixed step would give up
        # while it still may come back in time.
        return Retry(now + min(WAIT_FOR_ACTOR.delay(self._waits, draw), left / 2))
