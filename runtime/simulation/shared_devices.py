"""Shared devices: a pool, a singleton and supervised children that share the devices of all nodes.

There are exactly as many devices as all of these take, and actors that come and go take some of
them for a while. So the pool lacks members, the singleton has no node, and children wait, until
there is room again. Whatever crashes, leaves or is cut off, the actors on a node never take more
devices than it has; and in the calm all of them run, and give back what they have taken when they
are stopped. Only some seeds have shared devices. They are drawn apart from everything else, so the
runs of other seeds are the same as without them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import cast

import attrs
import trio

from actors import Actor, ChildSpec, Supervisor, method
from actors.actor import NodeInterface
from actors.errors import ActorNotFoundError, UnderstudyError
from actors.supervision import RestartBackoff
from runtime.hosting.cell import ActorCell
from runtime.node import Node, internals_of
from runtime.pools.supervisor import PoolSupervisor
from runtime.simulation.load import Load

DEVICES = "devices"
"""The resource of which all nodes have some."""

EACH = 2
"""Devices of a node."""

POOL, LEADER, TOP, GUEST = "device-pool", "device-leader", "device-top", "device-guest"
"""What the names of pools, singletons, supervisors and actors that come and go begin with."""

PAUSE = 1.5
"""Mean seconds from one guest of a node to the next."""

STAY = 1.0
"""Mean seconds for which a guest stays."""

CRASH_PAUSE = 4.0
"""Mean seconds between two crashes that a node causes."""

AGAIN_SECONDS = 0.5
"""Seconds between attempts to start what runs for as long as the load does."""

DELAYS = RestartBackoff(max_delay=2.0)
"""The delays between the attempts of a supervisor to find room for a child."""

ROOM_SECONDS = 45.0
"""Seconds in the calm within which all have found their room: the longest pauses of a pool and of a
singleton, some times."""

FREE_SECONDS = 15.0
"""Seconds within which all devices are free when those that had them were stopped."""


class DeviceUser(Actor):
    """An actor that takes one device."""

    async def on_start(self) -> None:
        """Look how many actors have devices of this node, together with this one."""
        SharedDevices.current().look_at(self.node)
        if self.name.startswith(LEADER):
            SharedDevices.current().oracle.ran(self.name, self.epoch, self.node.name)

    @method
    async def crash(self) -> None:
        """End the actor, as by a crash."""
        raise SystemExit(f"{self.name} was asked to")


@attrs.define(eq=False)
class SharedDevices(Load):
    """What shares the devices of all nodes."""

    title = "shared devices"
    check = "devices are shared"
    share = 0.05

    guests: int = 0
    crashes: int = 0

    def attach(self) -> None:
        """Give all nodes their devices."""
        for name in self.cluster.machines:
            self.cluster.resources.setdefault(name, {})[DEVICES] = EACH

    @property
    def pool_size(self) -> int:
        """Members of the pool: the singleton and a child take the other devices."""
        return EACH * len(self.cluster.machines) - 2

    def look_at(self, node: NodeInterface) -> None:
        """Check that the actors on a node take no more devices than it has."""
        taken = [
            cell.address.name
            for cell in internals_of(cast("Node", node)).cells.values()
            if isinstance(cell.instance, DeviceUser) and cell.ended is None
        ]
        if len(taken) > EACH:
            self.violated(node.name, f"{node.name} has {EACH} devices, and these run: {taken}")

    async def run(self, node: Node, draw: random.Random) -> None:
        """Take part from one node, until it is `over`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stand, node)
            nursery.start_soon(self._open_pool, node)
            if node.name == self.cluster.founder:
                nursery.start_soon(self._supervise, node)
            nursery.start_soon(self._crash, node, random.Random(draw.random()))
            while not self.over:
                await trio.sleep(draw.expovariate(1 / PAUSE))
                nursery.start_soon(self._have_guest, node, draw.expovariate(1 / STAY))

    def summary(self) -> str:
        """Return how many actors came and went, and how many crashes there were."""
        return f"{self.guests} actors came and went, {self.crashes} were asked to crash"

    def _name(self, kind: str) -> str:
        return f"{kind}-{self.generation}"

    async def _until_done(self, start: Callable[[], Awaitable[object]]) -> None:
        # Also in the calm: what it waits for may have ended in the last moments of the load.
        while True:
            with suppress(UnderstudyError):
                await start()
                return
            await trio.sleep(AGAIN_SECONDS)

    async def _stand(self, node: Node) -> None:
        """Stand for the singleton."""
        options = node.options(name=self._name(LEADER), resources={DEVICES: 1})
        await self._until_done(lambda: options.singleton(DeviceUser))

    async def _open_pool(self, node: Node) -> None:
        """Open the pool, or find it. Each node does, whenever it begins: the pool is lost if its
        node and all that stand for it end within the time in which others learn of that.
        """
        size = self.pool_size
        await self._until_done(
            lambda: node.pool(self._name(POOL), DeviceUser, size=size, resources={DEVICES: 1})
        )

    async def _supervise(self, node: Node) -> None:
        spec = ChildSpec.of("user", DeviceUser).changed(resources={DEVICES: 1})
        options = node.options(name=f"{self._name(TOP)}-{node.incarnation}")
        await self._until_done(
            lambda: options.spawn(Supervisor, [spec], intensity=1_000, backoff=DELAYS)
        )

    async def _have_guest(self, node: Node, stay: float) -> None:
        """Take a device for a while, wherever one is free."""
        self.guests += 1
        options = node.options(resources={DEVICES: 1}, name=f"{GUEST}-{self.guests}")
        with trio.move_on_after(stay + PAUSE), suppress(UnderstudyError):
            guest = await options.spawn(DeviceUser)
            await trio.sleep(stay)
            await node.stop(guest)

    async def _crash(self, node: Node, draw: random.Random) -> None:
        """Let one of those on this node crash, now and then."""
        while True:
            await trio.sleep(draw.expovariate(1 / CRASH_PAUSE))
            if self.over:
                return
            users = [cell for cell in self._users(node) if cell.started]
            if not users:
                continue
            self.crashes += 1
            with suppress(UnderstudyError), trio.move_on_after(2.0):
                user = await node.lookup(draw.choice(users).address.name, DeviceUser)
                await user.crash()

    async def look_for_leftovers(self) -> None:
        """Check, in the calm, that all find their room when the guests have gone; and that all
        devices are free when all others are stopped as well.
        """
        node = await self.cluster.node(self.cluster.founder)
        await self._stop(node, lambda cell: cell.address.name.startswith(GUEST))
        with trio.move_on_after(ROOM_SECONDS):
            while any(self._missing()):  # noqa: ASYNC110  asked as any outsider would
                await trio.sleep(0.5)
        for text in self._missing():
            self.violated("", text)
        tops = (PoolSupervisor, Supervisor)
        await self._stop(node, lambda cell: isinstance(cell.instance, tops))
        await self._stop(node, lambda cell: cell.address.name.startswith(LEADER))
        with trio.move_on_after(FREE_SECONDS):
            while any(self._taken()):  # noqa: ASYNC110  as above
                await trio.sleep(0.5)
        for text in self._taken():
            self.violated("", text)

    def _users(self, node: Node) -> list[ActorCell]:
        cells = internals_of(node).cells.values()
        return [cell for cell in cells if isinstance(cell.instance, DeviceUser)]

    def _nodes(self) -> list[Node]:
        return [one for one in map(self.cluster.live, self.cluster.machines) if one is not None]

    def _missing(self) -> Iterator[str]:
        """What has no device in the calm, though there is one for it."""
        running = Counter(
            cell.address.name.partition("/")[0]
            for node in self._nodes()
            for cell in self._users(node)
            if cell.started and cell.ended is None
        )
        supervisors = [
            cell.address.name
            for node in self._nodes()
            for cell in internals_of(node).cells.values()
            if cell.address.name.startswith(TOP) and isinstance(cell.instance, Supervisor)
        ]
        wanted = {self._name(LEADER): 1, self._name(POOL): self.pool_size}
        wanted |= dict.fromkeys(supervisors, 1)
        for name, count in wanted.items():
            if running[name] != count:
                yield f"in the calm {running[name]} of {count} of {name} run: {dict(running)}"

    def _taken(self) -> Iterator[str]:
        """What takes devices when all have been stopped."""
        for node in self._nodes():
            taken = internals_of(node).host.allocations.holders
            names = [name for name, _ in taken if name.startswith((POOL, LEADER, TOP, GUEST))]
            if names:
                yield f"in the calm these were stopped, and take devices of {node.name}: {names}"

    async def _stop(self, node: Node, chosen: Callable[[ActorCell], bool]) -> None:
        found = [
            cell.address.name
            for host in self._nodes()
            for cell in internals_of(host).cells.values()
            if chosen(cell) and cell.address.name.startswith((POOL, LEADER, TOP, GUEST))
        ]
        for name in found:
            # It may have ended meanwhile.
            with suppress(ActorNotFoundError):
                await node.stop(await node.lookup(name))
