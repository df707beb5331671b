"""Constructors that share visits to a thread: what each returns and raises, and which wait."""

import threading
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar

import pytest
import trio

from runtime.environment import SystemEnvironment, T
from runtime.hosting.constructor_queue import ConstructorQueue
from runtime.hosting.start_scope import StartScope
from tests.waiting import until

WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


class Counting(SystemEnvironment):
    """Counts the visits to threads, and grants `granted` of them."""

    def __init__(self, granted: int = 1000) -> None:
        super().__init__()
        self.visits = 0
        self.granted = granted

    async def in_thread(
        self,
        function: Callable[[], T],
        limiter: trio.CapacityLimiter | None = None,
        *,
        abandon: bool = False,
    ) -> T:
        self.visits += 1
        if self.visits > self.granted:
            raise RuntimeError("can't start new thread")
        return await super().in_thread(function, limiter, abandon=abandon)


@pytest.fixture
async def node() -> AsyncIterator[trio.Nursery]:
    """The nursery of the node that has the queue."""
    async with trio.open_nursery() as nursery:
        yield nursery
        nursery.cancel_scope.cancel()


def queue_in(
    node: trio.Nursery, environment: SystemEnvironment, threads: int = 100
) -> ConstructorQueue:
    return ConstructorQueue(environment, node, trio.CapacityLimiter(threads))


async def run_in(queue: ConstructorQueue, function: Callable[[], T]) -> T:
    """Run a constructor as a start does."""
    with StartScope() as scope:
        result: T = await queue.run(function, scope)
    return result


