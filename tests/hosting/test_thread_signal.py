"""Signals from threads to the loop: they arrive, and do not stop the thread that gives them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest
import trio
import trio.testing

from runtime.hosting.thread_signal import ThreadSignal
from tests.waiting import until


class Called:
    """Counts the runs of a callback, and says where they were."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        assert trio.lowlevel.in_trio_run()
        self.times += 1

    def has_run(self, times: int) -> bool:
        return self.times == times


@pytest.fixture
def one_thread_for_long() -> Iterator[None]:
    """The interpreter switches threads only when one of them waits."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(5)
    yield
    sys.setswitchinterval(usual)


async def test_signals_of_a_thread_that_computes_wait_until_it_waits(
    nursery: trio.Nursery, one_thread_for_long: None
) -> None:
    called = Called()
    with closing(ThreadSignal(called)) as signal:
        nursery.start_soon(signal.run)

        def compute() -> int:
            for _ in range(50_000):
                signal.set()
            return called.times

        assert await trio.to_thread.run_sync(compute) == 0
        await until(lambda: called.times, "the loop knows")
        assert called.times == 1, "once for all of them"


async def test_each_later_signal_arrives(nursery: trio.Nursery) -> None:
    called = Called()
    with closing(ThreadSignal(called)) as signal:
        nursery.start_soon(signal.run)
        for times in range(1, 4):
            await trio.to_thread.run_sync(signal.set)
            await until(partial(called.has_run, times), f"signal {times} has arrived")


async def test_an_urgent_signal_does_not_wait(
    nursery: trio.Nursery, one_thread_for_long: None
) -> None:
    called = Called()
    with closing(ThreadSignal(called)) as signal:
        nursery.start_soon(signal.run)

        def compute() -> None:
            while not called.times:
                signal.set_at_once()

        await trio.to_thread.run_sync(compute)


async def test_without_a_file_to_open_signals_arrive(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> int:
        raise OSError("too many open files")

    monkeypatch.setattr(os, "eventfd", refuse)
    called = Called()
    with closing(ThreadSignal(called)) as signal:
        nursery.start_soon(signal.run)
        for times, give in enumerate((signal.set, signal.set_at_once), 1):
            await trio.to_thread.run_sync(give)
            await until(partial(called.has_run, times), "the signal has arrived")


async def test_it_runs_until_it_is_closed_and_leaves_no_file_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    eventfd = os.eventfd

    def noted(*args: int) -> int:
        made.append(eventfd(*args))
        return made[-1]

    # Its own file: the number of all files changes when the collector closes others' at any time.
    monkeypatch.setattr(os, "eventfd", noted)
    signal = ThreadSignal(Called())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(signal.run)
        nursery.cancel_scope.cancel()
        with closing(signal), trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
            assert len(nursery.child_tasks) == 1, "cancelling it has no effect"
            os.fstat(made[0])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made[0])


async def test_closed_before_it_ran_it_ends_at_once() -> None:
    signal = ThreadSignal(Called())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(signal.run)
        signal.close()


@pytest.mark.parametrize("repetition", range(20))
async def test_closed_when_a_signal_has_just_come_it_ends(repetition: int) -> None:
    # Which of the two tasks has its turn first is left to chance.
    signal = ThreadSignal(Called())
    async with trio.open_nursery() as nursery:
        with closing(ThreadSignal(signal.close)) as other:
            nursery.start_soon(signal.run)
            nursery.start_soon(other.run)  # noqa: ASYNC111  closing it ends its task
            await trio.testing.wait_all_tasks_blocked()
            signal.set()
            other.set()
            await trio.testing.wait_all_tasks_blocked()
