"""Whether a task belongs to a method is not looked up for each of its calls: what is remembered is
that the tasks of one nursery are below no worker.
"""

from __future__ import annotations

from typing import Any, cast

import trio
import trio.testing

from runtime.environment import SystemEnvironment
from runtime.hosting.actor_turns import ActorTurns
from runtime.hosting.cell import Invocation
from runtime.hosting.chains import Chain, ChainLink

CHAIN = Chain.of([ChainLink("actor", "ask", 1)])


class Turn:
    """An invocation, as far as the turns know it."""

    def chain_of_calls(self, mark: object) -> Chain:
        return CHAIN


async def test_tasks_below_a_worker_are_never_taken_for_tasks_outside() -> None:
    running: dict[trio.lowlevel.Task, Invocation] = {}
    workers: set[trio.lowlevel.Task] = set()
    turns = ActorTurns(running, workers, SystemEnvironment())
    found: dict[str, Chain | None] = {}

    def look(who: str) -> None:
        found[who] = turns.chain(trio.lowlevel.current_task())

    async def outside(who: str) -> None:
        look(who)

    async def work() -> None:
        task = trio.lowlevel.current_task()
        workers.add(task)
        look("worker without a method")
        running[task] = cast("Any", Turn())
        look("method")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outside, "below the method")
            await trio.testing.wait_all_tasks_blocked()
        del running[task]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outside, "below the worker")
            await trio.testing.wait_all_tasks_blocked()
            # The same nursery, while the worker runs a method after all.
            running[task] = cast("Any", Turn())
            nursery.start_soon(outside, "below it later")

    # A worker's task is beside those of the program, in one nursery.
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outside, "first")
        await trio.testing.wait_all_tasks_blocked()
        assert turns._outside() is nursery
        nursery.start_soon(work)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(outside, "last")
    assert found == {
        "first": None,
        "worker without a method": None,
        "method": CHAIN,
        "below the method": CHAIN,
        "below the worker": None,
        "below it later": CHAIN,
        "last": None,
    }
