"""Which faults a seed draws, how strong they are, and how they are injected.

Each seed draws some of the faults and leaves others out, so that they occur in many combinations
and none hides what another would show (swarm testing: Groce and others, ISSTA 2012). Strengths
differ from seed to seed as well.
"""

from __future__ import annotations

import difflib
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from numbers import Real

import attrs
import trio

from actors.short_repr import short_repr
from runtime.simulation.cluster import SimulatedCluster, SimulatedProcess
from runtime.simulation.network import SimulatedConnection

INCLUDED = 0.5
"""The probability that a possible fault occurs in a run."""

FAIR = 10
"""One seed in this many draws no faults at all, because then the checkers can be stricter."""

MOST_OFTEN = 2.0
LEAST_OFTEN = 25.0
"""The least and the most mean seconds between two faults of one kind."""

LONGEST = 12.0
"""Seconds that a fault may last: longer than two leases."""

KINDS: Mapping[str, str] = {
    "crash": "a process is killed, and started again after a while",
    "power": "a host goes down without a message to its peers, and comes back",
    "lost disk": "a host goes down, and comes back with an empty disk",
    "pause": "a process is stopped, for longer than its lease at times",
    "leave": "a node is asked to leave, and is started again",
    "partition": "two groups of hosts cannot reach each other",
    "one-way": "bytes pass between two groups of hosts in one direction only",
    "bridge": "two groups of hosts cannot reach each other, and one host reaches both",
    "cut": "a connection breaks, after any byte",
    "half-open": "a connection carries nothing any more, and neither end gets an error",
    "clog": "bytes between two hosts take up to seconds",
    "slow disk": "the store's disk takes up to seconds for a commit",
    "silent store": "the store answers nothing for a while, although its node runs",
    "block": "a node's event loop is blocked, for longer than its lease at times; the one beside "
    "it goes on",
}
"""All kinds of faults."""

CRASHES_AT_JOINS = 0.25
"""The share of the runs with crashes in which the founder is also killed while others join."""

CRASHED_AT_JOIN = 0.4
"""The share of the joins during which it is killed then."""

JOINING_SECONDS = 0.15
"""About what a join takes."""

PATIENCE_SECONDS = 1.0
"""A join that has not ended after so long is not waited for: each second is five hundred looks at
the members, and a join may wait for a store that is away.
"""


