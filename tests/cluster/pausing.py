"""Processes that are stopped for longer than their leases, and an oracle that counts owners who
overlap.

`python -m tests.cluster.pausing [PAUSES] [SEED]`, 200 by default. Named actors on the nodes of a
local cluster write into one file when a method begins to run, and what their epoch is; the clock is
the kernel's, the same for all processes of the machine. Nodes are stopped (SIGSTOP), their actors
are started elsewhere meanwhile, and then the nodes go on: no run of an earlier epoch may follow one
of a later.

A process may be stopped in the microseconds between the runtime's last look at the clock and the
actor's first instruction. No lease can prevent that, which is why epochs are there for whatever an
actor writes to (Kleppmann, "How to do distributed locking", 2016). It is one run at most of each
process that is stopped, it cannot save anything, and its answer reaches nobody who knows of the
successor.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from pathlib import Path

import attrs
import trio

from actors import Actor, ChildSpec, RetryPolicy, SpawnOptions, Supervisor, method
from actors.errors import CallError, StaleEpochError
from runtime.cluster_processes import LocalCluster
from runtime.local_cluster import open_local_cluster
from tests.command_arguments import call_with_arguments
from tests.waiting import until

NAMES = 12
CALLERS = 2
AT_ONCE = 4
WORKERS = 8
MOVE_SECONDS = 60.0
"""How long all names may take to answer from nodes that run."""

PATIENT = RetryPolicy(max_retries=50, initial_delay=0.05, max_delay=0.5, attempt_timeout=1.0)


Sightings = dict[str, tuple[int, str]]
"""For each name the latest epoch of which an answer came, and the node that it came from."""


class Owner(Actor):
    """Writes down each run, and saves a count."""

    def __init__(self, register: str) -> None:
        self.register = register
        self.count = 0

    async def on_start(self) -> None:
        self.count = await self.saved() or 0

    @method(idempotent=True)
    async def run(self) -> tuple[int, str]:
        began = time.monotonic_ns()
        line = f"{self.name} {self.epoch} {began}\n"
        descriptor = os.open(self.register, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, line.encode())
        os.close(descriptor)
        self.count += 1
        await self.save(self.count)
        return self.epoch, self.node.name


@attrs.define
class Verdict:
    """What the oracle saw. `overlaps`: runs of an earlier epoch after one of a later; `backwards`:
    likewise for what callers were told; `displaced`: names whose node was stopped, and that ran
    elsewhere before it went on.
    """

    pauses: int = 0
    runs: int = 0
    moves: int = 0
    displaced: int = 0
    overlaps: list[str] = attrs.field(factory=list)
    backwards: list[str] = attrs.field(factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.pauses} pauses longer than the lease in {self.seconds:.0f} s: {self.runs} "
            f"runs, {self.moves} moves of a name, "
            f"{self.displaced} of them before its node went on, {len(self.overlaps)} overlapping "
            "runs, "
            f"{len(self.backwards)} answers of an earlier epoch after a later"
        )


def judge(register: Path) -> tuple[int, int, list[str]]:
    """Runs, moves and overlaps in a register."""
    runs: dict[str, list[tuple[int, int]]] = {}
    for line in register.read_text().splitlines():
        name, ran_in, ran_at = line.split()
        runs.setdefault(name, []).append((int(ran_at), int(ran_in)))
    overlaps: list[str] = []
    moves = 0
    for name, found in runs.items():
        latest = 0
        for at, epoch in sorted(found):
            if epoch < latest:
                overlaps.append(f"{name} ran in epoch {epoch} at {at}, after epoch {latest}")
            moves += latest not in (0, epoch) and epoch > latest
            latest = max(latest, epoch)
    return sum(map(len, runs.values())), moves, overlaps


async def pause_nodes(pauses: int, seed: int) -> Verdict:
    """Stop nodes for longer than their leases, `AT_ONCE` at a time, `pauses` in all, while callers
    call.
    """
    draw = random.Random(seed)
    verdict = Verdict()
    sightings: Sightings = {}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        register = Path(directory) / "register"
        register.touch()
        async with open_local_cluster(nodes=0, cluster="pausing") as cluster:
            async with trio.open_nursery() as starting:
                for number in range(WORKERS):
                    starting.start_soon(start, cluster, f"w{number}")
            specs = [
                ChildSpec(
                    id=f"owner-{number}",
                    actor=Owner,
                    args=(str(register),),
                    options=SpawnOptions(name=f"owner-{number}", labels={"keeps": "owners"}),
                )
                for number in range(NAMES)
            ]
            await cluster.node.options(name="supervisor").spawn(Supervisor, specs, intensity=10_000)
            async with trio.open_nursery() as nursery:
                for spec in specs:
                    for _ in range(CALLERS):
                        nursery.start_soon(call, cluster, spec.id, verdict, sightings)
                serial = WORKERS
                while verdict.pauses < pauses:
                    await until(
                        lambda: all_answer(cluster, sightings),
                        "all answer",
                        seconds=MOVE_SECONDS,
                        every=0.01,
                    )
                    chosen = choose(cluster, sightings, draw)
                    verdict.displaced += await pause(cluster, chosen, sightings, draw)
                    for _ in chosen:
                        await start(cluster, f"w{serial}")
                        serial += 1
                    verdict.pauses += len(chosen)
                nursery.cancel_scope.cancel()
        verdict.runs, verdict.moves, verdict.overlaps = judge(register)
    verdict.seconds = time.monotonic() - began
    return verdict


def all_answer(cluster: LocalCluster, sightings: Sightings) -> bool:
    """True if each name has been heard of last from a node that runs."""
    return len(sightings) == NAMES and all(
        cluster.process(where).running for _, where in sightings.values()
    )


def choose(cluster: LocalCluster, sightings: Sightings, draw: random.Random) -> list[str]:
    """The nodes to stop next: one at least has an actor."""
    first = draw.choice(sorted({where for _, where in sightings.values()}))
    others = [
        name for name, process in cluster.processes.items() if process.running and name != first
    ]
    return [first, *draw.sample(others, AT_ONCE - 1)]


async def pause(
    cluster: LocalCluster, chosen: list[str], sightings: Sightings, draw: random.Random
) -> int:
    """Stop nodes until all their names have run elsewhere, and see them end. Returns how many names
    that were.
    """
    for node in chosen:
        cluster.process(node).pause()
    displaced = {name: epoch for name, (epoch, where) in sightings.items() if where in chosen}
    for node in chosen:
        await cluster.node.wait_gone(node)
    await until(
        lambda: all(sightings[name][0] > epoch for name, epoch in displaced.items()),
        "all have successors",
        seconds=MOVE_SECONDS,
        every=0.01,
    )
    # Their successors are at work when they go on, at a moment that is different every time.
    await trio.sleep(draw.random())
    for node in chosen:
        cluster.process(node).resume()
    for node in chosen:
        await cluster.process(node).wait()
    return len(displaced)


async def start(cluster: LocalCluster, name: str) -> None:
    """One more node for owners."""
    await cluster.start_node(name, labels={"keeps": "owners"})


async def call(cluster: LocalCluster, name: str, verdict: Verdict, sightings: Sightings) -> None:
    """Call one actor over and over, hold the epochs of the answers against each other, and tell
    where the last came from.
    """
    owner = await cluster.node.lookup(name, Owner)
    latest = 0
    while True:
        try:
            epoch, where = await owner.run.options(retry=PATIENT, timeout=20.0)()
        except (CallError, StaleEpochError):
            # Unknown, fenced or late: all of them honest.
            await trio.sleep(0.01)
            continue
        if epoch < latest:
            verdict.backwards.append(
                f"{name} answered from {where} in epoch {epoch}, after epoch {latest}"
            )
        latest = max(latest, epoch)
        sightings[name] = max(sightings.get(name, (0, "")), (epoch, where))
        await trio.sleep(0.005)


def main(pauses: int = 200, seed: int = 0) -> int:
    """Print the verdict. Returns how many overlaps there were."""
    verdict = trio.run(pause_nodes, pauses, seed)
    sys.stdout.write(
        f"seed {seed}: {verdict}\n"
        + "".join(f"  {each}\n" for each in [*verdict.overlaps, *verdict.backwards][:20])
    )
    return len(verdict.overlaps) + len(verdict.backwards)


if __name__ == "__main__":
    # Node processes import this file again, under its own name.
    from tests.cluster.pausing import main as run

    sys.exit(1 if call_with_arguments(run) else 0)
