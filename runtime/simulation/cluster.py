"""A whole cluster in one thread: machines, the network between them, and the faults that can be
injected into both.

Every machine runs a process with a node, and starts another one when that has ended, like a service
manager. The first machine founds the cluster and keeps its store on its disk; the others join it.
"""

from __future__ import annotations

import itertools
import logging
import math
import random
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from actors.errors import NotAMemberError, StoreDataError, UnderstudyError
from actors.identifiers import NodeId
from runtime.environment import Beside, Environment, LookAtStack, Process
from runtime.hosting.authorization import Authorize
from runtime.isolation import WithoutProcesses
from runtime.membership.stand_by import BLOCKED_LIMIT_SECONDS
from runtime.node import Node, internals_of
from runtime.node.opening import Platform, open_node
from runtime.simulation.network import HostNetwork, SimulatedNetwork
from runtime.simulation.report import Trace
from runtime.simulation.scheduler import PROCESS, Stoppable, VirtualClock, belonging_to
from runtime.store.changes import Changes
from runtime.store.disk import Medium
from runtime.store.embedded_store import EmbeddedStore
from runtime.store.memory import Snapshot
from runtime.timings import Timings

# Simulated machines: a host with its disk. It runs one process after the other, each with a node.

T = TypeVar("T")


EMPTY = Snapshot(1, 0, 1, {}, (), ())
"""The content of a new disk: an empty store."""


EPOCH = 1_750_000_000.0
"""The wall-clock time at the beginning of a run."""

SECRET = "simulated"
"""The secret of every simulated cluster."""

PORT = 7400
"""The port of every node: each has a host of its own."""

CONTAINERS = 0.2
"""The share of the seeds whose machines run each process in a container of its own."""

POLLING = 0.2
"""The share of the seeds whose connections spin, so that tasks poll for their answers."""

JUMPING = 0.2
"""The share of the seeds in which the wall clocks of machines jump."""

JUMPS = (0.1, 60.0, 1e5, 1e9)
"""The most seconds by which such a clock is off, one of these."""

JUMP_PAUSE = 5.0
"""Mean virtual seconds between two jumps, as far as anyone looks at the clock."""

DIRECTORY = Path("/simulated")
"""The directory of the founder's store, on its simulated disk."""

LEAVE_SECONDS = 60.0
"""Virtual seconds for all nodes to leave at the end of a run, and for their tasks to end after it.
"""

END_SLACK = 0.5
"""Virtual seconds that the end of a node may take in addition to `Timings.leaving`: for what its
program does when it is cancelled.
"""

SHOWN = 20
"""How many violated invariants are kept as text."""

Program = Callable[[Node], Awaitable[None]]

CLUSTER: ContextVar[SimulatedCluster] = ContextVar("CLUSTER")
"""The cluster that the running task belongs to, for actors that report to its checkers."""

Place = tuple[str, int, str]
"""A node, its incarnation, and the store that knows it: a new store counts incarnations from the
beginning again.
"""

MEMBERS_LOOK_SECONDS = 0.1
"""Virtual seconds between two looks at the members of all nodes, which no node reports."""


@attrs.define(eq=False, kw_only=True)
class SimulatedProcess(Stoppable):
    """One process with its node: its event loop, and the one `beside` it. `over`: the process has
    ended, in order or not.
    """

    name: str
    pid: int
    network: HostNetwork
    environment: SimulatedEnvironment
    beside: LoopBeside
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    ended: trio.Event = attrs.field(factory=trio.Event)
    node: Node | None = None
    over: bool = False
    asked: float | None = None
    """When its node was asked to leave, in virtual seconds since the run began."""
    error: BaseException | None = None
    is_blocked: bool = False
    """True while its event loop is blocked and the one beside it goes on."""

    def __attrs_post_init__(self) -> None:
        self.beside.process = self

    def stop(self) -> None:
        """Stop both loops: none of their tasks takes another step."""
        super().stop()
        self.beside.stop()

    def resume(self) -> None:
        """Let both loops go on."""
        self.is_blocked = False
        self.beside.resume()
        super().resume()

    def block(self) -> None:
        """Block the event loop, like code of users that computes without end. The loop beside it
        goes on.
        """
        self.is_blocked = True
        super().stop()


