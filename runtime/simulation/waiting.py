"""When a simulated cluster is whole."""

from __future__ import annotations

import trio

from runtime.simulation.cluster import SimulatedCluster

LOOK_EVERY = 0.1


async def all_up(cluster: SimulatedCluster) -> None:
    """Wait until every machine has a node, and every node sees all of them."""
    while True:
        nodes = [cluster.live(name) for name in cluster.machines]
        if all(node is not None and sum(each.state == "up" for each in node.members()) == len(nodes) for node in nodes):
            return
        await trio.sleep(LOOK_EVERY)