def check_kinds(kinds: Iterable[str]) -> None:
    """Check the kinds. Raises ValueError for an unknown one."""
    for kind in kinds:
        if kind not in KINDS:
            near = difflib.get_close_matches(kind, KINDS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise ValueError(f"there is no fault {kind!r}{hint} There are: {', '.join(KINDS)}")


def check_seconds(what: str, seconds: object, least: float) -> None:
    """Check a time that a user gives: a finite number of seconds, `least` or more; with
    `math.ulp(0.0)`, more than nothing. Raises ValueError for anything else: in the simulation it
    would end the whole cluster, or never end.
    """
    number = isinstance(seconds, Real) and not isinstance(seconds, bool)
    if not number or not least <= seconds < math.inf:  # type: ignore[operator]
        bound = "above 0" if least > 0 else "from 0 on"
        raise ValueError(f"{what} is a finite number of seconds {bound}, not {short_repr(seconds)}")


def check_sides(sides: Iterable[Iterable[str]]) -> list[list[str]]:
    """Return the sides of a partition, as names of nodes. Raises ValueError if there is nothing
    between them that could be cut: a test would pass without the fault that it asks for. A side may
    be empty, as of a random division.
    """
    named = []
    for side in sides:
        if isinstance(side, str) or not isinstance(side, Iterable):
            raise ValueError(f"a side is names of nodes in a list, not {short_repr(side)}")
        named.append(list(side))
    parted = any(
        set(one) - set(other) and set(other) - set(one) for one in named for other in named
    )
    if len(named) < 2 or (all(named) and not parted):
        raise ValueError(
            f"this partition separates no nodes: {short_repr(named)}; name two sides, such as "
            "['node-1'], ['node-2', 'node-3'] (a node on two sides reaches both)"
        )
    return named


def draw_faults(seed: int, allowed: Iterable[str]) -> dict[str, float]:
    """Draw the faults of one run: by kind, the mean seconds between two of them."""
    allowed = [] if seed % FAIR == FAIR - 1 else list(allowed)
    draw = random.Random(f"{seed} faults")
    found: dict[str, float] = {}
    for kind in KINDS:
        # Always the same number of draws, so that leaving out one kind does not change the others.
        included, often = draw.random() < INCLUDED, draw.uniform(MOST_OFTEN, LEAST_OFTEN)
        if kind in allowed and included:
            found[kind] = round(often, 1)
    return found


@attrs.define(eq=False)
class FaultInjector:
    """Injects `faults` into the machines of `cluster`, except those in `spared`. `run` while faults
    may begin; `heal` ends all of them.
    """

    cluster: SimulatedCluster
    faults: Mapping[str, float]
    spared: frozenset[str] = frozenset()
    disk_lost: Callable[[], None] = lambda: None
    """Called before the store loses its disk: it may forget what it has acknowledged."""
    strikes_joins: bool = attrs.field(init=False)
    """True if `crash_founder` is to be run beside each join."""
    _draw: random.Random = attrs.field(init=False)
    _draw_at_joins: random.Random = attrs.field(init=False)
    _ends: dict[Callable[[], None], None] = attrs.field(factory=dict)
    _healed: bool = False

    def __attrs_post_init__(self) -> None:
        # An older word for faults: another text would change the faults of every seed.
        self._draw = random.Random(f"{self.cluster.seed} weather")
        self._draw_at_joins = random.Random(f"{self.cluster.seed} crashes at joins")
        self.strikes_joins = (
            self._draw_at_joins.random() < CRASHES_AT_JOINS
            and "crash" in self.faults
            and self.cluster.founder not in self.spared
        )

    async def run(self) -> None:
        """Inflict faults until cancelled."""
        ways: dict[str, Callable[[], Awaitable[None]]] = {
            "crash": self._crash,
            "power": self._power,
            "lost disk": self._lose_disk,
            "pause": self._pause,
            "leave": self._leave,
            "partition": self._partition,
            "one-way": self._one_way,
            "bridge": self._bridge,
            "cut": self._cut,
            "half-open": self._half_open,
            "clog": self._clog,
            "slow disk": self._slow_disk,
            "silent store": self._silent_store,
            "block": self._block,
        }
        async with trio.open_nursery() as nursery:
            for kind, often in self.faults.items():
                nursery.start_soon(self._again, ways[kind], often)

    def heal(self) -> None:
        """End all lasting faults."""
        for end in list(self._ends):
            end()
        self._ends.clear()
        if not self._healed:
            self._healed = True
            self.cluster.trace.tell("", "calm", "no more faults")

    async def _again(self, inflict: Callable[[], Awaitable[None]], often: float) -> None:
        while True:
            await trio.sleep(self._draw.expovariate(1 / often))
            await inflict()

    async def _lasting(self, end: Callable[[], None], seconds: float | None = None) -> None:
        """Let a fault last for a while, or until all faults are healed."""
        self._ends[end] = None
        await trio.sleep(
            self._draw.uniform(0.0, LONGEST) * self._draw.random() if seconds is None else seconds
        )
        # Unless `heal` has ended it meanwhile.
        if end in self._ends:
            del self._ends[end]
            end()

    def _victim(self) -> str | None:
        names = [
            name
            for name, machine in self.cluster.machines.items()
            if name not in self.spared and machine.live is not None
        ]
        return self._draw.choice(names) if names else None

    def _sides(self) -> tuple[list[str], list[str]]:
        names = [name for name in self.cluster.machines if name not in self.spared]
        self._draw.shuffle(names)
        cut = self._draw.randrange(1, len(names)) if len(names) > 1 else 0
        return names[:cut], names[cut:]

    # Faults of machines.

    async def _crash(self) -> None:
        name = self._victim()
        if name is not None:
            self.cluster.machines[name].restart_after = (
                self._draw.choice((0.01, 0.5, 2.0, 8.0)) * self._draw.random()
            )
            self.cluster.crash(name)
        await trio.lowlevel.checkpoint()

    async def crash_founder(self, joining: SimulatedProcess) -> None:
        """Kill the node that keeps the store while the node of another process joins: at any moment
        of the join, or at its end, when the store has taken the write that the node is up, and has
        not answered all that the node asks about it.
        """
        draw, founder = self._draw_at_joins, self.cluster.founder
        crashes, at_end = draw.random() < CRASHED_AT_JOIN, draw.random() < 0.5
        seconds = draw.uniform(0.0, JOINING_SECONDS)
        restart_after = draw.choice((0.01, 0.5, 8.0))
        keeps_disk = draw.random() < 0.5 or "lost disk" not in self.faults
        if not crashes:
            await trio.lowlevel.checkpoint()
            return
        if at_end:
            with trio.move_on_after(PATIENCE_SECONDS) as waiting:
                while not self._is_up(joining):  # noqa: ASYNC110  asked as any outsider would
                    await trio.sleep(0.002)
            if waiting.cancelled_caught:
                return
            seconds /= 10
        await trio.sleep(seconds)
        if self._healed or joining.over:
            return
        if not keeps_disk:
            self.disk_lost()
        self.cluster.machines[founder].restart_after = restart_after
        self.cluster.crash(founder, disk=keeps_disk)

    def _is_up(self, joining: SimulatedProcess) -> bool:
        """True if the founder's node sees the node of a process that is up."""
        founder = self.cluster.live(self.cluster.founder)
        return founder is not None and any(
            (member.name, member.pid, member.state) == (joining.name, joining.pid, "up")
            for member in founder.members()
        )

    async def _power(self, *, disk: bool = True) -> None:
        name = self._victim()
        if name is None:
            return
        if not disk and name == self.cluster.founder:
            self.disk_lost()
        machine = self.cluster.machines[name]
        ends = [
            self.cluster.block(*pair)
            for other in self.cluster.machines
            if other != name
            for pair in ((name, other), (other, name))
        ]
        machine.want(running=False)
        self.cluster.crash(name, power=True, disk=disk)

        def end() -> None:
            for each in ends:
                each()
            machine.want(running=True)

        await self._lasting(end)

    async def _lose_disk(self) -> None:
        await self._power(disk=False)

    async def _pause(self) -> None:
        name = self._victim()
        if name is not None:
            end = self._of_this_process(name, self.cluster.resume)
            self.cluster.pause(name)
            await self._lasting(end)

    async def _block(self) -> None:
        name = self._victim()
        if name is not None:
            end = self._of_this_process(name, self.cluster.unblock_loop)
            self.cluster.block_loop(name)
            await self._lasting(end)

    def _of_this_process(self, name: str, end: Callable[[str], object]) -> Callable[[], None]:
        """Return what ends a fault of the process that the machine runs now: a later one of the
        machine may have been met by another fault, and keeps it.
        """
        process = self.cluster.machines[name].process

        def end_it() -> None:
            if self.cluster.machines[name].process is process:
                end(name)

        return end_it

    async def _leave(self) -> None:
        name = self._victim()
        node = self.cluster.live(name) if name is not None else None
        if node is not None:
            node.leave()
            self.cluster.on_ended(node.name)
        await trio.lowlevel.checkpoint()

    # Faults of the network.

    async def _partition(self) -> None:
        await self._lasting(self.cluster.partition(*self._sides()))

    async def _one_way(self) -> None:
        here, there = self._sides()
        ends = [self.cluster.block(one, other) for one in here for other in there]
        text = f"nothing from {' '.join(here)} to {' '.join(there)}"
        self.cluster.trace.tell("", "partition", text)

        def end() -> None:
            for each in ends:
                each()
            self.cluster.trace.tell("", "heal", text)

        await self._lasting(end)

    async def _bridge(self) -> None:
        here, there = self._sides()
        bridge = self._draw.choice([*here, *there])
        await self._lasting(
            self.cluster.partition(
                [name for name in here if name != bridge],
                [name for name in there if name != bridge],
            )
        )

    def _whole_connections(self) -> list[SimulatedConnection]:
        return [
            one
            for one in self.cluster.network.connections
            if one.sends.sender_broken is None and not one.closed
        ]

    async def _cut(self) -> None:
        await trio.lowlevel.checkpoint()
        connections = self._whole_connections()
        if connections:
            connection = self._draw.choice(connections)
            pipe = self._draw.choice((connection.sends, connection.receives))
            pipe.cut_after = (
                pipe.sent + self._draw.choice((0, 10, 100, 10_000)) * self._draw.random()
            )
            self.cluster.trace.tell(
                "", "cut", f"connection {pipe.number} between {pipe.hosts[0]} and {pipe.hosts[1]}"
            )

    async def _half_open(self) -> None:
        await trio.lowlevel.checkpoint()
        connections = self._whole_connections()
        if connections:
            connection = self._draw.choice(connections)
            connection.sends.vanished = connection.receives.vanished = True
            hosts = connection.sends.hosts
            self.cluster.trace.tell(
                "",
                "cut",
                f"connection {connection.sends.number} between {hosts[0]} and {hosts[1]} falls "
                "silent",
            )

    async def _clog(self) -> None:
        names = [name for name in self.cluster.machines if name not in self.spared]
        if len(names) > 1:
            one, other = self._draw.sample(names, 2)
            path = self.cluster.network.path(one, other)
            seconds = self._draw.choice((0.05, 0.5, 3.0))
            path.clog += seconds
            text = f"{one} to {other}: up to {seconds:g} s"
            self.cluster.trace.tell("", "clog", text)

            def end() -> None:
                path.clog -= seconds
                self.cluster.trace.tell("", "heal", text)

            await self._lasting(end)

    async def _slow_disk(self) -> None:
        disk = self.cluster.machines[self.cluster.founder].disk
        usual, disk.delay = disk.delay, self._draw.choice((0.05, 0.3, 2.0))
        self.cluster.trace.tell(self.cluster.founder, "slow disk", f"{disk.delay:g} s for a commit")

        def end() -> None:
            disk.delay = usual

        await self._lasting(end)

    async def _silent_store(self) -> None:
        await self._lasting(self.cluster.silence_store())