class LoopBeside(Stoppable):
    """The event loop beside a process's own. Its tasks belong to this object, so that they go on
    while the process's own loop is blocked.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__()
        self._nursery = nursery
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self.process: SimulatedProcess
        """The process that it belongs to."""

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        """Run `main` in this loop."""
        with belonging_to(self):
            self._nursery.start_soon(self._main, main)

    async def _main(self, main: Callable[[], Awaitable[None]]) -> None:
        try:
            with self._scope:
                await main()
        finally:
            self._ended.set()

    def cancel(self) -> None:
        """End the tasks of this loop, because the process has ended, and with it the thread of the
        loop.
        """
        self._scope.cancel()

    async def end(self) -> None:
        """Cancel the tasks of this loop, and wait for their end."""
        self._scope.cancel()
        await self._ended.wait()


class SimulatedEnvironment:
    """The `Environment` of a simulated process: only the virtual clock and the seed.

    `beside`: the event loop beside that of the process, None if there is none. `timings`: those of
    every node by default.
    """

    def __init__(
        self,
        machine: Machine,
        pid: int,
        seed: str,
        now: Callable[[], float],
        beside: LoopBeside | None = None,
        timings: Timings | None = None,
    ) -> None:
        self.timings = Timings() if timings is None else timings
        """How long the node waits for others, and how often it repeats things."""
        self._seed = seed
        self._beside = beside
        self._machine = machine
        host = f"{machine.name}/{pid}" if machine.containers else machine.name
        self._process = Process(host, pid, str(pid))
        self._draw = random.Random(seed)
        self.now = now
        self.stopwatch = now
        """The virtual clock: the real time that something takes would differ from run to run."""

    def wall_time(self) -> float:
        """Seconds since 1970 UTC, on the machine's own clock."""
        return EPOCH + self._machine.wall_clock(self.now())

    def random(self) -> float:
        """A number in [0, 1), from the generator of this process."""
        return self._draw.random()

    def token(self, size: int) -> bytes:
        """`size` bytes from the generator of this process: predictable, so that a seed gives the
        same run again.
        """
        return self._draw.randbytes(size)

    def process(self) -> Process:
        """The simulated process that this node runs in."""
        return self._process

    def has_ended(self, process: Process) -> bool:
        """Return True if `process` is one that this one sees, and has ended."""
        current = self._machine.process
        return process.host == self._process.host and (
            current is None or current.pid != process.pid or current.over
        )

    async def in_thread(
        self,
        function: Callable[[], T],
        limiter: trio.CapacityLimiter | None = None,
        *,
        abandon: bool = False,
    ) -> T:
        """Run the function at once, in the simulation's only thread. Virtual time does not pass
        meanwhile.
        """
        await trio.lowlevel.checkpoint()
        return function()

    def run_beside(
        self, function: Callable[[Environment, LookAtStack], Awaitable[None]]
    ) -> Beside | None:
        """Run `function` in the loop beside the process's own; None if there is no such loop. Its
        look at the stack of the own loop returns None: that loop is stopped between two steps.
        """
        loop = self._beside
        if loop is None:
            return None
        # A generator of its own: numbers that it draws must not change those of the process.
        environment = SimulatedEnvironment(
            self._machine,
            self._process.pid,
            f"{self._seed} beside",
            self.now,
            timings=self.timings,
        )
        loop.run(lambda: function(environment, lambda: None))
        return loop


