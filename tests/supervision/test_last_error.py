"""Those who wait for an actor that does not come back get its last error. On a virtual
clock.
"""

from __future__ import annotations

import pytest
import trio

from actors import Actor, ChildSpec, Supervisor, method
from actors.errors import ActorNotFoundError, UnderstudyError
from runtime.membership.restart_intents import LAST_END_SECONDS, LAST_ENDS
from runtime.node import internals_of
from runtime.simulation import Simulation, simulate
from runtime.simulation.runs import cluster_of

SEEDS = range(6)


class Doomed(Actor):
    """Starts once in its life; where it is restarted it finds that something is missing."""

    def __init__(self, other: str = "") -> None:
        self.other = other

    async def on_start(self) -> None:
        if await self.saved():
            await trio.sleep(0.3)
            raise ValueError("the table of contents is missing")
        await self.save(True)

    @method
    async def crash(self) -> None:
        self.nursery.start_soon(self.explode)
        await trio.sleep_forever()

    async def explode(self) -> None:
        raise RuntimeError("as asked")

    @method
    async def hear(self) -> str:
        return "heard"


class Well(Actor):
    """Does nothing wrong."""

    @method
    async def hear(self) -> str:
        return "heard"


async def restarts_that_all_fail(simulation: Simulation) -> None:
    node = simulation.node
    specs = [
        ChildSpec.of("doomed", Doomed).changed(on="node-2"),
        ChildSpec.of("well", Well).changed(on="node-3"),
    ]
    await node.options(name="tree").spawn(Supervisor, specs, intensity=2)
    doomed = await node.lookup("tree/doomed", Doomed)
    well = await node.lookup("tree/well", Well)
    with pytest.raises(UnderstudyError):
        await doomed.crash()
    errors: list[str] = []

    async def wait_for_it() -> None:
        with trio.fail_after(10), pytest.raises(ActorNotFoundError) as caught:
            await doomed.hear()
        errors.append(str(caught.value))

    async def look_it_up() -> None:
        with trio.fail_after(10), pytest.raises(ActorNotFoundError) as caught:
            await (await node.lookup("tree/doomed", Doomed)).hear()
        errors.append(str(caught.value))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(wait_for_it)
            nursery.start_soon(look_it_up)
    for error in errors:
        assert "ValueError: the table of contents is missing" in error
        assert "restarts within" in error
    # Its sibling went down with the supervisor, and has done nothing wrong.
    with pytest.raises(ActorNotFoundError, match="restarts within"):
        await well.hear()
    await trio.sleep(LAST_END_SECONDS + 5)
    with pytest.raises(ActorNotFoundError) as later:
        await node.lookup("tree/doomed")
    assert "last end" not in str(later.value)
    founder = cluster_of(simulation).live("node-1")
    assert founder is not None
    assert not (await internals_of(founder).store.range(LAST_ENDS)).entries


def test_callers_that_wait_for_an_actor_whose_restarts_all_fail_get_its_last_error() -> None:
    simulate(restarts_that_all_fail, seeds=SEEDS, faults=())


async def branch_that_gives_up(simulation: Simulation) -> None:
    node = simulation.node
    branch = ChildSpec.of(
        "branch", Supervisor, [ChildSpec.of("doomed", Doomed).changed(on="node-2")], intensity=0
    )
    await node.options(name="root").spawn(Supervisor, [branch.changed(on="node-3")], intensity=0)
    doomed = await node.lookup("root/branch/doomed", Doomed)
    with pytest.raises(UnderstudyError):
        await doomed.crash()
    with trio.fail_after(20), pytest.raises(ActorNotFoundError, match=r"as asked|restarts within"):
        await doomed.hear()


def test_the_end_of_a_whole_branch_is_reported_as_well() -> None:
    simulate(branch_that_gives_up, seeds=SEEDS, faults=())
