"""Joins: a node joins again and again, and each time the node that keeps the store meets a fault
one step later.

A step is the arrival of bytes at either of the two, so each moment of a join at which one of them
knows more than before is tried: before the store is asked, between its answer to one question and
to the next, after the last. The store's node is killed and comes back, with its disk or with an
empty one, is stopped, answers nothing, is cut off, or loses its connections. Whatever happens,
`open_node` returns or raises in its time, and the node is a member or ends.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import starmap

import attrs
import trio

from runtime.environment import real_seconds
from runtime.node import Node
from runtime.simulation.cluster import SimulatedCluster, SimulatedProcess
from runtime.simulation.report import CheckResult, Report
from runtime.simulation.scheduler import VirtualClock, run

FOUNDER, JOINING = NAMES = ("node-1", "node-2")

FAULTS = ("crash", "crash", "lost disk", "lost disk", "pause", "silent store", "partition", "cut")
"""What happens to the store's node, one of these. Those that end it are drawn more often."""

AWAY_SECONDS = (0.01, 0.5, 8.0)
"""How long it is away, one of these: briefly, or for longer than a lease."""

MOST_STEPS = 200
"""Far more than a join has: a join whose last step is not reached by then is a mistake."""

JOIN_SECONDS = 45.0
"""How long `open_node` may take: a lease of the one before of its name, the time that the store's
node is away, and several questions to the store, each with its time limit.
"""

LOOK_SECONDS = 0.05
"""Virtual seconds between two looks at what no node reports."""


@attrs.define(eq=False)
class _Joins:
    """One run: a join for each step of it, and what happened."""

    cluster: SimulatedCluster
    draw: random.Random
    steps: int = 0
    outcomes: Counter[str] = attrs.field(factory=Counter)
    longest: float = 0.0
    late: list[str] = attrs.field(factory=list)
    apart: list[str] = attrs.field(factory=list)
    _left: int = 0
    """Steps until the fault."""
    _fault: str = ""
    _away: float = 0.0

    async def body(self) -> None:
        """Join until a join has ended before its fault."""
        self.cluster.network.delivered = self._on_step
        while self._left <= 0 and self.steps < MOST_STEPS:
            self.steps += 1
            await self.cluster.node(FOUNDER)
            await self._join()
        self.cluster.network.delivered = None

    async def _join(self) -> None:
        cluster, machine = self.cluster, self.cluster.machines[JOINING]
        self._left = self.steps
        self._fault, self._away = self.draw.choice(FAULTS), self.draw.choice(AWAY_SECONDS)
        before, began = machine.process, cluster.now()
        machine.want(running=True)
        await _until(lambda: machine.process is not before)
        # One process: what it ends with is an outcome, and no other one follows.
        machine.want(running=False)
        process = machine.process
        assert process is not None
        with trio.move_on_after(JOIN_SECONDS) as patience:
            await _until(lambda: process.node is not None or process.over)
        took = cluster.now() - began
        self.longest = max(self.longest, took)
        where = f"{self._fault} for {self._away:g} s at step {self.steps}"
        if patience.cancelled_caught:
            self.late.append(f"{where}: open_node has not ended after {took:.1f} s")
            process.scope.cancel()
        with trio.move_on_after(cluster.timings.convergence) as patience:
            await _until(lambda: process.over or self._are_together(process))
        if patience.cancelled_caught:
            self.apart.append(
                f"{where}: neither a member nor at its end {cluster.timings.convergence:g} s later"
            )
        self.outcomes["ok" if process.error is None else type(process.error).__name__] += 1
        if process.node is not None:
            process.node.leave()
        await process.ended.wait()

    def _are_together(self, process: SimulatedProcess) -> bool:
        founder = self.cluster.live(FOUNDER)
        return (
            founder is not None
            and process.node is not None
            and self._sees(founder, process.node)
            and self._sees(process.node, founder)
        )

    def _sees(self, one: Node, other: Node) -> bool:
        return any(
            (member.name, member.incarnation, member.state) == (other.name, other.incarnation, "up")
            for member in one.members()
        )

    def _on_step(self, hosts: tuple[str, str]) -> None:
        if JOINING not in hosts or self._left <= 0:
            return
        self._left -= 1
        if not self._left:
            self._strike()

    def _strike(self) -> None:
        cluster = self.cluster
        machine = cluster.machines[FOUNDER]
        match self._fault:
            case "crash" | "lost disk":
                machine.restart_after = self._away
                cluster.crash(FOUNDER, disk=self._fault == "crash")
            case "pause":
                cluster.pause(FOUNDER)
                cluster.clock.at(cluster.now() + self._away, partial(cluster.resume, FOUNDER))
            case "silent store":
                cluster.clock.at(cluster.now() + self._away, cluster.silence_store())
            case "partition":
                cluster.clock.at(
                    cluster.now() + self._away, cluster.partition([FOUNDER], [JOINING])
                )
            case _:
                for connection in cluster.network.connections:
                    connection.sends.cut_after = connection.sends.sent


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  asked as any outsider would
        await trio.sleep(LOOK_SECONDS)


def joins(seed: int) -> Report:
    """Let a node join once for each step of a join, with a fault of the store's node at that step.
    The report depends only on the seed and this version of the code.
    """
    began = real_seconds()
    found: list[_Joins] = []
    cluster = run(seed, partial(_main, seed, found))
    watched = found[0]
    checks = (
        (
            "every join ends in time",
            watched.late,
            f"{watched.steps} joins, the longest took {watched.longest:.1f} s",
        ),
        ("converges", watched.apart, "each node was a member, or had ended"),
        ("what leaves ends in time", cluster.ended_late, f"{cluster.leaves} nodes"),
        (
            "no unexpected end",
            cluster.unexpected,
            "no process ended by an error that is none of ours",
        ),
    )
    results = starmap(CheckResult.of, checks)
    return cluster.trace.report(seed, NAMES, real_seconds() - began, watched.outcomes, results)


async def _main(seed: int, found: list[_Joins], clock: VirtualClock) -> SimulatedCluster:
    cluster = SimulatedCluster(seed, NAMES, clock)
    cluster.machines[JOINING].wanted = False
    watched = _Joins(cluster, random.Random(f"{seed} joins"))
    found.append(watched)
    await cluster.run(watched.body)
    return cluster
