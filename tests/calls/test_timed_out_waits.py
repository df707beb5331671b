"""Calls whose time is over while they wait for an actor that is not where it was: they end with the
error of a timeout, not with the refusal of their last attempt.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from actors import Actor, RetryPolicy, method
from actors.errors import (
    CallError,
    CallTimeoutError,
    DeadlineExceededError,
    NodeUnreachableError,
    OutcomeUnknownError,
    StaleEpochError,
)
from actors.retry import SHORTEST_WAIT
from runtime import Node
from runtime.calls.retrying_call import RetryingCall
from runtime.node import internals_of
from runtime.testing import Platform
from tests.live_pair import in_virtual_time, open_pair
from tests.memory_network import MemoryNetwork

TOO_SHORT = SHORTEST_WAIT / 2
"""Seconds in which a call is made and refused, and which leave no room for another attempt."""


class Moving(Actor):
    """Has been started again since its handle was made."""

    @method
    async def read(self) -> int:
        return 16

    @method(idempotent=True)
    async def read_again(self) -> int:
        return 16

    @method
    async def count(self) -> AsyncIterator[int]:
        yield 1


@attrs.frozen
class Setting:
    """`handle` is that of an earlier epoch of an actor on the same node."""

    node: Node
    handle: Moving


@asynccontextmanager
async def setting() -> AsyncIterator[Setting]:
    async with open_pair(Platform(network=MemoryNetwork())) as pair:
        node = pair.here
        handle = await node.options(name="moving", on="here").spawn(Moving)
        await node.stop(handle)
        await pair.there.options(name="moving", on="here").spawn(Moving)
        yield Setting(node, handle)


POLICIES = [None, RetryPolicy(), RetryPolicy(max_retries=0), RetryPolicy(attempt_timeout=0.1)]


@pytest.mark.parametrize("policy", POLICIES, ids=["none", "usual", "no retries", "attempts' limit"])
@pytest.mark.parametrize("name", ["read", "read_again"])
def test_a_call_refused_by_an_earlier_place_when_its_timeout_is_near_has_timed_out(
    policy: RetryPolicy | None, name: str
) -> None:
    async def test(both: Setting) -> None:
        bound = getattr(both.handle, name).options(retry=policy, timeout=TOO_SHORT)
        with pytest.raises(
            DeadlineExceededError, match=r"timeout of 0\.0005 s; it did not"
        ) as told:
            await bound()
        assert isinstance(told.value.__cause__, StaleEpochError)
        assert (told.value.outcome, told.value.attempts) == ("not executed", 1)
        assert "attempt 1" in "".join(told.value.__notes__)
        # With more time it finds the actor.
        assert await bound.options(timeout=5)() == 16

    in_virtual_time(setting, test)


@pytest.mark.parametrize("policy", POLICIES, ids=["none", "usual", "no retries", "attempts' limit"])
def test_the_callers_own_deadline_ends_it_as_trio_has_it(policy: RetryPolicy | None) -> None:
    async def test(both: Setting) -> None:
        with pytest.raises(trio.TooSlowError), trio.fail_after(TOO_SHORT):
            await both.handle.read.options(retry=policy)()

    in_virtual_time(setting, test)


def test_a_stream_refused_by_an_earlier_place_when_its_timeout_is_near_has_timed_out() -> None:
    async def test(both: Setting) -> None:
        with pytest.raises(DeadlineExceededError, match="did not begin within") as told:
            await anext(aiter(both.handle.count.options(timeout=TOO_SHORT)()))
        assert isinstance(told.value.__cause__, StaleEpochError)

    in_virtual_time(setting, test)


def test_a_kept_result_of_a_call_that_was_refused_when_its_timeout_was_near_has_timed_out() -> None:
    async def test(both: Setting) -> None:
        reference = await both.handle.read.options(timeout=TOO_SHORT).remote()
        with pytest.raises(DeadlineExceededError, match="it did not run"):
            await reference.fetch()

    in_virtual_time(setting, test)


@pytest.mark.parametrize("ran", [False, True], ids=["certainly not run", "may have run"])
def test_what_is_certain_of_the_attempts_before_decides_the_class(ran: bool) -> None:
    async def test(both: Setting) -> None:
        caller, bound = internals_of(both.node).caller, both.handle.read_again
        expires = trio.current_time() + TOO_SHORT
        call = RetryingCall(caller, bound, (), {}, expires, caller.numbers())
        if ran:
            attempt = OutcomeUnknownError("no answer")
            call._schedule.failed("unknown", attempt, trio.current_time(), 0.5)
        refusal = NodeUnreachableError("no connection", actor="moving", node="here")
        kind: type[CallError] = CallTimeoutError if ran else DeadlineExceededError
        with pytest.raises(kind) as told:
            await call.run(None, refusal)
        assert told.value.__cause__ is refusal
        assert told.value.outcome == ("unknown" if ran else "not executed")

    in_virtual_time(setting, test)
