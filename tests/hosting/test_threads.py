"""What is plain, and may block, runs in threads: constructors, hooks, methods. None that blocks
holds up what is not its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from actors import Actor, ChildSpec, SpawnOptions, Supervisor, method
from actors.actor import Ended
from actors.errors import ActorStartError, CallTimeoutError
from actors.supervision import ExitReason
from runtime import open_node
from runtime.environment import SystemEnvironment
from runtime.testing import Platform
from tests.waiting import until

SECRET = "a secret for the tests of threads"


class Gate:
    """What plain code waits for in its thread, for at most 20 s, and how much of it does."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._lock = threading.Lock()
        self.waiting = 0

    def wait(self) -> None:
        with self._lock:
            self.waiting += 1
        self._open.wait(20)

    def set(self) -> None:
        self._open.set()

    async def until_waiting(self, count: int) -> None:
        await until(lambda: self.waiting, f"{count} wait", lambda waiting: waiting >= count)


GATES: list[Gate] = []
"""The one of the test that runs."""


@pytest.fixture
def gate() -> Iterator[Gate]:
    GATES.append(made := Gate())
    yield made
    made.set()
    GATES.clear()


def on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class Slow(Actor):
    """Its constructor waits for the gate."""

    def __init__(self) -> None:
        GATES[0].wait()

    @method
    async def answer(self) -> str:
        return "slow"


class Plain(Actor):
    """Everything of it is plain, and remembers where it ran."""

    seen: list[tuple[str, bool]]

    def __init__(self, seen: list[Any] | None = None) -> None:
        self.seen = [("__init__", on_main_thread())]
        self.woken = threading.Event()
        self.nursery.start_soon(self.beside)

    async def beside(self) -> None:
        self.seen.append(("its own task", on_main_thread()))
        self.woken.set()

    def on_start(self) -> None:
        # The task that the constructor started runs while this waits.
        assert self.woken.wait(10)
        self.seen.append(("on_start", on_main_thread()))

    def on_stop(self, reason: ExitReason) -> None:
        self.seen.append(("on_stop", on_main_thread()))
        PARTING.append(self.seen)

    def on_ended(self, notice: Ended) -> None:
        self.seen.append(("on_ended", on_main_thread()))

    @method
    def where(self) -> list[tuple[str, bool]]:
        return list(self.seen)

    @method
    async def observe(self, other: Any) -> None:
        await self.watch(other)


PARTING: list[list[tuple[str, bool]]] = []


class Blocking(Actor):
    """Plain methods that wait for the gate."""

    @method
    def block(self) -> str:
        GATES[0].wait()
        return "done"

    @method(concurrent=True)
    def block_beside(self) -> str:
        GATES[0].wait()
        return "done"

    @method(concurrent=True)
    def answer(self) -> str:
        return "here"


async def test_a_constructor_that_blocks_holds_up_nobody_on_its_node_and_can_be_given_up(
    gate: Gate,
) -> None:
    async with open_node("alone", secret=SECRET) as node:
        other = await node.spawn(Blocking)
        with trio.fail_after(60):
            with trio.move_on_after(0.1) as patience:
                await node.options(name="slow").spawn(Slow)
            assert patience.cancelled_caught
            assert await other.answer() == "here"
            # The name is free again, although the thread of the one that was given up still waits.
            async with trio.open_nursery() as nursery:
                started: list[Slow] = []

                async def start() -> None:
                    started.append(await node.options(name="slow").spawn(Slow))

                nursery.start_soon(start)
                assert await other.answer() == "here"
                gate.set()
            assert await started[0].answer() == "slow"


async def test_plain_hooks_run_in_threads_and_may_start_tasks_on_the_loop() -> None:
    async with open_node("alone", secret=SECRET) as node:
        with trio.fail_after(60):
            plain = await node.options(name="plain").spawn(Plain)
            ended = await node.spawn(Blocking)
            await plain.observe(ended)
            await node.stop(ended)
            await until(plain.where, "the notice has arrived", lambda found: len(found) >= 4)
            await node.stop(plain)
    expected = [
        ("__init__", False),
        ("its own task", True),
        ("on_start", False),
        ("on_ended", False),
        ("on_stop", False),
    ]
    assert PARTING.pop() == expected


