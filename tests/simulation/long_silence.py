"""The store answers nothing for longer than any caller waits for it; a caller that asks meanwhile
gets an error in time.
"""

from __future__ import annotations

import trio

from actors.errors import CallError
from runtime.simulation import Report, Simulation, run_scenario
from runtime.simulation.runs import cluster_of
from runtime.simulation.workload import LOOKUP_SECONDS

SILENT_SECONDS = 2 * LOOKUP_SECONDS


async def long_silence(simulation: Simulation) -> None:
    """Ask on each node for names, and for the tree, at moments of the seed's."""
    cluster, draw = cluster_of(simulation), simulation.random
    late: list[str] = []

    async def ask(name: str) -> None:
        await trio.sleep(draw.random())
        node = cluster.live(name)
        if node is None:
            return
        with trio.move_on_after(LOOKUP_SECONDS) as patience:
            try:
                await (node.lookup("nobody") if draw.random() < 0.8 else node.tree())
            except CallError:
                # One of the three outcomes; anything else ends the scenario, and fails it.
                return
        if patience.cancelled_caught:
            late.append(f"{name} was not answered within {LOOKUP_SECONDS:g} s")

    heal = cluster.silence_store()
    with trio.CancelScope(shield=True):
        # The scenario's own node is given up as the others are: that is none of its business here.
        async with trio.open_nursery() as nursery:
            for name in simulation.nodes:
                for _ in range(3):
                    nursery.start_soon(ask, name)
            await trio.sleep(SILENT_SECONDS)
            heal()
    assert not late, late


def silence(seed: int) -> Report:
    """The story under one seed."""
    return run_scenario(long_silence, seed, nodes=2, faults=())
