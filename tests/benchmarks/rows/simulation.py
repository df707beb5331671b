"""Simulated clusters: how much faster than the real ones they live, on one core."""

from __future__ import annotations

import time

import trio

from runtime.simulation.cluster import SimulatedCluster
from runtime.simulation.scheduler import VirtualClock, run
from tests.benchmarks.measuring import Row, Settings, at_least, in_turn

NODES = 20
SECONDS = 300
STEPS = 12
"""Times a second that each idle node does something, about; the floor's tasks do nothing as
often.
"""


async def measure(settings: Settings) -> list[Row]:
    """Idle nodes, by the processor's time: whatever else this machine does must not count. In a
    thread: a simulation has its own loop.
    """
    seconds = settings.size(SECONDS)

    async def nodes() -> float:
        return await trio.to_thread.run_sync(lambda: _speed(seconds, nodes=True))

    async def sleepers() -> float:
        return await trio.to_thread.run_sync(lambda: _speed(seconds, nodes=False))

    figures = await in_turn(settings.rounds, nodes, sleepers)
    row = Row(
        f"{NODES} idle simulated nodes",
        "x real",
        *figures,
        against=f"floor, {NODES} tasks that wake as often",
    )
    return [at_least(row, value=200)]


def _speed(seconds: float, *, nodes: bool) -> float:
    """Virtual seconds per second of the processor."""
    speeds: list[float] = []

    async def live(clock: VirtualClock) -> None:
        if nodes:
            cluster = SimulatedCluster(0, [f"node-{number}" for number in range(NODES)], clock)
            await cluster.run(lambda: idle(cluster))
        else:
            async with trio.open_nursery() as nursery:
                for _ in range(NODES):
                    nursery.start_soon(sleeper)
                await waited()
                nursery.cancel_scope.cancel()

    async def idle(cluster: SimulatedCluster) -> None:
        await (await cluster.node("node-0")).wait_for(NODES)
        await waited()

    async def waited() -> None:
        began = time.thread_time()
        await trio.sleep(seconds)
        speeds.append(seconds / (time.thread_time() - began))

    async def sleeper() -> None:
        while True:  # noqa: ASYNC110  the floor is made of wakings
            await trio.sleep(1 / STEPS)

    run(0, live)
    return speeds[0]