@attrs.define(eq=False)
class Machine:
    """A host. Its disk survives its processes."""

    name: str
    draw: random.Random
    process: SimulatedProcess | None = None
    disk: SimulatedDisk = attrs.field(init=False)
    pids: itertools.count[int] = attrs.field(factory=lambda: itertools.count(1))
    restart_after: float = 0.5
    """Seconds from the end of one process to the start of the next."""
    containers: bool = False
    """Each process runs in a container of its own, at the machine's address: it sees no other
    process, so that it can prove the end of none.
    """
    jumps: random.Random | None = None
    """Draws how far its wall clock is off; None if that is right."""
    wanted: bool = True
    """False while it is down on purpose."""
    changed: trio.Event = attrs.field(factory=trio.Event)
    _off: float = 0.0
    _jumps_at: float = 0.0

    def __attrs_post_init__(self) -> None:
        self.disk = SimulatedDisk(self)

    def wall_clock(self, now: float) -> float:
        """The seconds that its wall clock shows, which perhaps jumps now and then."""
        if self.jumps is not None and now >= self._jumps_at:
            self._jumps_at = now + self.jumps.expovariate(1 / JUMP_PAUSE)
            self._off = self.jumps.uniform(-1.0, 1.0) * self.jumps.choice(JUMPS)
        return now + self._off

    def want(self, *, running: bool) -> None:
        """Start processes on this machine from now on, or start no more."""
        self.wanted = running
        self.changed.set()

    @property
    def live(self) -> SimulatedProcess | None:
        """Return the process if it exists and is not stopped."""
        process = self.process
        return process if process is not None and not process.over and not process.stopped else None


class SimulatedDisk:
    """The content of a disk after the last commit that reached it. `delay`: seconds that a commit
    takes.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.replace(EMPTY)
        self.delay = 0.002
        self._on_its_way: Callable[[], None] | None = None
        self._holder: SimulatedProcess | None = None

    async def open(self, directory: Path) -> Medium:
        """A `runtime.store.disk.Disk`; there is one directory."""
        if self._holder is not None and not self._holder.over:
            raise StoreDataError(f"{directory} is in use by another node")
        self._holder = self._machine.process
        await trio.lowlevel.checkpoint()
        return _SimulatedMedium(self)

    async def commit(self, change: Callable[[], None]) -> None:
        """Apply `change` atomically, after the disk's delay."""
        self._on_its_way = change
        await trio.sleep(self.delay * (0.5 + self._machine.draw.random()))
        # A kill of the process, or the loss of the disk, has decided about this commit meanwhile.
        if self._on_its_way is change:
            self._on_its_way = None
            change()

    def crash(self) -> None:
        """The process was killed: a commit that has not ended reaches the disk by chance."""
        change, self._on_its_way = self._on_its_way, None
        if change is not None and self._machine.draw.random() < 0.5:
            change()

    def lose(self) -> None:
        """Delete everything."""
        self._on_its_way = None
        self.replace(EMPTY)

    def replace(self, snapshot: Snapshot) -> None:
        """Keep only `snapshot`."""
        self._head = snapshot.revision, snapshot.compacted, snapshot.next_lease
        self._leases = dict(snapshot.leases)
        self._entries = {entry.key: entry for entry in snapshot.entries}
        self._events = deque(snapshot.events)

    def apply(self, changes: Changes) -> None:
        """Apply a commit to the content."""
        assert changes.revision >= self._head[0], "the revision of a store only grows"
        for lease, seconds in changes.leases.items():
            if seconds is None:
                self._leases.pop(lease, None)
            else:
                self._leases[lease] = seconds
        for key, entry in changes.entries.items():
            if entry is None:
                self._entries.pop(key, None)
            else:
                self._entries[key] = entry
        self._events.extend(changes.events)
        while self._events and self._events[0].revision <= changes.compacted:
            self._events.popleft()
        self._head = changes.revision, changes.compacted, changes.next_lease

    def kept(self) -> Snapshot:
        """Return the whole content."""
        return Snapshot(
            *self._head,
            dict(self._leases),
            tuple(self._entries[key] for key in sorted(self._entries)),
            tuple(self._events),
        )


class _SimulatedMedium:
    """The disk as one process has opened it."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk

    async def load(self) -> Snapshot:
        await trio.sleep(self._disk.delay)
        return self._disk.kept()

    async def check_room(self, size: int) -> None:
        """Does nothing: simulated disks are not full."""

    async def write(self, changes: Changes) -> None:
        await self._disk.commit(lambda: self._disk.apply(changes))

    async def rewrite(self, snapshot: Snapshot) -> None:
        await self._disk.commit(lambda: self._disk.replace(snapshot))

    def close(self) -> None:
        """Does nothing: the disk checks whether its holder has ended."""


class _Log(logging.Handler):
    """Adds the warnings of the runtime to the trace."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(logging.WARNING)
        self._trace = trace

    def emit(self, record: logging.LogRecord) -> None:
        process = PROCESS.get()
        if isinstance(process, LoopBeside):
            process = process.process
        if isinstance(process, SimulatedProcess):
            if process.over:
                # The process has ended: what its remaining tasks log is not recorded.
                return
            self._trace.tell(process.name, "log", record.getMessage())
        else:
            self._trace.tell("", "log", record.getMessage())


