"""A child whose start calls a child before it that has ended: the call waits for a restart, which
comes only after that start. On a virtual clock.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

from actors import Actor, ChildSpec, Supervisor
from runtime.simulation import Simulation, simulate
from tests.supervision.workers import Worker
from tests.waiting import until

STRATEGIES = ("one-for-one", "one-for-all", "rest-for-one")


class Leaning(Worker):
    """Calls `top/base` in its start. In its `breaking` start, the base has ended by then."""

    def __init__(self, breaking: int) -> None:
        self.breaking = breaking

    async def on_start(self) -> None:
        starts.append(self.name)
        base = await self.node.lookup("top/base", Worker)
        if len(starts) == self.breaking:
            await base.fail.send()
            await self.node.wait_ended(base)
        await base.life()


class Slow(Worker):
    """Takes its time to start, and calls no other child. The base ends meanwhile."""

    async def on_start(self) -> None:
        starts.append(self.name)
        if len(starts) == 1:
            await (await self.node.lookup("top/base", Worker)).fail.send()
        await trio.sleep(7)


class Last(Actor):
    """Is started after those."""

    async def on_start(self) -> None:
        starts.append(self.name)


starts: list[str] = []
"""The children but for the base, in the order of their starts."""


async def opened(simulation: Simulation, *specs: ChildSpec, strategy: Any) -> Supervisor:
    starts.clear()
    children = [ChildSpec.of("base", Worker), *specs, ChildSpec.of("last", Last)]
    spawner = simulation.node.options(name="top", timeout=60.0)
    return await spawner.spawn(Supervisor, children, strategy=strategy, intensity=5)


async def states(top: Supervisor) -> list[tuple[str, str]]:
    return [(status.id, status.state) for status in await top.children()]


RUNNING = [("base", "running"), ("second", "running"), ("last", "running")]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_start_that_waits_for_a_child_before_it_does_not_hold_up_the_start_of_its_supervisor(
    strategy: Any,
) -> None:
    async def story(simulation: Simulation) -> None:
        with trio.fail_after(10):
            top = await opened(simulation, ChildSpec.of("second", Leaning, 1), strategy=strategy)
            assert await states(top) == RUNNING
        assert starts == ["top/second", "top/second", "top/last"]
        # The end of the base counts, and the start that was given up does not.
        assert (await top.status()).recent_restarts == 1

    simulate(story, seeds=range(2), faults=())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_restart_that_waits_for_a_child_before_it_is_made_after_that_childs_restart(
    strategy: Any,
) -> None:
    async def story(simulation: Simulation) -> None:
        top = await opened(simulation, ChildSpec.of("second", Leaning, 3), strategy=strategy)
        second = await simulation.node.lookup("top/second", Leaning)
        with trio.fail_after(10):
            await second.fail.send()
            await simulation.node.wait_ended(second)
            # These calls wait for the restarts.
            assert (await second.life())[1] > 0
            assert (await (await simulation.node.lookup("top/base", Worker)).life())[1] > 0
        assert await states(top) == RUNNING
        assert (await top.status()).recent_restarts == 2

    simulate(story, seeds=range(2), faults=())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_start_that_takes_its_time_and_waits_for_no_other_child_succeeds(strategy: Any) -> None:
    async def story(simulation: Simulation) -> None:
        top = await opened(simulation, ChildSpec.of("second", Slow), strategy=strategy)
        with trio.fail_after(60):
            await (await simulation.node.lookup("top/second", Slow)).life()
            await until(lambda: states(top), "all run", lambda seen: seen == RUNNING)
            # What was begun before the base had ended, and what was put off for it, is over.
            assert starts.count("top/second") <= 4

    simulate(story, seeds=range(2), faults=())
