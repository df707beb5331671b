"""The facts of a call whose timeout has passed, and the error that is made from them."""

from __future__ import annotations

import attrs

from actors.errors import CallTimeoutError, DeadlineExceededError
from runtime.calls.timed_out import TimedOut


def test_the_error_of_another_call_is_made_from_changed_facts() -> None:
    error = TimedOut("@service.run", 1.98, may_have_run=True).error(actor="@service", attempts=2)
    assert type(error) is CallTimeoutError
    assert (error.actor, error.attempts) == ("@service", 2)
    assert str(error) == (
        "@service.run gave no answer within its timeout of 1.98 s; it was cancelled, but may have "
        "taken effect"
    )
    facts = TimedOut.of(error)
    assert facts is not None
    other = attrs.evolve(facts, name="shop:pay", timeout=2.0).error(method="shop:pay")
    assert type(other) is CallTimeoutError
    assert (other.actor, other.method) == (None, "shop:pay")
    assert str(other).startswith("shop:pay gave no answer within its timeout of 2 s; ")


def test_a_call_that_was_not_made_is_certain_not_to_have_run() -> None:
    facts = TimedOut("a.b", 1, False, "could not be handed to node n", ": it is silent")
    error = facts.error()
    assert type(error) is DeadlineExceededError
    assert str(error) == (
        "a.b could not be handed to node n within its timeout of 1 s; it did not run and will not: "
        "it is silent"
    )
    assert TimedOut.of(DeadlineExceededError("another")) is None
