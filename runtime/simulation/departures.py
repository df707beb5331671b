"""Departures: nodes are asked to leave.

In `departures` the store answers nothing for long meanwhile. Each node hosts many named actors, of
which some take their time to stop and some are busy. Each of these would cost a question to the
store. All the same a node ends within the bound of its timings.

In `used_departures` the store is well, and so are all links. The other nodes start actors on a node
that leaves, and call those, until it is gone. Some of what it is asked comes before it begins to
leave, some crosses its goodbye. No error may say that it has died.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import starmap
from typing import TypeVar

import attrs
import trio

from actors import Actor, method
from actors.errors import NodeDiedError, SpawnManyError, UnderstudyError
from actors.supervision import ExitReason
from runtime.environment import real_seconds
from runtime.node import Node
from runtime.simulation.cluster import SimulatedCluster, all_up
from runtime.simulation.report import CheckResult, Report
from runtime.simulation.scheduler import VirtualClock, run

W = TypeVar("W", "_Departures", "_UsedDepartures")

NAMES = ("node-1", "node-2", "node-3")

MOST_ACTORS = 30
"""Named actors of one node, at most."""

LONGEST_SILENCE = 40.0
"""Seconds for which the store answers nothing, at most: several times what a node has to leave."""

STOP_SECONDS = (0.0, 0.0, 0.0, 0.5, 4.0)
"""How long the `on_stop` of an actor takes, one of these."""

UP_AGAIN_SECONDS = 60.0
"""Seconds from the end of the silence until all nodes are members again."""

BUSY = 0.3
"""The probability that an actor is called."""

CALL_SECONDS = 60.0
"""The timeout of a call."""

CALL_SLACK = 25.0
"""Seconds that the lookup before a call may take, in addition."""

ROUNDS = 6
"""Departures of one run in which nodes are used meanwhile."""

USED_NAMES = ("node-1", "node-2", "node-3", "node-4")

USERS = 6
"""Tasks that use a node that leaves, of each of the others."""

LONGEST_USE = 0.3
"""Seconds for which a node is used before it is asked to leave, at most."""

START_SECONDS = (0.0, 0.0, 0.01, 0.3, 2.0)
"""How long an `on_start` takes, one of these."""

ASKED_AGAIN = (0.001, 0.02, 0.1)
"""Seconds until a task that was refused asks again, one of these."""


class BusyActor(Actor):
    """Computes for as long as it is asked to, and takes its time to stop."""

    def __init__(self, stop_seconds: float) -> None:
        self.stop_seconds = stop_seconds

    @method
    async def work(self, seconds: float) -> None:
        """Take so long."""
        await trio.sleep(seconds)

    async def on_stop(self, reason: ExitReason) -> None:
        """Take so long as well."""
        await trio.sleep(self.stop_seconds)


@attrs.define(eq=False)
class _Departures:
    """One run: the store falls silent, and some nodes are asked to leave before or meanwhile."""

    cluster: SimulatedCluster
    draw: random.Random
    actors: int = 0
    outcomes: Counter[str] = attrs.field(factory=Counter)
    silent_seconds: float = 0.0
    unanswered: list[str] = attrs.field(factory=list)
    apart: list[str] = attrs.field(factory=list)

    async def body(self) -> None:
        cluster, draw = self.cluster, self.draw
        await all_up(cluster)
        self.silent_seconds = draw.uniform(0.0, LONGEST_SILENCE)
        async with trio.open_nursery() as nursery:
            for name in NAMES:
                await self._settle(await cluster.node(name), nursery)
            for name in draw.sample(NAMES, draw.randint(1, len(NAMES))):
                nursery.start_soon(self._leave, name, draw.uniform(0.0, self.silent_seconds))
            await trio.sleep(draw.uniform(0.0, 2.0))
            heal = cluster.silence_store()
            await trio.sleep(self.silent_seconds)
            heal()
        with trio.move_on_after(UP_AGAIN_SECONDS) as patience:
            await all_up(cluster)
        if patience.cancelled_caught:
            self.apart.append(f"not all are members {UP_AGAIN_SECONDS:g} s after the silence")
        cluster.check_invariants()

    async def _settle(self, node: Node, nursery: trio.Nursery) -> None:
        """Start actors on a node, and let some of them be busy."""
        draw = self.draw
        for number in range(draw.randint(1, MOST_ACTORS)):
            actor = await node.options(name=f"{node.name}-{number}").spawn(
                BusyActor, draw.choice(STOP_SECONDS)
            )
            self.actors += 1
            if draw.random() < BUSY:
                caller = draw.choice(NAMES)
                seconds = draw.uniform(0.0, self.silent_seconds)
                nursery.start_soon(self._call, caller, actor, seconds)

    async def _leave(self, name: str, after: float) -> None:
        await trio.sleep(after)
        node = self.cluster.live(name)
        if node is not None:
            node.leave()

    async def _call(self, caller: str, actor: BusyActor, seconds: float) -> None:
        node = await self.cluster.node(caller)
        name = actor.name
        with trio.move_on_after(CALL_SECONDS + CALL_SLACK) as patience:
            try:
                handle = await node.lookup(name, BusyActor)
                await handle.work.options(timeout=CALL_SECONDS)(seconds)
            except UnderstudyError as error:
                self.outcomes[type(error).__name__] += 1
            else:
                self.outcomes["ok"] += 1
        if patience.cancelled_caught:
            self.unanswered.append(f"a call to {name} from {caller} has not ended")


class SlowlyStarted(Actor):
    """Takes its time to start. If `deaf`, a cancellation does not shorten it."""

    def __init__(self, seconds: float, deaf: bool) -> None:
        self.seconds = seconds
        self.deaf = deaf

    async def on_start(self) -> None:
        """Take so long."""
        with trio.CancelScope(shield=self.deaf):
            await trio.sleep(self.seconds)

    @method(concurrent=True)
    async def work(self, seconds: float) -> float:
        """Take so long as well."""
        await trio.sleep(seconds)
        return seconds


@attrs.define(eq=False)
class _UsedDepartures:
    """One run: one node after the other leaves while all others use it."""

    cluster: SimulatedCluster
    draw: random.Random
    outcomes: Counter[str] = attrs.field(factory=Counter)
    deaths: list[str] = attrs.field(factory=list)
    apart: list[str] = attrs.field(factory=list)

    async def body(self) -> None:
        cluster, draw = self.cluster, self.draw
        for _ in range(ROUNDS):
            with trio.move_on_after(UP_AGAIN_SECONDS) as patience:
                await all_up(cluster)
            if patience.cancelled_caught:
                self.apart.append(f"not all are members {UP_AGAIN_SECONDS:g} s after a departure")
                return
            # Not the founder, with which the store would go.
            name = draw.choice(USED_NAMES[1:])
            leaving = await cluster.node(name)
            async with trio.open_nursery() as nursery:
                for other in USED_NAMES:
                    if other != name:
                        node = await cluster.node(other)
                        await self._use_from(node, leaving, nursery)
                await trio.sleep(draw.uniform(0.0, LONGEST_USE))
                leaving.leave()
        cluster.check_invariants()

    async def _use_from(self, node: Node, leaving: Node, nursery: trio.Nursery) -> None:
        busy = await node.options(on=leaving.name).spawn(SlowlyStarted, 0.0, False)
        for number in range(USERS):
            draw = random.Random(self.draw.random())
            if number % 3 == 0:
                nursery.start_soon(self._call_until_gone, busy, draw)
            else:
                nursery.start_soon(self._start_until_gone, node, leaving, draw, number % 3 == 2)

    async def _start_until_gone(
        self, node: Node, leaving: Node, draw: random.Random, many: bool
    ) -> None:
        identity = leaving.name, leaving.incarnation
        while any(one.node_id == identity for one in node.members()):
            options = node.options(on=leaving.name)
            args = draw.choice(START_SECONDS), draw.random() < 0.5
            try:
                if many:
                    await options.spawn_many(SlowlyStarted, [args, args])
                elif draw.random() < 0.5:
                    await options.spawn(SlowlyStarted, *args)
                else:
                    name = f"used-{draw.getrandbits(64):x}"
                    await options.options(name=name).get_or_spawn(SlowlyStarted, *args)
            except UnderstudyError as error:
                self._on_error(f"a start on {leaving.name} by {node.name}", error)
                await trio.sleep(draw.choice(ASKED_AGAIN))
            else:
                self.outcomes["ok"] += 1

    async def _call_until_gone(self, busy: SlowlyStarted, draw: random.Random) -> None:
        ended = False
        while not ended:
            try:
                await busy.work(draw.choice((0.0, 0.0, 0.05, 1.0)))
            except UnderstudyError as error:
                # An actor without a name does not come back.
                ended = True
                self._on_error(f"a call of {busy.name}", error)
            else:
                self.outcomes["ok"] += 1

    def _on_error(self, what: str, error: UnderstudyError) -> None:
        reasons = error.errors.values() if isinstance(error, SpawnManyError) else (error,)
        for reason in reasons:
            self.outcomes[type(reason).__name__] += 1
            if isinstance(reason, NodeDiedError):
                self.deaths.append(f"{what}: {reason}")


def departures(seed: int) -> Report:
    """Let nodes leave while the store is silent. The report depends only on the seed and
    this version of the code.
    """
    began = real_seconds()
    cluster, watched = _run(seed, NAMES, _Departures, "departures")
    checks = (
        (
            "what leaves ends in time",
            cluster.ended_late,
            f"{cluster.leaves} nodes with {watched.actors} actors, within "
            f"{cluster.timings.leaving:g} s, in {watched.silent_seconds:.1f} s of silence",
        ),
        ("every call ends", watched.unanswered, f"{watched.outcomes.total()} calls"),
        ("converges", watched.apart, "all nodes are members after the silence"),
    )
    return _report(cluster, watched.outcomes, checks, real_seconds() - began)


def used_departures(seed: int) -> Report:
    """Let nodes leave while others use them. The report depends only on the seed and this version
    of the code.
    """
    began = real_seconds()
    cluster, watched = _run(seed, USED_NAMES, _UsedDepartures, "used departures")
    checks = (
        (
            "what leaves in order has not died",
            watched.deaths,
            f"{watched.outcomes.total()} starts and calls",
        ),
        (
            "what leaves ends in time",
            cluster.ended_late,
            f"{cluster.leaves} nodes, within {cluster.timings.leaving:g} s",
        ),
        ("converges", watched.apart, "all nodes are members after each departure"),
    )
    return _report(cluster, watched.outcomes, checks, real_seconds() - began)


def _run(
    seed: int,
    names: Sequence[str],
    kind: Callable[[SimulatedCluster, random.Random], W],
    title: str,
) -> tuple[SimulatedCluster, W]:
    """Let what `kind` makes run on a cluster of these nodes; return both. `title`: of its random
    numbers, so that each kind has its own.
    """

    async def main(clock: VirtualClock) -> tuple[SimulatedCluster, W]:
        cluster = SimulatedCluster(seed, names, clock)
        watched = kind(cluster, random.Random(f"{seed} {title}"))
        await cluster.run(watched.body)
        return cluster, watched

    return run(seed, main)


def _report(
    cluster: SimulatedCluster,
    outcomes: Counter[str],
    checks: Iterable[tuple[str, list[str], str]],
    took: float,
) -> Report:
    """The report of a run: its own checks, and those of every run."""
    every_run = (
        (
            "no unexpected end",
            cluster.unexpected,
            "no process ended by an error that is none of ours",
        ),
        ("tables agree with themselves", cluster.broken, "no invariant of a node's was broken"),
    )
    results = starmap(CheckResult.of, (*checks, *every_run))
    return cluster.trace.report(cluster.seed, list(cluster.machines), took, outcomes, results)
