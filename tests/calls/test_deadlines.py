"""Timeouts of calls: what is known of a call whose time is over, and that none is forgotten,
however many there are.
"""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from actors import Actor, RetryPolicy, method
from actors.errors import CallTimeoutError, DeadlineExceededError, NodeUnreachableError
from actors.identifiers import NodeId
from runtime import Node
from runtime.calls.deadlines import FEWEST_TO_CLEAR, Deadlines, Waiting
from runtime.calls.error_codec import CallPlace
from runtime.calls.pending_calls import PendingCall
from runtime.environment import SystemEnvironment
from runtime.node import internals_of
from runtime.testing import Platform
from tests.breakable_network import BreakableNetwork
from tests.live_pair import open_pair
from tests.waiting import until


class Worker(Actor):
    """Counts what it runs."""

    def __init__(self) -> None:
        self.runs = 0
        self.gate = trio.Event()

    @method
    async def work(self) -> int:
        self.runs += 1
        return self.runs

    @method
    async def block(self) -> None:
        self.runs += 1
        await self.gate.wait()

    @method(concurrent=True)
    async def open_gate(self) -> None:
        self.gate.set()

    @method(concurrent=True)
    async def count(self) -> int:
        return self.runs


def call_of(task: trio.lowlevel.Task | None) -> Waiting:
    return PendingCall(1, CallPlace("actor", "method", "node", 1), task)


def expire(delays: list[float], finished: set[int]) -> list[tuple[int, float]]:
    """When each of many parked calls was woken; those in `finished` end at once."""
    woken: list[tuple[int, float]] = []

    async def wait(index: int, delay: float, deadlines: Deadlines) -> None:
        call = call_of(trio.lowlevel.current_task())
        deadlines.add(delay, call)
        if index in finished:
            call.finished = True
            deadlines.done(call)
            return
        await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.SUCCEEDED)
        deadlines.done(call)
        assert call.expired
        woken.append((index, trio.current_time()))

    async def main() -> None:
        async with trio.open_nursery() as outer:
            deadlines = Deadlines(outer, SystemEnvironment())
            async with trio.open_nursery() as nursery:
                for index, delay in enumerate(delays):
                    nursery.start_soon(wait, index, delay, deadlines)
            assert len(deadlines._heap) <= 2 * FEWEST_TO_CLEAR + len(delays) - len(finished)
            outer.cancel_scope.cancel()

    clock = MockClock(autojump_threshold=0)
    start = clock.current_time()
    delays[:] = [start + delay for delay in delays]
    trio.run(main, clock=clock)
    return woken


def test_each_call_is_woken_at_its_own_time_in_whatever_order_they_are_entered() -> None:
    delays = [5.0, 1.0, 3.0, 3.0, 0.5, 4.0]
    woken = expire(delays, set())
    assert {index for index, _ in woken} == set(range(6))
    assert all(time == pytest.approx(delays[index]) for index, time in woken)


def test_thousands_of_calls_that_end_in_time_leave_no_entries_behind() -> None:
    delays = [1000.0 + number for number in range(5_000)] + [1.0]
    woken = expire(delays, set(range(5_000)))
    assert [index for index, _ in woken] == [5_000]


def test_a_call_that_waits_again_is_not_woken_by_what_is_left_of_its_first_wait() -> None:
    async def main() -> None:
        async with trio.open_nursery() as outer:
            deadlines = Deadlines(outer, SystemEnvironment())
            began, call = trio.current_time(), call_of(None)
            deadlines.add(began + 1, call)
            # So that the entry of its first wait is not the first, which would be dropped at once.
            other = call_of(None)
            deadlines.add(began + 0.5, other)
            await trio.sleep(0.1)
            deadlines.done(call)
            deadlines.add(began + 3, call)
            await trio.sleep(2)
            assert other.expired
            assert not call.expired
            await trio.sleep(1)
            assert call.expired
            outer.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("how", ["timeout", "attempts"])
async def test_a_call_that_could_not_be_handed_over_in_time_did_not_run_and_will_not(
    how: str,
) -> None:
    network = BreakableNetwork()
    async with open_pair(Platform(network=network)) as pair:
        here, there = pair.here, pair.there
        worker = await there.spawn(Worker)
        from_here = internals_of(here).endpoint.make_handle(worker.address, Worker)
        assert await from_here.work() == 1
        network.take_down()
        link = internals_of(here).links[NodeId("there", there.incarnation)]
        await link.disconnected()
        with trio.fail_after(60):
            if how == "timeout":
                with pytest.raises(DeadlineExceededError, match="did not run and will not"):
                    await from_here.work.options(timeout=0.3)()
            else:
                policy = RetryPolicy(max_retries=2, attempt_timeout=0.05, initial_delay=0.01)
                with pytest.raises(
                    NodeUnreachableError, match="was not executed in any of its 3 attempts"
                ):
                    await from_here.work.options(retry=policy)()
        network.up = True
        await link.connected_again()
        assert await from_here.work() == 2


async def test_a_call_that_was_handed_over_may_have_run(two: tuple[Node, Worker]) -> None:
    _, worker = two
    with pytest.raises(CallTimeoutError, match="may have taken effect"):
        await worker.block.options(timeout=0.3)()
    assert await worker.count() == 1


@pytest.mark.parametrize("how", ["once", "with a policy", "for a reference"])
@pytest.mark.parametrize("place", ["here", "there"])
async def test_a_timeout_that_is_noticed_first_where_the_method_runs_is_the_same_to_its_caller(
    place: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This node itself notices no timeout of a call.
    monkeypatch.setattr(Deadlines, "add", lambda deadlines, when, call: None)
    async with open_pair() as pair:
        worker = await pair.here.options(on=place).spawn(Worker)
        block = worker.block.options(timeout=0.1)
        if how == "with a policy":
            block = block.options(retry=RetryPolicy(max_retries=2))

        async def call() -> None:
            if how == "for a reference":
                await (await block.remote()).fetch()
            else:
                await block()

        with trio.fail_after(60), pytest.raises(CallTimeoutError) as caught:
            await call()
    text = "block gave no answer within its timeout of 0.1 s; it was cancelled, but may have taken"
    assert text in str(caught.value)
    assert caught.value.node == place


async def test_on_the_same_node_a_call_whose_turn_never_came_certainly_did_not_run(
    two: tuple[Node, Worker],
) -> None:
    node, _ = two
    worker = await node.spawn(Worker)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.block)
        await until(worker.count, "the call runs", every=0)
        with pytest.raises(DeadlineExceededError, match="did not run and will not"):
            await worker.work.options(timeout=0.05)()
        await worker.open_gate()
    assert await worker.count() == 1


@pytest.fixture
async def two() -> object:
    async with open_pair() as pair:
        yield pair.here, await pair.here.options(on="there").spawn(Worker)
