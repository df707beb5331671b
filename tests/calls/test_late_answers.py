"""Answers that come after the time of their attempt: the method has run, and is not run again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from actors import Actor, RetryPolicy, method
from actors.errors import ActorNotFoundError, CallTimeoutError, RemoteError
from actors.retry import GiveUp, Retry, RetrySchedule
from runtime.node import internals_of
from runtime.testing import Platform
from tests.live_pair import Pair, in_virtual_time, open_pair
from tests.memory_network import MemoryNetwork

SLOW = RetryPolicy(max_retries=5, attempt_timeout=0.2, initial_delay=1.0, jitter=0.0)


class Slow(Actor):
    """Takes its time, less with each run, and raises."""

    def __init__(self) -> None:
        self.runs = 0

    @method(idempotent=True, concurrent=True)
    async def fail(self, seconds: float) -> None:
        self.runs += 1
        await trio.sleep(seconds / self.runs)
        raise LookupError(f"run {self.runs}")


def on_a_pair(where: str, test: Callable[[Slow, Slow], Awaitable[None]]) -> None:
    """Run a test of an actor's handle and the actor itself, in virtual time."""

    @asynccontextmanager
    async def setting() -> AsyncIterator[Pair]:
        async with open_pair(Platform(network=MemoryNetwork())) as pair:
            yield pair

    async def main(pair: Pair) -> None:
        handle = await pair.here.options(name="slow", on=where).spawn(Slow)
        node = pair.here if where == "here" else pair.there
        instance = internals_of(node).cells["slow"].instance
        assert isinstance(instance, Slow)
        await test(handle, instance)

    in_virtual_time(setting, main)


def test_what_a_method_raises_late_is_the_outcome(where: str) -> None:
    async def test(handle: Slow, instance: Slow) -> None:
        began = trio.current_time()
        with pytest.raises(RemoteError, match="run 1") as caught:
            await handle.fail.options(retry=SLOW)(0.5)
        assert isinstance(caught.value, LookupError)
        assert caught.value.attempts == 1
        assert instance.runs == 1
        # At once, and not when the next attempt would have been due.
        assert trio.current_time() - began < 1.0

    on_a_pair(where, test)


def test_what_a_method_raises_late_is_repeated_if_the_policy_lists_it(where: str) -> None:
    async def test(handle: Slow, instance: Slow) -> None:
        policy = attrs.evolve(SLOW, max_retries=2, retry_on=(LookupError,))
        with pytest.raises(RemoteError, match="run 3") as caught:
            await handle.fail.options(retry=policy)(0.5)
        assert caught.value.attempts == instance.runs == 3

    on_a_pair(where, test)


def test_a_late_answer_and_the_attempt_without_it_are_one_attempt() -> None:
    schedule = RetrySchedule(
        attrs.evolve(SLOW, retry_on=(LookupError,)), idempotent=True, deadline=100.0, now=0.0
    )
    assert schedule.failed("unknown", CallTimeoutError("slow"), 0.2, 0.0) == Retry(1.2)
    late = LookupError("late")
    assert schedule.failed("raised", late, 0.5, 0.0, late=True) == Retry(1.5)
    assert schedule.total == 1
    assert [(one.number, one.error, one.started) for one in schedule.attempts] == [(1, late, 0.0)]
    assert schedule.begin(1.5)
    assert schedule.failed("raised", ValueError(), 1.6, 0.0) == GiveUp("not repeatable")
    assert schedule.total == 2


def test_an_answer_that_comes_after_another_attempt_was_refused_takes_no_retry_back() -> None:
    schedule = RetrySchedule(
        attrs.evolve(SLOW, max_retries=2, retry_on=(LookupError,)),
        idempotent=True,
        deadline=100.0,
        now=0.0,
    )
    assert schedule.failed("unknown", CallTimeoutError("slow"), 0.2, 0.0) == Retry(1.2)
    # While the actor is being moved; then the first attempt is answered after all.
    moved = ActorNotFoundError("moved")
    assert isinstance(schedule.failed("not executed", moved, 1.3, 0.0, uncounted=True), Retry)
    assert isinstance(schedule.failed("raised", LookupError(), 1.5, 0.0, late=True), Retry)
    assert [one.number for one in schedule.attempts] == [1, 2, 3]
    assert schedule.failed("raised", LookupError(), 4.0, 0.0) == GiveUp("retries used up")