def _store(node: Node) -> str:
    """Return the identity of the store that knows a node."""
    return internals_of(node).endpoint.peers.introduction.peer.store


def runs_in_containers(seed: int) -> bool:
    """Return True if each process of the run of a seed is in a container of its own."""
    return random.Random(f"{seed} containers").random() < CONTAINERS


def has_polling(seed: int) -> bool:
    """Return True if connections spin in the run of a seed, so that tasks poll for answers."""
    return random.Random(f"{seed} has polling").random() < POLLING


class SimulatedCluster:
    """`names`: one machine for each, the founder first. `program(node)`: runs beside every node for
    as long as that is open. `timings`: of all nodes.
    """

    def __init__(
        self,
        seed: int,
        names: Sequence[str],
        clock: VirtualClock,
        timings: Timings | None = None,
    ) -> None:
        self.timings = Timings() if timings is None else timings
        self.seed = seed
        self.clock = clock
        self.draw = random.Random(f"{seed} cluster")
        self.trace = Trace(self.now)
        self.network = SimulatedNetwork(
            random.Random(f"{seed} network"), self.trace, clock, self.timings
        )
        if has_polling(seed):
            self.network.polling = random.Random(f"{seed} polling")
        # Both are drawn apart from everything else: the runs of all other seeds are the same as
        # without them.
        containers = runs_in_containers(seed)
        jumping = random.Random(f"{seed} clocks").random() < JUMPING
        self.machines = {
            name: Machine(
                name,
                random.Random(f"{seed} {name}"),
                containers=containers,
                jumps=random.Random(f"{seed} clock of {name}") if jumping else None,
            )
            for name in names
        }
        self.founder = names[0]
        self.program: Program | None = None
        self.linger: Program | None = None
        """What the program still does in the block of a node that was given up."""
        self.at_join: Callable[[SimulatedProcess], Awaitable[None]] | None = None
        """Run beside each process whose node joins the founder's."""
        self.scenario: object = None
        """What runs on it, for actors that report to it."""
        self.on_ended: Callable[[str], None] = lambda name: None
        """Called with the name of a node that was killed, was asked to leave, or has left."""
        self.authorize: Authorize | None = None
        """The rule of all nodes for calls."""
        self.labels: dict[str, dict[str, str]] = {}
        """The labels of nodes, by machine."""
        self.resources: dict[str, dict[str, float]] = {}
        """The resources of nodes, by machine."""
        self.blocked_limit = BLOCKED_LIMIT_SECONDS
        """Seconds for which the lease of a node is renewed while its event loop is blocked."""
        self.unexpected: list[str] = []
        """Processes that ended with an error that no user should ever see."""
        self.broken: list[str] = []
        """Violated invariants of nodes' tables."""
        self.leaves = 0
        """How many nodes were asked to leave, and have ended."""
        self.ended_late: list[str] = []
        """Nodes that were asked to leave, and took longer than their timings allow."""
        self._nursery: trio.Nursery
        self._past: list[SimulatedProcess] = []
        self._pauses: dict[str, list[tuple[float, float]]] = {}
        self._closing = False

    def now(self) -> float:
        """Virtual seconds since the run began."""
        return self.clock.now

    async def run(self, body: Callable[[], Awaitable[None]]) -> None:
        """Start all machines, run `body`, and end everything in order."""
        CLUSTER.set(self)
        logger, handler = logging.getLogger("understudy"), _Log(self.trace)
        propagate, logger.propagate = logger.propagate, False
        logger.addHandler(handler)
        try:
            async with trio.open_nursery() as self._nursery:
                for machine in self.machines.values():
                    self._nursery.start_soon(self._keep_running, machine)
                try:
                    await body()
                finally:
                    with trio.CancelScope(shield=True):
                        await self._end()
        finally:
            logger.removeHandler(handler)
            logger.propagate = propagate

    def place(self, name: str, incarnation: int) -> Place:
        """Return the place of a node that is not stopped."""
        node = self.live(name)
        return name, incarnation, _store(node) if node is not None else ""

    def is_well(self, place: Place) -> bool:
        """Return True if that incarnation lives, and no other node has marked it dead."""
        name, incarnation, store = place
        node = self.live(name)
        if (
            node is None
            or node.incarnation != incarnation
            or _store(node) != store
            or node.asked_to_leave.is_set()
        ):
            return False
        others = map(self.live, self.machines)
        return not any(
            internals_of(other).references.has_ended(NodeId(name, incarnation))
            for other in others
            if other is not None and _store(other) == store
        )

    def live(self, name: str) -> Node | None:
        """Return the node on a machine, if it is open and its process is not stopped."""
        process = self.machines[name].live
        node = process.node if process is not None else None
        # Its process goes on for a moment after the block of the node has ended.
        is_open = node is not None and not internals_of(node).endpoint.lifetime.has_ended
        return node if is_open else None

    async def node(self, name: str) -> Node:
        """Wait for a node on a machine and return it."""
        while (node := self.live(name)) is None:  # noqa: ASYNC110  asked as any outsider would
            await trio.sleep(0.05)
        return node

    def check_invariants(self) -> None:
        """Check the invariants of the tables of all living nodes.

        No task takes a step meanwhile, so the tables are between two steps. Nothing is changed, so
        a run is the same with and without this check.
        """
        for name in self.machines:
            node = self.live(name)
            if node is None:
                continue
            try:
                internals_of(node).check_invariants()
                if isinstance(store := internals_of(node).own_store, EmbeddedStore):
                    store.check_invariants()
            except AssertionError as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                text = f"{name}: {where.name} line {where.lineno}: {where.line} {error}"
                if len(self.broken) < SHOWN:
                    self.broken.append(text)
                    self.trace.tell(name, "wrong", text)

    def start_on(self, name: str, function: Callable[[Node], Awaitable[None]]) -> SimulatedProcess:
        """Start `function(node)` as a task of the process on a machine, which stops and ends with
        it. It must not raise. Raises ValueError if there is no node there now.
        """
        process = self.machines[name].live
        if process is None or process.node is None:
            raise ValueError(f"node {name!r} does not run now")
        with belonging_to(process):
            self._nursery.start_soon(function, process.node)
        return process

    # Faults of machines.

    def crash(self, name: str, *, power: bool = False, disk: bool = True) -> None:
        """Kill a machine's process, like SIGKILL. `power`: the host goes down as well, so its
        kernel sends nothing to peers. Without `disk` its disk is lost.
        """
        machine = self.machines[name]
        process = machine.process
        if process is None or process.over:
            return
        self.trace.tell(
            name,
            "crash",
            ("the power of the host fails" if power else "killed")
            + ("" if disk else ", and its disk is lost"),
        )
        # In this order: the tasks take no further step, so nothing of the process sees the end of
        # its connections, or writes to the disk after the draw.
        process.over = True
        process.stop()
        process.network.end(notified=not power)
        machine.disk.crash()
        if not disk:
            machine.disk.lose()
        # Its tasks stay stopped until the end of the run, and then are cancelled.
        self._past.append(process)
        process.ended.set()

    def pause(self, name: str) -> None:
        """Stop a machine's process, like SIGSTOP."""
        process = self.machines[name].live
        if process is not None:
            self.trace.tell(name, "pause", "stopped")
            self._pauses.setdefault(name, []).append((self.now(), math.inf))
            process.stop()

    def resume(self, name: str) -> None:
        """Let a stopped process go on."""
        process = self.machines[name].process
        if process is not None and process.stopped and not process.over and not process.is_blocked:
            self._go_on(name, process)

    def block_loop(self, name: str) -> None:
        """Block the event loop of a machine's process, like code that computes without end. The
        loop beside it goes on.
        """
        process = self.machines[name].live
        if process is not None:
            self.trace.tell(name, "block", "its event loop is blocked")
            self._pauses.setdefault(name, []).append((self.now(), math.inf))
            process.block()

    def unblock_loop(self, name: str) -> None:
        """Let a blocked loop go on."""
        process = self.machines[name].process
        if process is not None and process.is_blocked and not process.over:
            self._go_on(name, process)

    def _go_on(self, name: str, process: SimulatedProcess) -> None:
        self.trace.tell(name, "resume", "goes on")
        self._pauses[name][-1] = self._pauses[name][-1][0], self.now()
        process.resume()

    def silence_store(self) -> Callable[[], None]:
        """Make the store answer nothing, although its process runs and its links exist. Returns a
        function that ends this.
        """
        node = self.live(self.founder)
        store = internals_of(node).own_store if node is not None else None
        if not isinstance(store, EmbeddedStore) or store.silence is not None:
            return lambda: None
        silence = store.silence = trio.Event()
        self.trace.tell(self.founder, "silence", "the store answers nothing")

        def end() -> None:
            store.silence = None
            silence.set()
            self.trace.tell(self.founder, "heal", "the store answers again")

        return end

    def stopped(self, name: str, since: float) -> float:
        """Return for how many seconds since then the machine's processes were stopped or their
        event loops blocked.
        """
        return sum(
            max(0.0, min(end, self.now()) - max(begin, since))
            for begin, end in self._pauses.get(name, ())
        )

    # Faults of the network.

    def block(self, there: str, back: str) -> Callable[[], None]:
        """Block the path from one machine to another, in this direction only. Returns a function
        that ends this.
        """
        path = self.network.path(there, back)
        path.blocked += 1

        def unblock() -> None:
            path.blocked -= 1
            self.network.freed()

        return unblock

    def partition(self, *sides: Sequence[str]) -> Callable[[], None]:
        """Block all paths between machines of different sides. Returns a function that ends this. A
        machine on no side reaches all others.
        """
        ends = [
            self.block(one, other)
            for side in sides
            for another in sides
            if side is not another
            for one in side
            for other in another
            if one != other and not (one in another or other in side)
        ]
        text = " | ".join(" ".join(side) for side in sides)
        self.trace.tell("", "partition", text)

        def heal() -> None:
            for end in ends:
                end()
            self.trace.tell("", "heal", text)

        return heal

    # Processes

    async def _keep_running(self, machine: Machine) -> None:
        while not self._closing:
            if not machine.wanted:
                machine.changed = trio.Event()
                await machine.changed.wait()
                continue
            process = self._begin(machine)
            with belonging_to(process):
                self._nursery.start_soon(self._live, machine, process)
            # Set at the end of its main task, or by a crash, whose tasks take no further step.
            await process.ended.wait()
            self.on_ended(machine.name)
            if not self._closing:
                await trio.sleep(machine.restart_after)

    def _begin(self, machine: Machine) -> SimulatedProcess:
        pid = next(machine.pids)
        network = HostNetwork(self.network, machine.name)
        beside = LoopBeside(self._nursery)
        environment = SimulatedEnvironment(
            machine, pid, f"{self.seed} {machine.name} {pid}", self.now, beside, self.timings
        )
        process = SimulatedProcess(
            name=machine.name, pid=pid, network=network, environment=environment, beside=beside
        )
        machine.process = process
        self.trace.tell(machine.name, "restart" if pid > 1 else "start", f"process {pid}")
        return process

    async def _live(self, machine: Machine, process: SimulatedProcess) -> None:
        """Run the main task of a process."""
        founds = machine.name == self.founder
        if not founds and self.at_join is not None:
            self._nursery.start_soon(self.at_join, process)
        try:
            with process.scope:
                async with open_node(
                    machine.name,
                    join=None if founds else f"{self.founder}:{PORT}",
                    listen=f"{machine.name}:{PORT}",
                    cluster="simulated",
                    secret=SECRET,
                    labels=self.labels.get(machine.name),
                    resources=self.resources.get(machine.name),
                    data_dir=DIRECTORY if founds else None,
                    platform=Platform(
                        environment=process.environment,
                        network=process.network,
                        disk=machine.disk.open,
                        isolation=WithoutProcesses,
                    ),
                    blocked_limit=self.blocked_limit,
                    authorize=self.authorize,
                ) as node:
                    process.node = node
                    self.trace.tell(machine.name, "up", f"incarnation {node.incarnation}")
                    self._judge_begin(node)
                    async with trio.open_nursery() as nursery:
                        if self.program is not None:
                            nursery.start_soon(self.program, node)
                        await node.asked_to_leave.wait()
                        if self.linger is not None and internals_of(node).given_up is not None:
                            await self.linger(node)
                        process.asked = self.now()
                        nursery.cancel_scope.cancel()
        except (UnderstudyError, OSError) as error:
            process.error = error
        except BaseExceptionGroup as group:
            process.error = group
            if not process.over:
                self.unexpected.append(f"{machine.name}: {group!r}: {group.exceptions!r}")
        except Exception as error:
            process.error = error
            if not process.over:
                self.unexpected.append(f"{machine.name}: {error!r}")
        finally:
            process.beside.cancel()
            # Otherwise the process was killed: the machine may run another one by now.
            if not process.over:
                why = (
                    f"{type(process.error).__name__}: {process.error}"
                    if process.error is not None
                    else "in order"
                )
                self.trace.tell(machine.name, "leave", why)
                self._judge_end(process)
                process.over = True
                process.network.end(notified=True)
                process.node = None
                process.ended.set()

    def _judge_begin(self, node: Node) -> None:
        """Check that a node which has just been opened is up in its own view."""
        mine = [
            one
            for one in node.members()
            if (one.name, one.incarnation) == (node.name, node.incarnation)
        ]
        if any(one.state == "joining" for one in mine):
            # The client that owns the node could not place an actor on it. A node that was given up
            # meanwhile is not there at all.
            self.unexpected.append(
                f"{node.name}: open_node returned before the node was up in its own view"
            )

    def _judge_end(self, process: SimulatedProcess) -> None:
        """Compare the time since the request to leave with what the timings allow. Called at the
        end of the process, and at the end of the run for processes that still run.
        """
        if process.asked is None:
            return
        self.leaves += 1
        # While its loop was stopped, its deadlines could not be kept.
        stopped = self.stopped(process.name, process.asked)
        took = self.now() - process.asked - stopped
        if took > self.timings.leaving + END_SLACK and len(self.ended_late) < SHOWN:
            text = (
                f"{process.name} was asked to leave and has not ended for {took:.1f} s, its "
                f"timings allow {self.timings.leaving:g} s"
            )
            self.ended_late.append(text)
            self.trace.tell(process.name, "wrong", text)

    async def _end(self) -> None:
        """Let all nodes leave, the founder last. Then end what is left of processes that were
        killed.
        """
        self._closing = True
        for machine in self.machines.values():
            self.resume(machine.name)
            self.unblock_loop(machine.name)
            machine.want(running=False)
        with trio.move_on_after(LEAVE_SECONDS):
            # The founder last: it keeps the store, which the others need to leave in order.
            for machine in reversed(self.machines.values()):
                process = machine.process
                if process is not None and not process.over:
                    if process.node is not None:
                        process.node.leave()
                    else:
                        process.scope.cancel()
                    await process.ended.wait()
        for machine in self.machines.values():
            if machine.process is not None and not machine.process.over:
                self._judge_end(machine.process)
        self.trace.end_judging()
        for process in self._past:
            # Cancelled first, so that its tasks end with their next step. One that had what it
            # waited for runs to where it waits next, and begins to run an actor on the way.
            process.scope.cancel()
            process.resume()
        self._nursery.cancel_scope.deadline = trio.current_time() + LEAVE_SECONDS


# When a simulated cluster is complete.


async def all_up(cluster: SimulatedCluster) -> None:
    """Wait until every machine has a node, and every node sees all of them."""
    while True:
        nodes = [cluster.live(name) for name in cluster.machines]
        if all(node is not None and _up(node) == len(nodes) for node in nodes):
            return
        await trio.sleep(MEMBERS_LOOK_SECONDS)


def _up(node: Node) -> int:
    """Return how many nodes this one sees as up; 0 if it has left and its process has not ended."""
    try:
        return sum(each.state == "up" for each in node.members())
    except NotAMemberError:
        return 0
