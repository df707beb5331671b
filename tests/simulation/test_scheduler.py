"""The order of what happens in a simulation depends on its seed, and on nothing else."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from runtime.simulation.scheduler import VirtualClock, run


@pytest.mark.parametrize("how", ["together", "at the same time"])
def test_what_is_cancelled_at_once_is_cancelled_in_the_order_in_which_it_began(how: str) -> None:
    cancelled: list[int] = []

    async def main(clock: VirtualClock) -> None:
        scopes = [trio.CancelScope(deadline=float("inf") if how == "together" else 5.0) for _ in range(100)]

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
