"""A supervisor that is stopped by hand ends when its children have, each in its own time."""

from __future__ import annotations

from typing import ClassVar

import trio

from actors import Actor, ChildSpec, ExitReason, Supervisor
from runtime.node import internals_of
from runtime.simulation import Simulation, simulate
from runtime.simulation.runs import cluster_of

SLOW = 20.0
"""Seconds, more than an actor that is no supervisor has to stop."""


class Slow(Actor):
    """Takes its time to stop."""

    ends: ClassVar[list[str]] = []

    async def on_stop(self, reason: ExitReason) -> None:
        await trio.sleep(SLOW)
        self.ends.append(self.name)


class Quick(Actor):
    """Has nothing to do."""


def test_a_supervisor_has_no_limit_of_its_own() -> None:
    async def scenario(simulation: Simulation) -> None:
        Slow.ends.clear()
        spec = ChildSpec.of("slow", Slow).changed(shutdown=2 * SLOW, on="node-2")
        inner = ChildSpec.of("inner", Supervisor, [spec])
        top = await simulation.node.options(name="top", on="node-1").spawn(Supervisor, [inner])
        await simulation.node.stop(top)
        assert Slow.ends == ["top/inner/slow"]

    simulate(scenario, seeds=range(2), faults=())


def test_what_is_no_supervisor_has_five_seconds() -> None:
    async def scenario(simulation: Simulation) -> None:
        Slow.ends.clear()
        slow = await simulation.node.options(on="node-2").spawn(Slow)
        began = trio.current_time()
        await simulation.node.stop(slow)
        assert 4.9 < trio.current_time() - began < 6.5
        assert not Slow.ends

    simulate(scenario, seeds=range(2), faults=())


def test_a_pool_has_ended_when_its_stop_returns() -> None:
    async def scenario(simulation: Simulation) -> None:
        Slow.ends.clear()
        pool = await (await simulation.node.pool(None, Slow, size=2)).ready(2)
        await pool.stop()
        assert len(Slow.ends) == 2

    simulate(scenario, seeds=range(2), faults=())


def test_a_node_that_leaves_does_not_wait_for_the_streams_of_its_supervisors() -> None:
    async def scenario(simulation: Simulation) -> None:
        node = cluster_of(simulation).live("node-1")
        assert node is not None
        # Each that holds the pool follows its members: as long as the pool lives, or its holder.
        pools = [await each.pool("pool", Quick, size=2) for each in (node, simulation.node)]
        await pools[1].ready(2)
        began = trio.current_time()
        await internals_of(node).endpoint.host.drain(5.0, 8.0)
        assert trio.current_time() - began < 2.0

    simulate(scenario, seeds=range(2), faults=())
