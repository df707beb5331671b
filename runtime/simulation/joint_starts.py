"""Joint starts: named actors that many tasks start on one node at the same time, and stop again.

Such starts travel in one message, and their names are claimed in one request to the store; those of
some actors go on when their message is answered. Other nodes start actors of the same names
meanwhile, and some starts are cancelled. Whatever answers are lost, a name has one owner, and in
the end the actor that has it. Only some seeds have joint starts. They are drawn apart from
everything else, so the runs of other seeds are the same as without them.
"""

from __future__ import annotations

import random

import attrs
import trio

from actors import Actor, method
from actors.errors import ActorStartError, NameTakenError, SpawnManyError, UnderstudyError
from runtime.node import Node, internals_of
from runtime.simulation.load import Load

NAMES = 8
"""Names that all nodes choose from."""

MOST = 6
"""Names in one joint start, at most."""

PAUSE = 1.5
"""Mean seconds between the joint starts and stops of a node."""

STOPS = 0.3
"""The share of the stops among them."""

STOPPED = "ended while it was starting: stopped"
"""In the error of a start whose actor another task has stopped."""

START_SECONDS = (0.0, 0.1, 2.0)
"""How long the start of a late tenant takes, one of these."""

PATIENCE = (0.05, 1.0, 6.0)
"""Seconds after which a joint start or stop is cancelled, one of these."""


class Tenant(Actor):
    """An actor whose start waits only for its name, so that it may travel with others."""

    @method
    async def report(self, call: str) -> None:
        """Report a run to the oracle."""
        JointStarts.current().oracle.ran(self.name, self.epoch, self.node.name, call)


class LateTenant(Tenant):
    """One with a constructor, whose start may take its time: its message is answered before."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def on_start(self) -> None:
        """Wait, as for another service."""
        await trio.sleep(self.seconds)


@attrs.define(eq=False)
class JointStarts(Load):
    """What nodes have started and stopped together, and how it ended."""

    title = "joint starts"
    check = "names claimed together"

    started: int = 0
    taken: int = 0
    """Starts that were refused, because the name had an owner."""
    _numbers: int = 0

    async def run(self, node: Node, draw: random.Random) -> None:
        """Start and stop actors from one node on all nodes, until it is `over`."""
        names = [f"tenant-{self.generation}-{number}" for number in range(NAMES)]
        while True:
            await trio.sleep(draw.expovariate(1 / PAUSE))
            if self.over:
                return
            on = draw.choice(
                [member.name for member in node.members() if member.state == "up"] or [node.name]
            )
            some = draw.sample(names, draw.randrange(2, MOST + 1))
            stops, many, late, patience = (
                draw.random() < STOPS,
                draw.random() < 0.3,
                draw.random() < 0.3,
                draw.choice(PATIENCE),
            )
            start_seconds = {name: draw.choice(START_SECONDS) if late else None for name in some}
            with trio.move_on_after(patience):
                if many and not stops:
                    await self._start_many(node, some, on)
                    continue
                async with trio.open_nursery() as nursery:
                    for name in some:
                        if stops:
                            nursery.start_soon(self._stop, node, name)
                        else:
                            nursery.start_soon(self._start, node, name, on, start_seconds[name])

    def summary(self) -> str:
        """Return how many starts succeeded, and how many names were taken."""
        return f"{self.started} actors were started side by side, {self.taken} names were taken"

    async def _start(self, node: Node, name: str, on: str, seconds: float | None) -> None:
        options = node.options(name=name, on=on)
        try:
            tenant = await (
                options.spawn(Tenant) if seconds is None else options.spawn(LateTenant, seconds)
            )
        except UnderstudyError as error:
            self._on_refused(node, name, error)
            return
        self.started += 1
        await self._call(tenant)

    async def _start_many(self, node: Node, names: list[str], on: str) -> None:
        try:
            tenants = await node.options(on=on).spawn_many(Tenant, [()] * len(names), names=names)
        except SpawnManyError as failed:
            for number, error in failed.errors.items():
                self._on_refused(node, names[number], error)
            return
        except UnderstudyError as error:
            self._on_refused(node, ", ".join(names), error)
            return
        self.started += len(tenants)
        for tenant in tenants:
            await self._call(tenant)

    async def _call(self, tenant: Tenant) -> None:
        self._numbers += 1
        try:
            await tenant.report.options(timeout=2.0)(f"report {self._numbers}")
        except UnderstudyError:
            # It has been stopped by another node, or its node is away.
            return

    async def _stop(self, node: Node, name: str) -> None:
        try:
            await node.stop(await node.lookup(name))
        except UnderstudyError:
            return

    def _on_refused(self, node: Node, name: str, error: BaseException) -> None:
        """Check the error of a start. Without faults a name may be taken, or its actor be stopped
        by another task before it has started, and nothing else.
        """
        if isinstance(error, NameTakenError):
            self.taken += 1
        elif isinstance(error, ActorStartError) and STOPPED in str(error):
            return
        elif self.oracle.fair and not self.over:
            self.violated(
                "",
                f"{node.name} could not start {name}: {type(error).__name__}: {error}",
            )

    async def look_for_leftovers(self) -> None:
        """Check, in the calm, that each name has the actor that claimed it, and each actor its
        name.
        """
        node = await self.cluster.node(self.cluster.founder)
        owners = {
            address.name: (address.node, address.incarnation, address.epoch)
            for address in await internals_of(node).names.all()
            if address.name.startswith("tenant-")
        }
        running = {
            cell.address.name: (host.name, host.incarnation, cell.address.epoch)
            for host in map(self.cluster.live, self.cluster.machines)
            if host is not None
            for cell in internals_of(host).cells.values()
            if cell.address.name.startswith("tenant-")
        }
        for name in sorted(owners.keys() | running.keys()):
            if owners.get(name) != running.get(name):
                self.violated(
                    "",
                    f"in the calm {name} belongs to {owners.get(name, 'no node')}, and runs on "
                    f"{running.get(name, 'no node')} (node, incarnation, epoch)",
                )
