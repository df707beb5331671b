"""Blocked loops: users' code blocks the event loop of a node for longer than its lease, while the
loop beside it renews the lease.

Up to a limit no other node may take over the node's names, and the node goes on afterwards as if
nothing had happened. Beyond the limit its names must become free. When its loop runs again, with
calls waiting in its mailboxes and on its connections, none of them may run.
"""

from __future__ import annotations

import math
import random
from functools import partial
from itertools import starmap

import attrs
import trio

from actors import Actor, method
from actors.errors import UnderstudyError
from runtime.environment import real_seconds
from runtime.node import Node
from runtime.simulation.cluster import CLUSTER, SimulatedCluster, all_up
from runtime.simulation.oracle import Oracle
from runtime.simulation.report import CheckResult, Report
from runtime.simulation.scheduler import VirtualClock, run

NAMES = ("node-1", "node-2", "node-3")
BLOCKED, OTHER = "node-2", "node-3"

ROUNDS = 3
"""How many times the loop is blocked within the limit, before it is blocked once beyond it."""

LIMIT = 12.0
"""Seconds for which its lease is kept while it is blocked."""

SLACK = 3.0
"""Seconds from when the node stops renewing its lease until others know that the lease has ended,
in addition to the lease itself.
"""

PATIENCE = 60.0
"""Seconds until a node that was given up has ended, once its loop runs again."""

OWNER_LOOK_SECONDS = 0.05
"""Virtual seconds between two looks at a node, or at the owners of names."""

CALL_EVERY = 0.2
KEEPERS = 4
CUT_EVERY = 2.0


class Keeper(Actor):
    """Reports each run, and takes a moment now and then, so that some runs begin before a block and
    end after it.
    """

    @method(idempotent=True)
    async def run(self, seconds: float) -> tuple[int, float]:
        """The epoch in which it ran, and when it ended."""
        watched().oracle.ran(self.name, self.epoch, self.node.name)
        await trio.sleep(seconds)
        return self.epoch, CLUSTER.get().now()


