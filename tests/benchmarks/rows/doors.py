"""One call after the other at each door, beside trio's: the same method of the same actor. Beside
them the least that crossing to a thread costs: trio's own calls, made for that thread by one task
that it wakes, with nothing else around them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from runtime import aio, blocking
from tests.benchmarks.measuring import Row, Settings, at_least, in_turn, sequential
from tests.benchmarks.ours import Bench, open_bench

OF_TRIO = 0.5
STEP = 20


class BareCrossing:
    """One task of trio that makes a call for another thread each time it is woken, and hands the
    outcome to `answer`: a lock, or a future, and no requests, errors, cancellation or end.
    """

    def __init__(self, bench: Bench) -> None:
        self.answer: Callable[[int], object]
        self._bench = bench
        self._task: trio.lowlevel.Task
        self._token = trio.lowlevel.current_trio_token()

    async def serve(self, task_status: trio.TaskStatus[None]) -> None:
        """The task."""
        self._task = trio.lowlevel.current_task()
        task_status.started()
        while True:
            await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.SUCCEEDED)
            self.answer(await self._bench.read())

    def ask(self) -> None:
        """Wake it; in the other thread."""
        self._token.run_sync_soon(trio.lowlevel.reschedule, self._task)


@asynccontextmanager
async def bare_crossing(bench: Bench) -> AsyncIterator[BareCrossing]:
    """A task that makes calls for another thread."""
    crossing = BareCrossing(bench)
    async with trio.open_nursery() as nursery:
        await nursery.start(crossing.serve)
        yield crossing
        nursery.cancel_scope.cancel()


def locked(crossing: BareCrossing, seconds: float) -> float:
    """Calls per second of a thread that waits in a lock."""
    done = threading.Lock()
    done.acquire()
    crossing.answer = lambda _: done.release()

    def call() -> None:
        crossing.ask()
        done.acquire()

    return in_sequence(call, seconds)


async def in_loop(crossing: BareCrossing, seconds: float) -> float:
    """Calls per second of a task of asyncio that waits for a future."""
    loop = asyncio.get_running_loop()
    waiting: list[asyncio.Future[int]] = []
    crossing.answer = lambda value: loop.call_soon_threadsafe(waiting.pop().set_result, value)

    async def call() -> None:
        future = loop.create_future()
        waiting.append(future)
        crossing.ask()
        await future

    return await in_asyncio(call, seconds)


def in_sequence(call: Callable[[], object], seconds: float) -> float:
    """Calls per second of this thread."""
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(STEP):
            call()
        count += STEP
    return count / (time.perf_counter() - began)


async def in_asyncio(call: Callable[[], Any], seconds: float) -> float:
    """Calls per second of this task of asyncio."""
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(STEP):
            await call()
        count += STEP
    return count / (time.perf_counter() - began)


async def measure(settings: Settings) -> list[Row]:
    """Trio's side waits while the others call, each in a thread of this process."""
    async with open_bench() as (bench, cluster):
        address, seconds = cluster.address, settings.seconds

        def at_blocking() -> float:
            with blocking.connect(address) as connection:
                return in_sequence(connection.handle(bench).read, seconds)

        async def at_asyncio() -> float:
            async with aio.connect(address) as connection:
                return await in_asyncio(connection.handle(bench).read, seconds)

        async with bare_crossing(bench) as bare:
            trios, ours, theirs, lock, future = await in_turn(
                settings.rounds,
                lambda: sequential(bench.read, seconds),
                lambda: trio.to_thread.run_sync(at_blocking),
                lambda: trio.to_thread.run_sync(lambda: asyncio.run(at_asyncio())),
                lambda: trio.to_thread.run_sync(locked, bare, seconds),
                lambda: trio.to_thread.run_sync(lambda: asyncio.run(in_loop(bare, seconds))),
            )
    rows = []
    for door, figure, crossing in (("blocking", ours, lock), ("asyncio", theirs, future)):
        work = f"one call after the other, {door} door"
        row = Row(work, "calls/s", figure, trios, against="trio")
        rows += [
            at_least(row, ratio=OF_TRIO),
            Row(
                f"the same beside a bare {'lock' if crossing is lock else 'future'}",
                "calls/s",
                figure,
                crossing,
                against="a task that another thread wakes",
            ),
        ]
    return rows
