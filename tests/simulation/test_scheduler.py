"""The order of what happens in a simulation depends on its seed, and on nothing else."""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing

from runtime.simulation import simulate_once
from runtime.simulation.report import Trace
from runtime.simulation.scheduler import VirtualClock, run


@pytest.mark.parametrize("how", ["together", "at the same time"])
def test_what_is_cancelled_at_once_is_cancelled_in_the_order_in_which_it_began(how: str) -> None:
    cancelled: list[int] = []

    async def main(clock: VirtualClock) -> None:
        scopes = [
            trio.CancelScope(deadline=float("inf") if how == "together" else 5.0)
            for _ in range(100)
        ]

        async def wait(number: int) -> None:
            def note(raise_cancel: object) -> trio.lowlevel.Abort:
                cancelled.append(number)
                return trio.lowlevel.Abort.SUCCEEDED

            # In memory they lie in another order.
            with scopes[number * 37 % len(scopes)]:
                await trio.lowlevel.wait_task_rescheduled(note)

        async with trio.open_nursery() as nursery:
            for number in range(len(scopes)):
                nursery.start_soon(wait, number)
                await trio.testing.wait_all_tasks_blocked()
            if how == "together":
                nursery.cancel_scope.cancel()

    run(1, main)
    # trio goes through what a scope encloses from its end.
    assert cancelled == sorted(cancelled, reverse=how == "together")
    assert len(cancelled) == 100


def test_an_event_loop_in_another_thread_changes_nothing_about_a_seed() -> None:
    """As the loop of `runtime.blocking` is, in a process that also simulates."""
    alone = simulate_once(7, seconds=1.0).trace_hash
    begun, over = threading.Event(), threading.Event()

    async def be_busy() -> None:
        begun.set()
        while not over.is_set():
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(trio.lowlevel.checkpoint)

    thread = threading.Thread(target=trio.run, args=(be_busy,))
    thread.start()
    try:
        assert begun.wait(10)
        beside = [simulate_once(7, seconds=1.0).trace_hash for _ in range(2)]
    finally:
        over.set()
        thread.join()
    assert beside == [alone, alone]


def test_what_a_killed_process_sees_at_the_end_of_a_run_breaks_no_promise() -> None:
    trace, found = Trace(lambda: 0.0), list[str]()
    trace.violation(found, "node-1", "while the nodes live")
    trace.end_judging()
    trace.violation(found, "node-2", "in the last step of a task that was killed long ago")
    assert found == ["while the nodes live"]
    assert [event.kind for event in trace.events] == ["wrong"]
