"""The scope of a start cancels what runs in it, whether it is entered already or not."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator

import attrs
import pytest
import trio
import trio.testing

from runtime.environment import SystemEnvironment
from runtime.hosting.constructor_queue import ConstructorQueue
from runtime.hosting.start_scope import StartScope
from tests.waiting import until


@pytest.fixture
async def node() -> AsyncIterator[trio.Nursery]:
    """The nursery of the node that has the queue."""
    async with trio.open_nursery() as nursery:
        yield nursery
        nursery.cancel_scope.cancel()


@attrs.define(eq=False)
class CancelsWhenScheduled(trio.abc.Instrument):
    """Cancels a scope in the moment in which its task is about to go on, for another reason."""

    scope: StartScope
    task: trio.lowlevel.Task

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        if task is self.task:
            self.scope.cancel()


async def test_what_is_cancelled_before_the_scope_is_entered_ends_at_the_next_checkpoint() -> None:
    with StartScope() as scope:
        scope.cancel()
        await trio.lowlevel.checkpoint()
        scope.enter()
        await trio.lowlevel.checkpoint()
        pytest.fail("it went on")
    assert scope.cancel_called


async def test_what_is_cancelled_later_ends_where_it_waits() -> None:
    async with trio.open_nursery() as nursery:
        with StartScope() as scope:
            scope.enter()
            scope.enter()
            nursery.start_soon(
                trio.to_thread.run_sync, lambda: trio.from_thread.run_sync(scope.cancel)
            )
            await trio.sleep_forever()
    assert scope.cancel_called


async def test_the_end_is_waited_for() -> None:
    over = list[str]()

    async def wait() -> None:
        await scope.wait_over()
        over.append("over")

    async with trio.open_nursery() as nursery:
        with StartScope() as scope:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert not over
    assert over


async def test_a_scope_that_the_code_of_the_start_has_left_open_is_an_error() -> None:
    async def start() -> None:
        with StartScope() as scope:
            scope.enter()
            trio.CancelScope().__enter__()

    with pytest.raises(RuntimeError, match="stack corrupted"):
        await start()


async def test_what_is_cancelled_in_the_queue_never_begins(node: trio.Nursery) -> None:
    queue = ConstructorQueue(SystemEnvironment(), node, trio.CapacityLimiter(1))
    may_end, scope, ran = threading.Event(), StartScope(), list[str]()

    async def run(name: str, scope: StartScope) -> None:
        with scope:
            await queue.run(may_end.wait if name == "first" else lambda: ran.append(name), scope)
            assert not scope.cancel_called

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, "first", StartScope())
        await until(lambda: queue._alone == 1, "the first one runs")
        async with trio.open_nursery() as stopped:
            stopped.start_soon(run, "stopped", scope)
            await until(lambda: len(queue._waiting) == 1, "one waits")
            scope.cancel()
            # Once more, as the stop of an actor and the departure of its node may do.
            scope.cancel()
        nursery.start_soon(run, "next", StartScope())
        may_end.set()
    assert ran == ["next"]


async def test_a_cancellation_that_comes_with_the_result_lets_the_code_of_the_start_go_on(
    node: trio.Nursery,
) -> None:
    queue = ConstructorQueue(SystemEnvironment(), node, trio.CapacityLimiter(2))
    may_end = threading.Event()
    async with trio.open_nursery() as nursery:

        async def first() -> None:
            with StartScope() as scope:
                await queue.run(may_end.wait, scope)

        nursery.start_soon(first)
        await until(lambda: queue._alone == 1, "the first one runs")
        found = None
        with StartScope() as scope:
            instrument = CancelsWhenScheduled(scope, trio.lowlevel.current_task())
            trio.lowlevel.add_instrument(instrument)
            try:
                found = await queue.run(lambda: "constructed", scope)
            finally:
                trio.lowlevel.remove_instrument(instrument)
            assert scope.cancel_called
            scope.enter()
            await trio.lowlevel.checkpoint()
            pytest.fail("it went on")
        assert found == "constructed"
        may_end.set()
