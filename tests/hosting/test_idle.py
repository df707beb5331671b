"""Actors that are stopped when nobody calls them: from when on that counts, and what keeps them."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from trio.abc import Instrument

from actors import Actor, ChildSpec, method
from actors.errors import ActorNotFoundError
from runtime import open_node
from runtime.hosting.cell import Invocation
from runtime.node import internals_of
from runtime.simulation import Simulation, simulate
from tests.hosting.test_outcomes import Outcomes
from tests.waiting import until

SECRET = "a secret of the tests of idleness"


class Sleeper(Actor):
    """Takes as long as it is told to."""

    @method
    async def sleep(self, seconds: float) -> int:
        await trio.sleep(seconds)
        return self.epoch

    @method(concurrent=True)
    async def beside(self, seconds: float) -> int:
        await trio.sleep(seconds)
        return self.epoch

    @method
    async def crash(self) -> None:
        raise SystemExit("as asked")


@pytest.mark.parametrize("name", ["sleep", "beside"])
@pytest.mark.parametrize("seconds", [0.0, 0.9, 1.0, 2.5, 10.5])
def test_the_idle_time_begins_when_the_last_call_has_ended_however_long_that_took(
    name: str, seconds: float
) -> None:
    async def story(simulation: Simulation) -> None:
        sleeper: Any = await simulation.node.options(
            name="sleeper", on="node-2", idle_timeout=1.0
        ).spawn(Sleeper)
        epoch = await getattr(sleeper, name)(seconds)
        for _ in range(5):
            await trio.sleep(0.8)
            assert await getattr(sleeper, name)(seconds) == epoch
        await trio.sleep(2.1)
        with pytest.raises(ActorNotFoundError):
            await sleeper.sleep(0.0)

    simulate(story, seeds=range(2), faults=())


class AtTheLastMoment(Instrument):
    """Delivers an invocation when the end of an idle actor has been decided, and nothing of it has
    run yet.
    """

    def __init__(self, host: Any, cell: Any, concurrent: bool) -> None:
        self.host, self.cell = host, cell
        self.method = "beside" if concurrent else "sleep"
        self.outcomes = Outcomes()
        self.times = 3

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        if self.times and task.name.rpartition(".")[2] in ("stop", "_end_of_idleness"):
            self.times -= 1
            invocation = Invocation(
                self.cell,
                self.cell.methods[self.method],
                (0.0,),
                {},
                self.outcomes,
                None,
                1,
                float("inf"),
            )
            assert self.host.deliver(invocation) is None


@pytest.mark.parametrize("concurrent", [False, True])
async def test_mail_that_is_there_when_an_actor_goes_idle_keeps_it(concurrent: bool) -> None:
    async with open_node("alone", secret=SECRET) as node:
        await node.options(name="sleeper", idle_timeout=0.02).spawn(Sleeper)
        cell = internals_of(node).cells["sleeper"]
        late = AtTheLastMoment(internals_of(node).host, cell, concurrent)
        trio.lowlevel.add_instrument(late)
        try:
            await until(lambda: cell.ended, "the actor has ended", lambda ended: ended is not None)
        finally:
            trio.lowlevel.remove_instrument(late)
        assert late.outcomes.heard == [cell.address.epoch] * 3
        assert cell.ended is not None
        assert cell.ended.kind == "idle"


async def test_an_actor_that_ends_otherwise_is_not_stopped_for_idleness_as_well() -> None:
    async with open_node("alone", secret=SECRET) as node:
        sleeper = await node.options(name="sleeper", idle_timeout=5.0).spawn(Sleeper)
        ended = None
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                nonlocal ended
                ended = await node.wait_ended(sleeper)

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked(0.01)
            await sleeper.crash.send()
        assert ended is not None
        assert ended.reason.kind == "raised"


def test_a_permanent_child_with_an_idle_timeout_is_refused_for_it_would_never_stay_idle() -> None:
    with pytest.raises(
        ValueError,
        match="child 'a': a permanent child is started again whenever it ends, so idle_timeout "
        "makes no sense",
    ):
        ChildSpec.of("a", Sleeper).changed(idle_timeout=1.0)
    assert (
        ChildSpec.of("a", Sleeper)
        .changed(idle_timeout=1.0, restart="transient")
        .options.idle_timeout
        == 1.0
    )
