"""Programs that wait within the blocks of their nodes without any deadline, and start and stop
trees of supervisors by hand.

They do not look whether their node was given up by the cluster, so each wait has to end by itself
then; as it has to if what it waits for has gone with its node. The children of the trees call other
actors when they are stopped. Only some seeds have such programs. They are drawn apart from
everything else, so the runs of other seeds are the same as without them.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import Any, cast

import attrs
import trio

from actors import Actor, ChildSpec, SpawnOptions, Supervisor, method
from actors.errors import CallError, UnderstudyError
from actors.method import Address
from actors.supervision import ExitReason
from runtime.node import Node, internals_of
from runtime.simulation.cluster import CLUSTER
from runtime.simulation.load import Load

PAUSE = 2.0
"""Mean seconds between two waits that a node begins, and between two trees."""

MOST_WAITS = 6
"""Waits of one node at a time. They end with what they wait for, or with the node."""

GIVEN_UP_SECONDS = 12.0
"""Seconds in which all waits of a node end that was given up: a lease, until links that are silent
have ended, and what a call to the store takes at most.
"""

GONE_SECONDS = 30.0
"""Seconds in which a wait ends, in the calm, after the node of its actor has gone."""

CHILDREN = 3

STOP_SECONDS = 45.0
"""Seconds in which a tree ends that is stopped: its children one after the other, each of which may
take its time and that of a node that does not answer.
"""


class Endless(Actor):
    """Never answers."""

    @method(concurrent=True)
    async def wait(self) -> None:
        """Wait for ever."""
        await trio.sleep_forever()


class Unready(Actor):
    """Never starts."""

    async def on_start(self) -> None:
        """Wait for ever."""
        await trio.sleep_forever()


class Recipient(Actor):
    """Is called by children that end."""

    @method
    async def receive(self, child: str) -> str:
        """Take a moment."""
        await trio.sleep(CLUSTER.get().draw.choice((0.0, 0.0, 0.3)))
        return child


class CallerAtStop(Actor):
    """A child that calls another actor when it is stopped, without a deadline."""

    def __init__(self, recipient: str) -> None:
        self.recipient = recipient

    async def on_stop(self, reason: ExitReason) -> None:
        """Call the recipient, which may be on any node, and may have ended."""
        try:
            recipient: Any = await self.node.lookup(self.recipient, Recipient)
            await recipient.receive(self.name)
        except CallError:
            return


@attrs.define(eq=False)
class OpenWait:
    """A wait under way. `place`: where the actor is that it waits for, if it waits for one."""

    what: str
    place: Address | None = None
    since: float = 0.0


@attrs.define(eq=False)
class Programs(Load):
    """What the programs of all nodes wait for, and how that ended."""

    title = "programs"
    check = "every wait ends"

    waits: dict[Node, list[OpenWait]] = attrs.field(factory=dict)
    ended: int = 0
    stopped: int = 0
    _nurseries: dict[Node, trio.Nursery] = attrs.field(factory=dict)

    async def run(self, node: Node, draw: random.Random) -> None:
        """Wait for different things, and start and stop trees, until the node's process ends."""
        self.waits[node] = []
        async with trio.open_nursery() as nursery:
            self._nurseries[node] = nursery
            nursery.start_soon(self._run_trees, node, draw)
            while not self.over:
                await trio.sleep(draw.expovariate(1 / PAUSE))
                if len(self.waits[node]) < MOST_WAITS and not self.over:
                    nursery.start_soon(self._wait, node, random.Random(draw.random()))

    def attach(self) -> None:
        """Keep the programs of nodes that were given up in their blocks."""
        self.cluster.linger = self.linger

    def summary(self) -> str:
        """Return how many waits ended, and how many trees were stopped."""
        return f"{self.ended} of them ended, and {self.stopped} trees were stopped"

    async def linger(self, node: Node) -> None:
        """Stay in the block of a node that was given up, until all its waits have ended."""
        began = self.cluster.now()
        while self._overdue(node):
            await trio.sleep(0.1)
            # What its process stood still for does not count: then nothing in it could end.
            seconds = self.cluster.now() - began - self.cluster.stopped(node.name, began)
            if seconds > GIVEN_UP_SECONDS:
                break
        for wait in self._overdue(node):
            self.violated(
                node.name,
                f"{wait.what} by {node.name} still waits {GIVEN_UP_SECONDS:g} s after the "
                "cluster has given the node up",
            )

    def _overdue(self, node: Node) -> list[OpenWait]:
        """The waits that the end of the node's membership has to end. A call to a node that was
        given up as well goes on: that one lives, runs it, and answers over a link that works.
        """
        return [wait for wait in self.waits.get(node, ()) if not self._runs_at_given_up(wait)]

    def _runs_at_given_up(self, wait: OpenWait) -> bool:
        place = wait.place
        there = self.cluster.live(place.node) if place is not None else None
        return (
            wait.what.startswith("call")
            and place is not None
            and there is not None
            and there.incarnation == place.incarnation
            and internals_of(there).given_up is not None
        )

    async def end(self) -> None:
        """In the calm: give all waits that still run the time to notice that what they wait for has
        gone, and record those that have not. Then cancel them.
        """
        self.over = True
        await trio.sleep(GONE_SECONDS)
        self._look_for_open_waits()
        for node, nursery in self._nurseries.items():
            # Other tasks are stopped, and those of nodes that have left are over.
            if self.cluster.live(node.name) is node:
                nursery.cancel_scope.cancel()

    def _look_for_open_waits(self) -> None:
        for node, waits in self.waits.items():
            if self.cluster.live(node.name) is not node:
                continue
            for wait in waits:
                place = wait.place
                there = self.cluster.live(place.node) if place is not None else None
                if place is not None and (there is None or there.incarnation != place.incarnation):
                    text = f"{wait.what} by {node.name} still waits for {place}, which has gone"
                    self.violated(node.name, text)

    async def _wait(self, node: Node, draw: random.Random) -> None:
        wait = OpenWait("", since=self.cluster.now())
        try:
            ask = await self._chosen(node, draw, wait)
            self.waits[node].append(wait)
            try:
                await ask()
            finally:
                self.waits[node].remove(wait)
        except UnderstudyError:
            self.ended += 1

    async def _chosen(
        self, node: Node, draw: random.Random, wait: OpenWait
    ) -> Callable[[], Awaitable[object]]:
        others = [one.name for one in node.members() if one.name != node.name] or [node.name]
        other = draw.choice(others)
        what = draw.choice(("members", "group", "end of member", "end", "call", "start", "changes"))
        wait.what = f"{what} ({other})"
        if what == "members":
            return lambda: node.wait_for(99)
        if what == "end of member":
            # It may never leave.
            return lambda: node.wait_gone(other)
        if what == "changes":
            return lambda: _read_all(node.watch_members())
        if what == "group":
            return lambda: _read_all(node.group("waiting", Endless).watch())
        if what == "start":
            return lambda: node.options(on=other).spawn(Unready)
        with trio.move_on_after(5.0):
            endless = await node.options(on=other).spawn(Endless)
            wait.place = cast("Any", endless).address
            return endless.wait if what == "call" else lambda: node.wait_ended(endless)
        raise CallError("nothing to wait for")

    async def _run_trees(self, node: Node, draw: random.Random) -> None:
        number = 0
        while True:
            await trio.sleep(draw.expovariate(1 / PAUSE))
            if self.over:
                return
            number += 1
            members = [one.name for one in node.members() if one.state == "up"]
            recipient = f"recipient-{draw.choice(members)}" if members else "no-recipient"
            specs = [
                ChildSpec(
                    id=f"{child}",
                    actor=CallerAtStop,
                    args=(recipient,),
                    shutdown=draw.choice((0.5, 5.0)),
                    options=SpawnOptions(on=draw.choice([None, *members])),
                )
                for child in range(CHILDREN)
            ]
            try:
                with trio.move_on_after(6.0):
                    on = recipient.removeprefix("recipient-")
                    await node.options(name=recipient, on=on).get_or_spawn(Recipient)
                tree = None
                with trio.move_on_after(10.0):
                    tree = await node.options(on=draw.choice([None, *members])).spawn(
                        Supervisor, specs
                    )
                if tree is None:
                    continue
                await trio.sleep(draw.choice((0.0, 0.5, 4.0)) * draw.random())
                await self._stop_tree(node, tree)
            except UnderstudyError:
                continue

    async def _stop_tree(self, node: Node, tree: Supervisor) -> None:
        began = self.cluster.now()
        try:
            await node.stop(tree)
            self.stopped += 1
        finally:
            # A process that was killed meanwhile sees no end of it.
            if self.cluster.live(node.name) is node:
                took = self.cluster.now() - began - self.cluster.stopped(node.name, began)
                if took > STOP_SECONDS and not internals_of(node).given_up:
                    self.violated(
                        node.name,
                        f"the stop of a tree by {node.name} took {took:.1f} s",
                    )


async def _read_all(changes: AsyncIterable[object]) -> None:
    async for _ in changes:
        pass
