"""How long until a death is known, and until a named actor answers elsewhere: `python -m
tests.benchmarks.deaths [KILLS] [PAUSES]`.

Real processes of a local cluster are killed (SIGKILL), or stopped (SIGSTOP), while a supervised
actor with a name is on them. Then one runs for a minute with every core taken by others and with
event loops that are blocked for 2 s every 10 s: nobody may be held for dead.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Sequence

import attrs
import trio

from actors import Actor, ChildSpec, SpawnOptions, Supervisor, method
from actors.errors import CallError
from runtime.cluster_processes import LocalCluster
from runtime.local_cluster import open_local_cluster
from tests.command_arguments import call_with_arguments
from tests.waiting import until

QUIET_SECONDS = 60.0
BLOCK_SECONDS = 2.0
BLOCK_EVERY = 10.0


class Keeper(Actor):
    """Says where it is."""

    @method(idempotent=True)
    async def where(self) -> str:
        return self.node.name


class Blocker(Actor):
    """Blocks its node's event loop again and again, as bad code does."""

    async def on_start(self) -> None:
        self.nursery.start_soon(self.block)

    async def block(self) -> None:
        while True:
            await trio.sleep(BLOCK_EVERY - BLOCK_SECONDS)
            time.sleep(BLOCK_SECONDS)  # noqa: ASYNC251  that is the point


@attrs.define
class Times:
    """Seconds, of each death."""

    known: list[float] = attrs.field(factory=list)
    answered: list[float] = attrs.field(factory=list)


def shown(what: str, times: Sequence[float], goal: float) -> str:
    """One line."""
    ordered = sorted(times)
    late = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    mark = "met" if late <= goal else "MISSED"
    middle = statistics.median(ordered)
    figures = f"p50 {middle * 1000:7.1f} ms  p99 {late * 1000:7.1f} ms  goal {goal * 1000:6.0f} ms"
    return f"{what:<58} n {len(ordered):3}  {figures}  {mark}"


async def start(cluster: LocalCluster, serial: list[int]) -> None:
    """One more node that may keep the actor."""
    serial[0] += 1
    await cluster.start_node(f"keeper-{serial[0]}", labels={"keeps": "it"})


async def die(cluster: LocalCluster, serial: list[int], times: Times, *, silently: bool) -> None:
    """Kill or stop the node that has the actor, and measure."""
    keeper = await cluster.node.lookup("keeper", Keeper)
    name = await keeper.where()
    process = cluster.process(name)
    began = trio.current_time()

    async def wait_known() -> None:
        if silently:
            await until(
                cluster.node.unreachable, f"{name} is out of reach", lambda names: name in names
            )
        else:
            await cluster.node.wait_gone(name)
        times.known.append(trio.current_time() - began)

    async def wait_answered() -> None:
        while True:
            try:
                where = await keeper.where.options(timeout=20.0)()
            except CallError:
                await trio.sleep(0.001)
                continue
            if where != name:
                break
            await trio.sleep(0.001)
        times.answered.append(trio.current_time() - began)

    if silently:
        process.pause()
    else:
        process.kill()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_known)
        nursery.start_soon(wait_answered)
    process.kill()
    await process.wait()
    await start(cluster, serial)


async def measure(kills: int, pauses: int) -> tuple[Times, Times]:
    """Kill and stop one node after another."""
    killed, paused = Times(), Times()
    serial = [0]
    async with open_local_cluster(nodes=0, cluster="deaths") as cluster:
        for _ in range(3):
            await start(cluster, serial)
        spec = ChildSpec(
            id="keeper", actor=Keeper, options=SpawnOptions(name="keeper", labels={"keeps": "it"})
        )
        await cluster.node.options(name="supervisor").spawn(Supervisor, [spec], intensity=10_000)
        for _ in range(kills):
            await die(cluster, serial, killed, silently=False)
        for _ in range(pauses):
            await die(cluster, serial, paused, silently=True)
    return killed, paused


async def false_deaths(seconds: float) -> int:
    """How many members went while all cores were taken and event loops were blocked, though nobody
    died.
    """
    gone = 0
    async with trio.open_nursery() as hogs:
        for _ in range(2 * (os.cpu_count() or 1)):
            await hogs.start(trio.run_process, [sys.executable, "-c", "while True: pass"])
        async with open_local_cluster(nodes=4, cluster="saturated") as cluster:
            for name in ("driver", "worker-1", "worker-2"):
                await cluster.node.options(on=name).spawn(Blocker)
            before = {(member.name, member.incarnation) for member in cluster.node.members()}
            with trio.move_on_after(seconds):
                async for members in cluster.node.watch_members():
                    gone = max(
                        gone,
                        len(before - {(member.name, member.incarnation) for member in members}),
                    )
        hogs.cancel_scope.cancel()
    return gone


def main(kills: int = 50, pauses: int = 50) -> int:
    """Print the figures. Returns 1 if a goal is missed."""
    killed, paused = trio.run(measure, kills, pauses)
    lines: list[str] = []
    if kills:
        lines.append(shown("killed: known to the others", killed.known, 0.25))
        lines.append(shown("killed: its named actor answers elsewhere", killed.answered, 1.5))
    if pauses:
        lines.append(shown("stopped: known to be unreachable", paused.known, 3.0))
        lines.append(shown("stopped: its named actor answers elsewhere", paused.answered, 8.0))
    gone = trio.run(false_deaths, QUIET_SECONDS)
    lines.append(
        f"{'members lost in a minute of taken cores and blocked loops':<58} {gone}  goal 0  "
        f"{'met' if not gone else 'MISSED'}"
    )
    sys.stdout.write("\n".join(lines) + "\n")
    return int(any("MISSED" in line for line in lines))


if __name__ == "__main__":
    # Node processes import this file again, under its own name.
    from tests.benchmarks.deaths import main as run

    sys.exit(call_with_arguments(run))