class BlockedConstructor:
    """A constructor that blocks until it is released."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.may_end = threading.Event()

    def __call__(self) -> str:
        self.began.set()
        assert self.may_end.wait(60)
        return "blocked"


async def test_those_that_come_while_one_runs_share_a_thread(node: trio.Nursery) -> None:
    environment, results = Counting(), dict[int, object]()
    # No look meanwhile: a thread that waits for a processor is not one that blocks.
    queue = ConstructorQueue(environment, node, trio.CapacityLimiter(100), look_seconds=1000.0)
    first = BlockedConstructor()

    async def run(number: int) -> None:
        results[number] = await run_in(queue, lambda: number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_in, queue, first)
        await until(first.began.is_set, "the first one runs")
        async with trio.open_nursery() as others:
            for number in range(50):
                others.start_soon(run, number)
        first.may_end.set()
    assert results == {number: number for number in range(50)}
    # All have come before the second visit begins.
    assert environment.visits == 2


async def test_those_that_come_together_after_others_did_share_one_thread(
    node: trio.Nursery,
) -> None:
    environment = Counting()
    queue = ConstructorQueue(environment, node, trio.CapacityLimiter(100), look_seconds=1000.0)

    async def run_together(count: int) -> int:
        """Return how many visits to threads these took."""
        before = environment.visits
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(run_in, queue, lambda number=number: number)
        await until(lambda: not queue._visits, "no visit is left")
        return environment.visits - before

    # The first one finds no others, and has a thread of its own.
    assert [await run_together(5) for _ in range(3)] == [2, 1, 1]
    assert queue._shared
    # What comes alone is soon alone again: it does without the task of a visit.
    assert await run_together(1) == 1
    assert not queue._shared
    assert await run_together(1) == 1


async def test_after_the_end_of_the_node_none_waits_for_others(node: trio.Nursery) -> None:
    environment = Counting()
    async with trio.open_nursery() as ended:
        queue = ConstructorQueue(environment, ended, trio.CapacityLimiter(100))
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(run_in, queue, lambda: 1)
        await until(lambda: not queue._visits, "no visit is left")
        assert queue._shared
        ended.cancel_scope.cancel()
    assert await run_in(queue, lambda: "later") == "later"


async def test_those_behind_one_that_blocks_get_threads_of_their_own(node: trio.Nursery) -> None:
    queue = queue_in(node, SystemEnvironment())
    blocked = [BlockedConstructor() for _ in range(5)]
    async with trio.open_nursery() as nursery:
        for one in blocked:
            nursery.start_soon(run_in, queue, one)
        await until(lambda: all(one.began.is_set() for one in blocked), "all run")
        assert await run_in(queue, lambda: "quick") == "quick"
        for one in blocked:
            one.may_end.set()


async def test_each_raises_its_own_error_and_has_the_context_of_its_task(
    node: trio.Nursery,
) -> None:
    queue, first, found = (
        queue_in(node, SystemEnvironment()),
        BlockedConstructor(),
        dict[str, object](),
    )

    def construct() -> str:
        if WHO.get() == "second":
            raise ValueError("second")
        WHO.set("changed")
        return WHO.get()

    async def run(who: str) -> None:
        WHO.set(who)
        try:
            found[who] = await run_in(queue, construct)
        except ValueError as error:
            found[who] = error
        assert WHO.get() == who

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_in, queue, first)
        await until(first.began.is_set, "the first one runs")
        async with trio.open_nursery() as others:
            for who in ("first", "second", "third"):
                others.start_soon(run, who)
        first.may_end.set()
    assert found["first"] == found["third"] == "changed"
    assert str(found["second"]) == "second"


async def test_a_constructor_may_run_code_on_the_loop(node: trio.Nursery) -> None:
    queue, first = queue_in(node, SystemEnvironment()), BlockedConstructor()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_in, queue, first)
        await until(first.began.is_set, "the first one runs")
        ran_in = await run_in(queue, lambda: trio.from_thread.run_sync(threading.get_ident))
        assert ran_in == threading.get_ident()
        first.may_end.set()


async def test_one_that_is_cancelled_in_the_queue_never_begins(node: trio.Nursery) -> None:
    # One thread, which the first one has: the others wait.
    queue, first, ran = (
        queue_in(node, SystemEnvironment(), threads=1),
        BlockedConstructor(),
        list[str](),
    )

    async def cancelled() -> None:
        with scope:
            await run_in(queue, lambda: ran.append("cancelled"))

    scope = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_in, queue, first)
        await until(first.began.is_set, "the first one runs")
        async with trio.open_nursery() as others:
            others.start_soon(cancelled)
            await until(lambda: len(queue._waiting) == 1, "one waits")
            scope.cancel()
        nursery.start_soon(run_in, queue, lambda: ran.append("next"))
        await until(lambda: len(queue._waiting) == 2, "another one waits")
        first.may_end.set()
    assert ran == ["next"]


async def test_one_that_is_cancelled_while_it_runs_is_left_to_itself(node: trio.Nursery) -> None:
    queue, first, second = (
        queue_in(node, SystemEnvironment()),
        BlockedConstructor(),
        BlockedConstructor(),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_in, queue, first)
        await until(first.began.is_set, "the first one runs")
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as others:
                others.start_soon(run_in, queue, second)
                await until(second.began.is_set, "the second one runs")
                scope.cancel()
        assert scope.cancelled_caught
        assert await run_in(queue, lambda: 3) == 3
        first.may_end.set()
        second.may_end.set()


async def test_a_system_that_grants_no_threads_ends_those_that_wait_and_not_the_program(
    node: trio.Nursery,
) -> None:
    environment = Counting(granted=1)
    queue, first = queue_in(node, environment), BlockedConstructor()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_in, queue, first)
        await until(first.began.is_set, "the first one runs")
        for _ in range(2):
            with pytest.raises(RuntimeError, match="new thread"):
                await run_in(queue, lambda: 1)
        environment.granted = 1000
        assert await run_in(queue, lambda: 2) == 2
        first.may_end.set()


async def test_the_limit_on_threads_holds_while_many_wait(node: trio.Nursery) -> None:
    queue, running, most = queue_in(node, SystemEnvironment(), threads=3), list[int](), list[int]()
    lock = threading.Lock()

    def construct() -> None:
        with lock:
            running.append(1)
            most.append(len(running))
        threading.Event().wait(0.001)
        with lock:
            running.pop()

    async with trio.open_nursery() as nursery:
        for _ in range(60):
            nursery.start_soon(run_in, queue, construct)
    assert len(most) == 60
    assert max(most) <= 3
    # Those for which nothing is left end when they have had a thread.
    await until(lambda: not queue._visits and not queue._looked_after, "no task is left")


async def test_when_the_node_ends_each_task_that_goes_on_gets_its_constructor() -> None:
    first, second, found = BlockedConstructor(), BlockedConstructor(), dict[str, object]()
    async with trio.open_nursery() as nursery, trio.open_nursery() as node:
        # Two threads: one for the first, one for the visit. The third constructor waits.
        queue = queue_in(node, SystemEnvironment(), threads=2)

        async def run(name: str, function: Callable[[], object]) -> None:
            found[name] = await run_in(queue, function)

        nursery.start_soon(run, "first", first)
        await until(first.began.is_set, "the first one runs")
        nursery.start_soon(run, "second", second)
        await until(second.began.is_set, "the second one runs")
        nursery.start_soon(run, "third", lambda: "quick")
        await until(lambda: len(queue._waiting) == 1, "one waits")
        node.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await until(lambda: not queue._visits, "the visit is over")
            second.may_end.set()
            await until(lambda: len(found) == 2, "the second and the third one have run")
            assert found == {"second": "blocked", "third": "quick"}
            assert await run_in(queue, lambda: "later") == "later"
            first.may_end.set()
