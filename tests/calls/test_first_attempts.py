"""The first attempts of calls with a retry policy: what they cost while nothing fails, and what is
left of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from actors import Actor, RetryPolicy, method
from actors.errors import CallTimeoutError
from actors.identifiers import NodeId
from runtime import Node
from runtime.calls.call_sender import CONFIRM_SECONDS
from runtime.calls.pending_calls import Confirmations
from runtime.links.link import Link
from runtime.node import internals_of
from runtime.testing import Platform
from tests.live_pair import in_virtual_time, open_pair
from tests.memory_network import MemoryNetwork

SOON = RetryPolicy(initial_delay=0.01, attempt_timeout=0.2)


class Keeper(Actor):
    """Answers at once, or when it is allowed to."""

    def __init__(self) -> None:
        self.runs = 0
        self.gate = trio.Event()

    @method(idempotent=True)
    async def read(self) -> int:
        return 16

    @method(idempotent=True)
    async def load(self, size: int) -> bytes:
        return bytes(size)

    @method(idempotent=True, concurrent=True)
    async def wait(self) -> int:
        self.runs += 1
        await self.gate.wait()
        return self.runs

    @method(concurrent=True)
    async def open_gate(self) -> None:
        self.gate.set()


@attrs.frozen
class Setting:
    """`here` calls the keeper, which is on `there`."""

    here: Node
    there: Node
    keeper: Keeper

    @property
    def link(self) -> Link:
        return internals_of(self.here).links[NodeId("there", self.there.incarnation)]

    def recorded(self) -> int:
        """How many calls of the keeper are on record."""
        clients = internals_of(self.there).endpoint.dedup_server.clients.values()
        return sum(
            record.target[0] == "keeper"
            for client in clients
            for record in client.records.records.values()
        )

    def open_calls(self) -> int:
        """How many calls may still be made again, as far as the caller says."""
        caller = internals_of(self.here).caller
        return caller.open_calls._latest + 1 - caller.open_calls.watermark


@asynccontextmanager
async def setting() -> AsyncIterator[Setting]:
    async with open_pair(Platform(network=MemoryNetwork())) as pair:
        keeper = await pair.here.options(name="keeper", on="there").spawn(Keeper)
        await keeper.read()
        yield Setting(pair.here, pair.there, keeper)


@pytest.mark.parametrize("policy", [RetryPolicy(), SOON], ids=["without limit", "with limit"])
def test_calls_that_succeed_are_confirmed_together_and_leave_nothing(policy: RetryPolicy) -> None:
    async def test(both: Setting) -> None:
        read = both.keeper.read.options(retry=policy)
        sent, count = both.link.session.sent, 10 * Confirmations.MOST_UNSAID
        for _ in range(count):
            assert await read() == 16
            assert both.recorded() <= Confirmations.MOST_UNSAID
        # A frame for each call and for each so many of them; some of the runtime's own beside them.
        assert both.link.session.sent - sent < count * 1.2
        await trio.sleep(2 * CONFIRM_SECONDS)
        assert both.recorded() == 0
        assert both.open_calls() == 0

    in_virtual_time(setting, test)


def test_a_large_answer_is_confirmed_without_waiting_for_others() -> None:
    async def test(both: Setting) -> None:
        load = both.keeper.load.options(retry=RetryPolicy())
        assert len(await load(1_000_000)) == 1_000_000
        await trio.sleep(CONFIRM_SECONDS / 4)
        assert both.recorded() == 0

    in_virtual_time(setting, test)


def test_a_cancelled_first_attempt_is_withdrawn_and_confirmed() -> None:
    async def test(both: Setting) -> None:
        for policy in (RetryPolicy(), SOON):
            with trio.move_on_after(0.1):
                await both.keeper.wait.options(retry=policy)()
            await trio.sleep(2 * CONFIRM_SECONDS)
            assert both.recorded() == 0
            assert both.open_calls() == 0

    in_virtual_time(setting, test)


def test_the_answer_to_a_first_attempt_that_was_too_slow_counts_and_nothing_runs_again() -> None:
    async def test(both: Setting) -> None:
        answers: list[int] = []

        async def wait() -> None:
            patient = attrs.evolve(SOON, max_retries=100, budget=None)
            answers.append(await both.keeper.wait.options(retry=patient)())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(3)
            await both.keeper.open_gate()
        assert answers == [1]

    in_virtual_time(setting, test)


def test_a_call_whose_attempts_are_all_too_slow_says_how_many_there_were() -> None:
    async def test(both: Setting) -> None:
        with pytest.raises(
            CallTimeoutError, match=r"may have run in one of its 3 attempts"
        ) as caught:
            await both.keeper.wait.options(retry=attrs.evolve(SOON, max_retries=2))()
        assert caught.value.attempts == 3
        await trio.sleep(2 * CONFIRM_SECONDS)
        assert both.recorded() == 0

    in_virtual_time(setting, test)


def test_a_timeout_of_the_whole_call_comes_before_that_of_an_attempt() -> None:
    async def test(both: Setting) -> None:
        began = trio.current_time()
        with pytest.raises(CallTimeoutError, match=r"within its timeout of 0\.1 s"):
            await both.keeper.wait.options(retry=SOON, timeout=0.1)()
        assert trio.current_time() - began == pytest.approx(0.1, abs=0.01)
        await trio.sleep(2 * CONFIRM_SECONDS)
        assert both.recorded() == 0
        assert both.open_calls() == 0

    in_virtual_time(setting, test)