@attrs.define(eq=False)
class WatchedLoop:
    """The state of one run: what the actors report, and what others see of them."""

    cluster: SimulatedCluster
    oracle: Oracle = attrs.field(init=False)
    taken_over: list[str] = attrs.field(factory=list)
    kept_for_ever: list[str] = attrs.field(factory=list)
    unanswered: list[str] = attrs.field(factory=list)
    late_answers: list[str] = attrs.field(factory=list)
    """Answers in an epoch that already had a successor when they arrived."""
    calling: bool = False
    unblocked: float = math.inf
    """When the loop ran again after the lease was no longer renewed."""
    answers: int = 0
    blocks: int = 0

    def __attrs_post_init__(self) -> None:
        self.oracle = Oracle(self.cluster.trace)

    async def body(self) -> None:
        """Block the loop some times within the limit, while connections break, and then once beyond
        it.
        """
        draw, cluster = self.cluster.draw, self.cluster
        await all_up(cluster)
        blocked, other = await cluster.node(BLOCKED), await cluster.node(OTHER)
        for number in range(KEEPERS):
            await other.options(name=f"keeper-{number}", on=BLOCKED).spawn(Keeper)
        cuts = draw.random() < 0.5
        self.calling = True
        # Wait until each has run once, because the oracle knows actors from their first run.
        await trio.sleep(2.0)
        first = dict(self.oracle.owners)
        for _ in range(ROUNDS):
            self.blocks += 1
            await trio.sleep(draw.uniform(0.0, 3.0))
            seconds = draw.uniform(cluster.timings.block_reported, LIMIT - 1.0)
            await self._block_for(seconds, cuts=cuts)
            # By then the node has received what it missed.
            await trio.sleep(2.0)
            if cluster.live(BLOCKED) is not blocked or self.oracle.owners != first:
                self.taken_over.append(
                    f"{BLOCKED} lost its place or its names, though its loop was blocked for "
                    f"{seconds:.1f} s only"
                )
                return
        cluster.block_loop(BLOCKED)
        await self._see_them_taken(first)
        await trio.sleep(draw.uniform(0.0, 5.0))
        cluster.unblock_loop(BLOCKED)
        self.unblocked = cluster.now()
        with trio.move_on_after(PATIENCE) as patience:
            while cluster.live(BLOCKED) is blocked:  # noqa: ASYNC110  asked as any outsider would
                await trio.sleep(OWNER_LOOK_SECONDS)
        if patience.cancelled_caught:
            self.kept_for_ever.append(
                f"{BLOCKED} goes on, {PATIENCE:g} s after its loop, which was blocked for too "
                "long, came back"
            )

    async def _block_for(self, seconds: float, *, cuts: bool) -> None:
        cluster = self.cluster
        cluster.block_loop(BLOCKED)
        with trio.move_on_after(seconds):
            while True:
                await trio.sleep(cluster.draw.expovariate(1 / CUT_EVERY) if cuts else seconds)
                for connection in cluster.network.connections:
                    if BLOCKED in connection.sends.hosts and not connection.closed:
                        connection.sends.cut_after = connection.sends.sent
        for connection in cluster.network.connections:
            connection.sends.cut_after = float("inf")
        cluster.unblock_loop(BLOCKED)

    async def _see_them_taken(self, first: dict[str, int]) -> None:
        """Wait until all names have another owner. That must be neither too early nor too late."""
        cluster, began = self.cluster, self.cluster.now()
        while waited := [
            name for name, epoch in first.items() if self.oracle.owners[name] == epoch
        ]:
            await trio.sleep(OWNER_LOOK_SECONDS)
            blocked = cluster.now() - began
            if blocked < LIMIT and self.oracle.owners != first:
                self.taken_over.append(
                    f"a name was taken after {blocked:.1f} s, and the limit is {LIMIT:g} s"
                )
                return
            if blocked > LIMIT + cluster.timings.lease + SLACK:
                self.kept_for_ever.append(
                    f"{', '.join(waited)}: not free {blocked:.1f} s after the loop of their node "
                    "was blocked"
                )
                return

    async def call(self, node: Node) -> None:
        """Call all of them from a node repeatedly, so that mail waits when the loop runs again.
        Start those that are gone.
        """
        draw = random.Random(f"{self.cluster.seed} calls {node.name} {node.incarnation}")
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(CALL_EVERY)
                for number in range(KEEPERS if self.calling else 0):
                    nursery.start_soon(
                        self._call_once, node, f"keeper-{number}", draw.choice((0.0, 0.01, 1.0))
                    )

    async def _call_once(self, node: Node, name: str, seconds: float) -> None:
        try:
            keeper = await node.options(name=name, on=node.name).get_or_spawn(Keeper)
            epoch, ended = await keeper.run.options(timeout=PATIENCE)(seconds)
        except UnderstudyError:
            return
        self.answers += 1
        latest = self.oracle.owners[name]
        if epoch < latest and ended >= self.unblocked:
            # Check when the answer was sent and not when it was received, because the caller's loop
            # was blocked too: the lease was no longer held.
            self.late_answers.append(
                f"{node.name} was answered by {name} in epoch {epoch}, when epoch {latest} had "
                "run already"
            )


def blocked_loops(seed: int) -> Report:
    """Block the loop of a node, within the limit and beyond. The report depends only on the
    seed and this version of the code.
    """
    began = real_seconds()
    found: list[WatchedLoop] = []
    cluster = run(seed, partial(_main, seed, found))
    watched = found[0]
    checks = (
        (
            "one owner per name",
            watched.oracle.overlaps,
            f"{watched.oracle.runs} runs of {KEEPERS} names",
        ),
        (
            "no name is taken while its lease is kept",
            watched.taken_over,
            f"{watched.blocks} blocks within {LIMIT:g} s",
        ),
        (
            "names are free beyond the limit",
            watched.kept_for_ever,
            f"within {LIMIT + cluster.timings.lease + SLACK:g} s",
        ),
        ("no answer of an earlier epoch", watched.late_answers, f"{watched.answers} answers"),
        (
            "no unexpected end",
            cluster.unexpected,
            "no process ended by an error that is none of ours",
        ),
    )
    calls, results = {"ok": watched.answers}, starmap(CheckResult.of, checks)
    return cluster.trace.report(seed, NAMES, real_seconds() - began, calls, results)


async def _main(seed: int, found: list[WatchedLoop], clock: VirtualClock) -> SimulatedCluster:
    cluster = SimulatedCluster(seed, NAMES, clock)
    cluster.blocked_limit = LIMIT
    watched = cluster.scenario = WatchedLoop(cluster)
    cluster.program = watched.call
    found.append(watched)
    await cluster.run(watched.body)
    return cluster


def watched() -> WatchedLoop:
    """Return the run that the running task belongs to."""
    found = CLUSTER.get().scenario
    assert isinstance(found, WatchedLoop)
    return found
