"""Stacks: what is read of coroutines that wait in every way there is, of threads, and of what would
be too long.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest
import trio

from actors import Actor, method
from runtime.hosting.stacks import MOST_FRAMES, MOST_TASKS, stack_of
from runtime.node import internals_of
from runtime.observation.inspection_service import InspectionService, inspection_of
from tests.live_pair import Pair
from tests.waiting import until


async def innermost() -> None:
    await trio.sleep_forever()


async def items() -> AsyncIterator[int]:
    await innermost()
    yield 1


async def by_async_for() -> None:
    async for _ in items():
        pass


async def by_anext() -> None:
    await anext(items())


async def by_aclose() -> None:
    async def cleaned() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await innermost()  # noqa: ASYNC102  never run by trio

    opened: Any = cleaned()
    await anext(opened)
    await opened.aclose()


class Awaitable:
    def __await__(self) -> Any:
        return innermost().__await__()


async def by_await_method() -> None:
    await Awaitable()


async def by_recursion(depth: int = 300) -> None:
    if depth:
        await by_recursion(depth - 1)
    else:
        await innermost()


@pytest.mark.parametrize("outer", [by_async_for, by_anext, by_aclose, by_await_method])
def test_a_stack_is_read_through_everything_that_can_be_awaited(outer: Any) -> None:
    coroutine: Coroutine[Any, Any, None] = outer()
    coroutine.send(None)
    try:
        functions = [line.function for line in stack_of(coroutine)]
        assert functions[0] == outer.__qualname__
        assert "innermost" in functions
        assert functions[-1] == "sleep_forever", "what trio does below is left out"
        line = next(line for line in stack_of(coroutine) if line.function == "innermost")
        assert line.file == __file__
        assert line.source == "await trio.sleep_forever()"
    finally:
        coroutine.close()


def test_of_a_deep_stack_the_outermost_and_the_innermost_frames_are_reported() -> None:
    coroutine = by_recursion()
    coroutine.send(None)
    try:
        lines = stack_of(coroutine)
    finally:
        coroutine.close()
    assert len(lines) == MOST_FRAMES + 1
    assert lines[0].function == "by_recursion"
    assert lines[-1].function == "sleep_forever"
    assert lines[MOST_FRAMES // 2].function.endswith("frames are left out")


@pytest.mark.parametrize("value", [None, 3, "x", object(), iter(())])
def test_what_cannot_be_awaited_has_no_stack(value: object) -> None:
    assert stack_of(value) == []


class Busy(Actor):
    def __init__(self) -> None:
        self.entered = threading.Event()
        self.left = threading.Event()

    @method
    async def wait_in_tasks(self, count: int) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(innermost)

    @method(concurrent=True)
    async def start_task(self) -> None:
        self.nursery.start_soon(innermost)

    @method
    def compute(self) -> None:
        self.entered.set()
        self.left.wait(20)

    @method(concurrent=True)
    async def has_entered(self) -> bool:
        return self.entered.is_set()

    @method(concurrent=True)
    async def release(self) -> None:
        self.left.set()


def service(pair: Pair) -> Any:
    return inspection_of(internals_of(pair.here).endpoint, pair.there.name, pair.there.incarnation)


def of_actor(answer: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [task for task in answer["tasks"] if task["actor"] == name]


def functions(stack: list[list[Any]]) -> list[str]:
    return [line[2] for line in stack]


async def test_tasks_are_reported_with_the_actor_and_the_method_they_work_for(pair: Pair) -> None:
    busy = await pair.here.options(name="busy", on="there").spawn(Busy)
    await busy.start_task()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(busy.wait_in_tasks, 2)

        async def settled() -> bool:
            answer = await service(pair).stacks("busy")
            return len(of_actor(answer, "busy")) >= 4

        await until(settled, "all tasks are there")
        answer = await service(pair).stacks("busy")
        assert all(task["actor"] == "busy" for task in answer["tasks"])
        (turn,) = [task for task in answer["tasks"] if task["method"] == "wait_in_tasks"]
        assert turn["seconds"] is not None
        # The lines of the worker that steps the method by hand are not the user's.
        assert functions(turn["stack"])[0] == "Busy.wait_in_tasks"
        waiting = [task for task in answer["tasks"] if "innermost" in functions(task["stack"])]
        assert len(waiting) == 3, "two of the method's nursery, one of the actor's own"
        nursery.cancel_scope.cancel()


async def test_the_thread_of_a_plain_method_is_reported_with_its_actor(pair: Pair) -> None:
    busy = await pair.here.options(name="busy", on="there").spawn(Busy)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(busy.compute)
        await until(busy.has_entered, "the thread runs")
        answer = await service(pair).stacks()
        (thread,) = [thread for thread in answer["threads"] if thread["actor"] == "busy"]
        assert "Busy.compute" in functions(thread["stack"])
        await busy.release()


async def test_tasks_beyond_what_one_answer_holds_are_counted(pair: Pair) -> None:
    busy = await pair.here.options(name="busy", on="there").spawn(Busy)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(busy.wait_in_tasks, MOST_TASKS + 100)

        async def has_all() -> bool:
            answer = await service(pair).stacks("busy")
            return bool(answer["tasks_left_out"] >= 100)

        await until(has_all, "all tasks are there")
        answer = await service(pair).stacks("busy")
        assert len(answer["tasks"]) == MOST_TASKS
        nursery.cancel_scope.cancel()


async def test_an_actor_that_is_not_there_has_no_tasks_and_no_facts(pair: Pair) -> None:
    answer = await service(pair).stacks("nobody")
    assert answer["tasks"] == []
    assert await service(pair).actor("nobody") is None
    assert await service(pair).actor("@node") is None, "services are no actors of users"


def test_only_the_methods_of_the_service_can_be_called() -> None:
    assert set(InspectionService.__methods__) == {
        "actor",
        "actors",
        "blocked",
        "calls",
        "clock",
        "named",
        "near",
        "on_blocked",
        "overview",
        "overview_since",
        "present",
        "profile",
        "record",
        "saved_size",
        "stacks",
        "state",
        "statistics",
        "supervision",
        "top",
    }
