"""Mail that is there before its actor has started."""

from __future__ import annotations

import pytest
import trio

from actors import Actor, ChildSpec, Supervisor, method
from actors.errors import UnderstudyError
from runtime.simulation import Simulation, run_scenario


class Sleepy(Actor):
    """Takes a second to start, and again as long for each call."""

    async def on_start(self) -> None:
        await trio.sleep(1.0)

    @method(concurrent=True)
    async def beside(self) -> None:
        await trio.sleep(1.0)

    @method
    async def crash(self) -> None:
        self.nursery.start_soon(self.explode)
        await trio.sleep_forever()

    async def explode(self) -> None:
        raise RuntimeError("as asked")


def test_concurrent_calls_that_waited_for_the_start_of_their_actor_run_beside_each_other() -> None:
    async def story(simulation: Simulation) -> None:
        node = simulation.node
        await node.options(name="tree").spawn(
            Supervisor, [ChildSpec.of("sleepy", Sleepy).changed(on="node-2")]
        )
        sleepy = await node.lookup("tree/sleepy", Sleepy)
        with pytest.raises(UnderstudyError):
            await sleepy.crash()
        began = simulation.now()
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(sleepy.beside)
        assert simulation.now() - began < 3.5

    report = run_scenario(story, 1, faults=())
    assert report.holds, report.wrong


def test_a_call_that_ran_for_long_before_its_actor_moved_waits_for_it_as_any_other_does() -> None:
    async def story(simulation: Simulation) -> None:
        node = simulation.node
        await node.options(name="tree").spawn(
            Supervisor, [ChildSpec.of("sleepy", Turn).changed(on="node-2")], intensity=10
        )
        turn = await node.lookup("tree/sleepy", Turn)
        async with trio.open_nursery() as nursery:

            async def first() -> None:
                with pytest.raises(UnderstudyError):
                    await turn.wait(30.0)

            nursery.start_soon(first)
            await trio.sleep(0.1)
            # Waits behind the first for so long that its patience with an owner who denies would be
            # over, had it begun with the call.
            nursery.start_soon(turn.wait, 0.1)
            await trio.sleep(12.0)
            for _ in range(2):
                await turn.crash.send()
                await trio.sleep(0.3)

    report = run_scenario(story, 1, faults=())
    assert report.holds, report.wrong


class Turn(Sleepy):
    """Its calls wait for each other."""

    @method
    async def wait(self, seconds: float) -> None:
        await trio.sleep(seconds)

    @method(concurrent=True)
    async def crash(self) -> None:
        self.nursery.start_soon(self.explode)
