"""Full nodes: actors that take resources, started by all nodes at the same moment, many more than
there is room for.

Each node chooses by what it knows of the others, which is late. Whatever is chosen, cancelled,
killed or restarted, the actors on a node never take more than it has; and what they have taken is
free when they have ended. Only some seeds have full nodes. They are drawn apart from everything
else, so the runs of other seeds are the same as without them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import cast

import attrs
import trio

from actors import Actor, ChildSpec, Supervisor, method
from actors.actor import NodeInterface, Spawner
from actors.errors import (
    ActorNotFoundError,
    NodeDrainingError,
    NoPlacementError,
    SpawnManyError,
    UnderstudyError,
)
from actors.supervision import RestartBackoff
from runtime.node import Node, internals_of
from runtime.simulation.load import Load

SLOTS = "slots"
"""The resource of which all nodes have some."""

TENTHS = 7
"""Tenths of it that a node has: no multiple of a tenth is an exact fraction in binary."""

SUPERVISOR = "taker-supervisor"
"""What the names of all supervisors begin with."""

ROUND_SECONDS = 1.0
"""From one round to the next, on all nodes at the same moment."""

MOST = 6
"""Actors that a node starts in one round, at most."""

CHILDREN = 1
"""Children of the supervisor on each node."""

CHILD_TENTHS = 2
"""What each of them takes: `CHILDREN` of them fit on a node, so all find room when the others have
ended.
"""

NODES_NAMED = 5
"""Nodes of which an error says why they have no room, at most."""

PATIENCE = (0.05, 1.0, 6.0)
"""Seconds after which a round is cancelled, one of these."""

START_SECONDS = (0.0, 0.1, 1.0)
"""How long the start of an actor takes, one of these."""

STAY_SECONDS = 3.0
"""Mean seconds for which an actor keeps what it takes."""

DELAYS = RestartBackoff(max_delay=2.0)
"""The delays between the attempts of a supervisor to find room for a child."""

ROOM_SECONDS = 30.0
"""Seconds in the calm within which supervisors find the room that others have left."""


class Taker(Actor):
    """An actor that takes some tenths of the slots of its node. Its start takes a while."""

    tenths = 0

    def __init__(self, tenths: int, seconds: float = 0.0) -> None:
        self.tenths = tenths
        self.seconds = seconds

    async def on_start(self) -> None:
        """Look what all actors on this node take, together with this one."""
        FullNodes.current().look_at(self.node)
        await trio.sleep(self.seconds)

    @method
    async def end(self) -> None:
        """End the actor, as by a crash."""
        raise SystemExit(f"{self.name} was asked to")


@attrs.define(eq=False)
class FullNodes(Load):
    """What nodes have started beyond the room there is, and how it ended."""

    title = "full nodes"
    check = "no more is taken than there is"
    share = 0.1

    started: int = 0
    refused: int = 0
    """Starts for which there was no room."""
    _opened: list[str] = attrs.field(factory=list)
    """The nodes that are members, but for those that faults have ended since."""

    def attach(self) -> None:
        """Give all nodes their slots."""
        for name in self.cluster.machines:
            self.cluster.resources.setdefault(name, {})[SLOTS] = TENTHS / 10

    def look_at(self, node: NodeInterface) -> None:
        """Check that the actors on a node take no more than it has."""
        takers = [
            (cell.address.name, cell.instance.tenths)
            for cell in internals_of(cast("Node", node)).cells.values()
            # Those whose constructor has not run yet count once they start.
            if isinstance(cell.instance, Taker) and cell.ended is None
        ]
        taken = sum(tenths for _, tenths in takers)
        if taken > TENTHS:
            self.violated(
                node.name, f"{node.name} has {TENTHS} tenths, and {taken} are taken: {takers}"
            )

    async def run(self, node: Node, draw: random.Random) -> None:
        """Start actors from one node wherever there is room, until it is `over`."""
        if node.name not in self._opened:
            self._opened.append(node.name)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._supervise, node, draw.random() < 0.5)
            while not self.over:
                # At the same moments on all nodes, mostly: what they know of each other is older.
                pause = draw.choice((ROUND_SECONDS, ROUND_SECONDS, draw.random()))
                await trio.sleep(pause - self.cluster.now() % pause)
                await self._round(node, draw, nursery)

    def summary(self) -> str:
        """Return how many starts found room, and how many did not."""
        return f"{self.started} actors found room, {self.refused} did not"

    async def _round(self, node: Node, draw: random.Random, nursery: trio.Nursery) -> None:
        members = [member.name for member in node.members() if member.state == "up"]
        tenths, count = draw.randrange(1, 4), draw.randrange(2, MOST + 1)
        on = draw.choice([None, None, draw.choice(members or [node.name])])
        # Others may join while this round lasts.
        asked = [*self._opened] if on is None else [on]
        together, seconds, patience = (
            draw.random() < 0.4,
            draw.choice(START_SECONDS),
            draw.choice(PATIENCE),
        )
        stays = [draw.expovariate(1 / STAY_SECONDS) for _ in range(count)]
        crashes = draw.random() < 0.3
        options = node.options(on=on, resources={SLOTS: tenths / 10})
        found: list[Taker] = []

        async def start() -> None:
            try:
                found.append(await options.spawn(Taker, tenths, seconds))
            except UnderstudyError as error:
                self._on_refused(node, asked, error)

        with trio.move_on_after(patience):
            if together:
                found += await self._start_many(node, asked, options, [(tenths, seconds)] * count)
            else:
                async with trio.open_nursery() as starts:
                    for _ in range(count):
                        starts.start_soon(start)
        self.started += len(found)
        for taker, stay in zip(found, stays, strict=False):
            nursery.start_soon(self._end_later, node, taker, stay, crashes)

    async def _start_many(
        self, node: Node, asked: list[str], options: Spawner, rows: list[tuple[int, float]]
    ) -> list[Taker]:
        try:
            return await options.spawn_many(Taker, rows)
        except SpawnManyError as failed:
            for error in failed.errors.values():
                self._on_refused(node, asked, error)
            return cast("list[Taker]", [one for one in failed.handles if one is not None])
        except UnderstudyError as error:
            self._on_refused(node, asked, error)
            return []

    async def _end_later(self, node: Node, taker: Taker, stay: float, crashes: bool) -> None:
        await trio.sleep(stay)
        with suppress(UnderstudyError):
            if crashes:
                await taker.end.options(timeout=2.0)()
            else:
                await node.stop(taker)

    async def _supervise(self, node: Node, crashes: bool) -> None:
        """Have children that take their part again and again."""
        name = f"{SUPERVISOR}-{node.name}-{node.incarnation}-{self.generation}"
        specs = [
            ChildSpec.of(f"{number}", Taker, CHILD_TENTHS).changed(
                resources={SLOTS: CHILD_TENTHS / 10}
            )
            for number in range(CHILDREN)
        ]
        while not self.over:
            with suppress(UnderstudyError):
                await node.options(name=name).spawn(
                    Supervisor, specs, intensity=1_000, backoff=DELAYS
                )
                break
            # There was no room for its children.
            await trio.sleep(ROUND_SECONDS)
        while crashes and not self.over:
            await trio.sleep(STAY_SECONDS)
            with suppress(UnderstudyError), trio.move_on_after(2.0):
                await (await node.lookup(f"{name}/0", Taker)).end()

    def _on_refused(self, node: Node, asked: list[str], error: Exception) -> None:
        """Check the error of a start on one of the nodes `asked`. Without faults there may be no
        room on any of them, and nothing else. In no run a node that leaves is the only one asked.
        """
        if isinstance(error, NoPlacementError):
            self.refused += 1
            said = sum(f"{name} has" in str(error) for name in asked)
            if self.oracle.fair and said < min(len(asked), NODES_NAMED):
                self.violated(node.name, f"does not say why none of {asked} has room: {error}")
        elif self.oracle.fair and not self.over:
            self.violated("", f"{node.name} could not start: {type(error).__name__}: {error}")
        elif isinstance(error, NodeDrainingError) and len(asked) > 1:
            self.violated(node.name, f"has asked no other node of {asked}: {error}")

    async def look_for_leftovers(self) -> None:
        """Check, in the calm, that supervisors find the room that others have left; and that each
        node can be filled when all have ended, and not beyond.
        """
        node = await self.cluster.node(self.cluster.founder)
        await self._stop(node, lambda name: not name.startswith(SUPERVISOR))
        with trio.move_on_after(ROOM_SECONDS):
            while self._missing():  # noqa: ASYNC110  asked as any outsider would
                await trio.sleep(0.5)
        for child in self._missing():
            self.violated("", f"in the calm there is room for {child}, and it does not run")
        await self._stop(node, lambda name: name.startswith(SUPERVISOR) and "/" not in name)
        others = [self.cluster.live(name) for name in self.cluster.machines]
        for member in list(self.cluster.machines):
            # Filled, and emptied, by one node, and by another one at once, which sees later what
            # was stopped.
            for filling in (node, *(one for one in others if one is not None and one is not node)):
                await self._fill(filling, member)
            await self._share([one for one in others if one is not None], member)

    async def _fill(self, node: Node, member: str) -> None:
        options = node.options(on=member, resources={SLOTS: 0.1})
        takers: list[Taker] = []
        try:
            takers += await options.spawn_many(Taker, [(1,)] * (TENTHS - 1))
            takers.append(await options.spawn(Taker, 1))
        except (NoPlacementError, SpawnManyError) as error:
            self.violated(
                member, f"in the calm not all of {member} is free, says {node.name}: {error}"
            )
            return
        try:
            takers.append(await options.spawn(Taker, 1))
        except NoPlacementError as error:
            if member not in str(error) or SLOTS not in str(error):
                self.violated(member, f"does not say what has no room for what: {error}")
        else:
            self.violated(member, f"{member} has started one more than there is room for")
        for taker in takers:
            await node.stop(taker)

    async def _share(self, nodes: list[Node], member: str) -> None:
        """Ask on all nodes at once for one actor that takes all of a node: all get it."""
        name = f"shared-{member}-{self.generation}"
        found: list[Taker] = []

        async def ask(node: Node) -> None:
            options = node.options(name=name, on=member, resources={SLOTS: TENTHS / 10})
            try:
                found.append(await options.get_or_spawn(Taker, TENTHS))
            except NoPlacementError as error:
                self.violated(
                    node.name, f"in the calm another one has started {name}, and yet: {error}"
                )

        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(ask, node)
        if len({taker.address for taker in found}) != 1:
            self.violated(member, f"{len(found)} nodes have asked for {name}, and got {found}")
        for taker in found[:1]:
            await nodes[0].stop(taker)

    def _running(self) -> list[str]:
        """The names of the actors that were started here and run on live nodes."""
        return [
            cell.address.name
            for host in map(self.cluster.live, self.cluster.machines)
            if host is not None
            for cell in internals_of(host).cells.values()
            if isinstance(cell.instance, Taker) or cell.address.name.startswith(SUPERVISOR)
        ]

    def _missing(self) -> list[str]:
        """The children that do not run, of the supervisors that do."""
        running = set(self._running())
        return [
            child
            for name in sorted(running)
            if name.startswith(SUPERVISOR) and "/" not in name
            for child in (f"{name}/{number}" for number in range(CHILDREN))
            if child not in running
        ]

    async def _stop(self, node: Node, chosen: Callable[[str], bool]) -> None:
        for name in filter(chosen, self._running()):
            # It may have ended meanwhile.
            with suppress(ActorNotFoundError):
                await node.stop(await node.lookup(name))