class Refusing(Actor):
    def __init__(self) -> None:
        raise ValueError("not this one")


class Wrapped(Actor):
    """As decorators leave it: a plain function around a coroutine function."""

    def on_start(self) -> Any:
        return self.really_start()

    async def really_start(self) -> None:
        await trio.lowlevel.checkpoint()
        self.begun = on_main_thread()

    @method
    async def has_begun(self) -> bool:
        return self.begun


async def test_a_constructor_that_raises_in_its_thread_is_reported_with_its_line() -> None:
    async with open_node("alone", secret=SECRET) as node:
        with pytest.raises(ActorStartError, match="ValueError: not this one") as caught:
            await node.spawn(Refusing)
        assert "in __init__" in str(caught.value.remote_traceback)
        assert await (await node.spawn(Wrapped)).has_begun()


async def test_forty_methods_that_block_stop_neither_those_of_others_nor_the_threads_of_the_runtime(
    gate: Gate,
) -> None:
    environment = SystemEnvironment()
    async with open_node(
        "alone", secret=SECRET, platform=Platform(environment=environment)
    ) as node:
        greedy = await node.spawn(Blocking)
        others = [await node.spawn(Blocking) for _ in range(40)]
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for _ in range(60):
                    nursery.start_soon(greedy.block_beside)
                for other in others:
                    nursery.start_soon(other.block)
                # Also what users block by themselves: trio's own limit is for 40 in the whole
                # program.
                for _ in range(40):
                    nursery.start_soon(trio.to_thread.run_sync, gate.wait)
                await gate.until_waiting(40 + 40 + 40)
                assert await (await node.spawn(Blocking)).answer() == "here"
                assert await (await node.spawn(Plain)).where()
                assert await environment.in_thread(lambda: "disk") == "disk"
                # The greedy one has as many threads as one actor may have; its next call waits for
                # one, within its time.
                with pytest.raises(CallTimeoutError):
                    await greedy.answer.options(timeout=0.2)()
                gate.set()
            assert await greedy.answer() == "here"


@pytest.mark.parametrize("where", ["actor", "node"])
async def test_the_limit_is_the_actors_or_the_nodes_own(gate: Gate, where: str) -> None:
    async with open_node(
        "alone", secret=SECRET, thread_limit=2 if where == "node" else 100
    ) as node:
        options = SpawnOptions(thread_limit=2 if where == "actor" else None)
        spec = ChildSpec(id="child", actor=Blocking, options=options)
        await node.options(name="tree").spawn(Supervisor, [spec])
        child = await node.lookup("tree/child", Blocking)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(child.block_beside)
                await gate.until_waiting(2)
                with pytest.raises(CallTimeoutError):
                    await child.answer.options(timeout=0.2)()
                assert gate.waiting == 2
                gate.set()


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_limit_that_leaves_no_thread_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="thread_limit"):
        SpawnOptions(thread_limit=limit)
    with pytest.raises(ValueError, match="thread_limit"):
        async with open_node("alone", secret=SECRET, thread_limit=limit):
            pass
    with pytest.raises(TypeError, match="thread_limit"):
        SpawnOptions(thread_limit=True)


class OwnThread(Actor):
    """Starts a task from a thread that it has made itself."""

    @method
    def start(self) -> str:
        outcome: list[str] = []

        def start() -> None:
            try:
                self.nursery.start_soon(trio.sleep, 0)
            except RuntimeError as error:
                outcome.append(str(error))

        thread = threading.Thread(target=start)
        thread.start()
        thread.join(10)
        return outcome[0]


async def test_the_nursery_says_in_which_threads_it_can_be_used() -> None:
    async with open_node("alone", secret=SECRET) as node:
        assert "trio_token=token" in await (await node.spawn(OwnThread)).start()
