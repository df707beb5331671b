"""Many node processes on this machine: `python -m tests.growth.nodes 10 50`, or more of them.

For each number: seconds until all are up, what an idle node costs, how many calls each second they
make of each other, and how long until all of them know that one was killed.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from statistics import fmean, median

import attrs
import click
import trio

from actors import Actor, method
from runtime import LocalCluster, Node, open_local_cluster
from tests.waiting import until

IDLE_SECONDS = 5.0
"""How long idle nodes are watched."""

SETTLING_SECONDS = 2.0
"""Before that: what a start leaves to be done."""

CALLING_SECONDS = 0.5
"""How long each node calls others."""

CALLERS = 8
"""Nodes that call at a time."""

CALLED = 4
"""How many other nodes each one calls, one call after the other to each."""

USUAL = (10, 50)

TICKS = os.sysconf("SC_CLK_TCK")

MEBIBYTE = 1024 * 1024


class Witness(Actor):
    """Sees the members as its node does."""

    @method(concurrent=True)
    async def gone(self, name: str) -> float:
        """Wait until a node is no member; the time of that, on the clock of the machine."""
        assert isinstance(self.node, Node)
        async for members in self.node.watch_members():
            if name not in {member.name for member in members}:
                break
        return time.monotonic()

    @method
    async def seen(self) -> int:
        """How many members there are."""
        return len(self.node.members())

    @method(concurrent=True)
    async def answer(self) -> int:
        """Does nothing."""
        return 16

    @method(concurrent=True)
    async def call(self, others: list[Witness], seconds: float) -> int:
        """Call all of these, each again and again; how often in so many seconds."""
        counts = [0] * len(others)

        async def one(place: int, other: Witness) -> None:
            answer = other.answer
            while True:
                await answer()
                counts[place] += 1

        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                for place, other in enumerate(others):
                    nursery.start_soon(one, place, other)
        return sum(counts)


@attrs.frozen
class Nodes:
    """What so many nodes cost. `processor`: the part of a core that one idle node takes, and `own`:
    the bytes of memory that it shares with no other process. `called`: calls a second between
    random pairs, all together.
    """

    count: int
    up: float
    processor: float
    founder: float
    own: float
    called: float
    known: float


def processor_seconds(pid: int) -> float:
    """What the process has used of all processors."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def own_bytes(pid: int) -> int:
    """Memory that would be free if the process ended."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


async def measure(count: int) -> Nodes:
    """Start so many nodes, leave them alone, and kill one."""
    began = time.perf_counter()
    async with open_local_cluster(count) as cluster:
        up = time.perf_counter() - began
        pids = [one.pid for one in cluster.processes.values()]
        await trio.sleep(SETTLING_SECONDS)
        before, founder = [processor_seconds(pid) for pid in pids], time.process_time()
        begin = time.perf_counter()
        await trio.sleep(IDLE_SECONDS)
        passed = time.perf_counter() - begin
        used = [
            (processor_seconds(pid) - earlier) / passed
            for pid, earlier in zip(pids, before, strict=True)
        ]
        founder = (time.process_time() - founder) / passed
        own = median(own_bytes(pid) for pid in pids)
        witnesses = {
            name: await cluster.node.options(on=name).spawn(Witness) for name in cluster.processes
        }
        called = await calls_between_pairs(list(witnesses.values()))
        known = await death_known(cluster, witnesses)
    return Nodes(count, up, fmean(used), founder, own, called, known)


async def calls_between_pairs(witnesses: list[Witness]) -> float:
    """Have `CALLERS` nodes at a time call some others, drawn at random, until each has done so;
    calls a second of all that call.
    """
    draw = random.Random(len(witnesses))
    pairs = [
        (one, draw.sample(others, min(CALLED, len(others))))
        for one in witnesses
        if (others := [other for other in witnesses if other is not one])
    ]
    counts: list[int] = []

    async def call(one: Witness, others: list[Witness], seconds: float, counted: list[int]) -> None:
        counted.append(await one.call(others, seconds))

    # Few at a time: if all were busy at once, the store's node would get too little of the
    # processors to renew the leases of all, and nodes would end.
    for first in range(0, len(pairs), CALLERS):
        # The first time for their connections.
        for counted, seconds in (([], CALLING_SECONDS / 4), (counts, CALLING_SECONDS)):
            async with trio.open_nursery() as nursery:
                for one, others in pairs[first : first + CALLERS]:
                    nursery.start_soon(call, one, others, seconds, counted)
    rounds = len(range(0, len(pairs), CALLERS))
    return sum(counts) / (CALLING_SECONDS * rounds)


async def death_known(cluster: LocalCluster, on_nodes: dict[str, Witness]) -> float:
    """Kill a node; seconds until the last of the others knows."""
    victim, *others = cluster.processes
    witnesses = [on_nodes[name] for name in others]
    for witness in witnesses:
        await until(
            witness.seen, "all members are seen", lambda seen: seen == len(others) + 2, every=0.05
        )
    times: list[float] = []

    async def watch(witness: Witness) -> None:
        times.append(await witness.gone(victim))

    async with trio.open_nursery() as nursery:
        for witness in witnesses:
            nursery.start_soon(watch, witness)
        await trio.sleep(1.0)
        killed = time.monotonic()
        cluster.process(victim).kill()
    return max(times) - killed


def line(nodes: Nodes) -> str:
    """A line of the table."""
    return (
        f"| {nodes.count} | {nodes.up:.2f} | {1000 * nodes.up / nodes.count:.0f} "
        f"| {100 * nodes.processor:.2f} | {100 * nodes.founder:.1f} "
        f"| {nodes.own / MEBIBYTE:.1f} | {nodes.called:,.0f} | {1000 * nodes.known:.0f} |"
    )


@click.command()
@click.argument("counts", type=int, nargs=-1)
def main(counts: tuple[int, ...]) -> None:
    """Measure these numbers of nodes, one after the other."""
    click.echo(
        "| nodes | all up, s | ms each | idle node, % of a core | store's node, % "
        "| own memory, MiB | calls/s of random pairs | death known by all, ms |\n"
        "|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    for count in counts or USUAL:
        click.echo(line(trio.run(measure, count)))


if __name__ == "__main__":
    main()
