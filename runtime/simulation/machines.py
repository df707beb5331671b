"""Simulated machines: a host with its disk, and on it one process after the other, each with a node."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from actors.errors import StoreDataError
from runtime.environment import Beside, Environment, LookAtStack, Process
from runtime.node import Node
from runtime.simulation.network import HostNetwork
from runtime.simulation.scheduler import Stoppable, belonging_to
from runtime.store.changes import Changes
from runtime.store.disk import Medium
from runtime.store.memory import Snapshot

T = TypeVar("T")

EMPTY = Snapshot(1, 0, 1, {}, (), ())
"""What a new disk holds: the store's beginning."""

EPOCH = 1_750_000_000.0
"""What the wall clocks show when a run begins."""


@attrs.define(eq=False, kw_only=True)
class SimulatedProcess(Stoppable):
    """One life of a node: its event loop, and the one `beside` it. `over`: it has ended, in order or not."""

    name: str
    pid: int
    network: HostNetwork
    environment: SimulatedEnvironment
    beside: LoopBeside
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    ended: trio.Event = attrs.field(factory=trio.Event)
    node: Node | None = None
    over: bool = False
    error: BaseException | None = None
    is_blocked: bool = False
    """True while its event loop is stopped, and the one beside that goes on."""

    def __attrs_post_init__(self) -> None:
        self.beside.process = self

    def stop(self) -> None:
        """Let neither loop take another step."""
        super().stop()
        self.beside.stop()

    def resume(self) -> None:
        """Let both loops go on."""
        self.is_blocked = False
        self.beside.resume()
        super().resume()

    def block(self) -> None:
        """Let the event loop take no further step, like code of users that computes; the loop beside goes on."""
        self.is_blocked = True
        super().stop()


class LoopBeside(Stoppable):
    """The event loop beside a process's own. Tasks in it belong to this, so that they go on while the process's own loop is blocked."""

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__()
        self._nursery = nursery
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self.process: SimulatedProcess
        """Whose it is."""

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        """Run `main` in it."""
        with belonging_to(self):
            self._nursery.start_soon(self._main, main)

    async def _main(self, main: Callable[[], Awaitable[None]]) -> None:
        try:
            with self._scope:
                await main()
        finally:
            self._ended.set()

    def cancel(self) -> None:
        """End what runs in it: the process has ended, and the thread of this loop with it."""
        self._scope.cancel()

    async def end(self) -> None:
        """See `Beside.end`."""
        self._scope.cancel()
        await self._ended.wait()


class SimulatedEnvironment:
    """What a process asks of the world: an `Environment` of nothing but the virtual clock and a seed.

    `beside`: the event loop beside that of the process, None if there is none.
    """

    def __init__(self, machine: Machine, pid: int, seed: str, now: Callable[[], float], beside: LoopBeside | None = None) -> None:
        self._seed = seed
        self._beside = beside
        self._machine = machine
        self._process = Process(machine.name, pid, str(pid))
        self._draw = random.Random(seed)
        self.now = now

    def wall_time(self) -> float:
        """See `Environment.wall_time`."""
        return EPOCH + self.now()

    def random(self) -> float:
        """See `Environment.random`."""
        return self._draw.random()

    def token(self, size: int) -> bytes:
        """See `Environment.token`. As predictable as everything else here."""
        return self._draw.randbytes(size)

    def process(self) -> Process:
        """See `Environment.process`."""
        return self._process

    def has_ended(self, process: Process) -> bool:
        """See `Environment.has_ended`: a machine knows of its own processes only."""
        current = self._machine.process
        return process.host == self._machine.name and (current is None or current.pid != process.pid or current.over)

    async def in_thread(self, function: Callable[[], T], limiter: trio.CapacityLimiter | None = None, *, abandon: bool = False) -> T:
        """See `Environment.in_thread`. Virtual time does not pass meanwhile."""
        await trio.lowlevel.checkpoint()
        return function()

    def run_beside(self, function: Callable[[Environment, LookAtStack], Awaitable[None]]) -> Beside | None:
        """See `Environment.run_beside`. What the process's own loop runs cannot be told: it is stopped between two steps."""
        loop = self._beside
        if loop is None:
            return None
        environment = SimulatedEnvironment(self._machine, self._process.pid, f"{self._seed} beside", self.now)
        loop.run(lambda: function(environment, lambda: None))
        return loop


@attrs.define(eq=False)
class Machine:
    """A host. Its disk outlasts its processes."""

    name: str
    draw: random.Random
    process: SimulatedProcess | None = None
    disk: SimulatedDisk = attrs.field(init=False)
    pids: itertools.count[int] = attrs.field(factory=lambda: itertools.count(1))
    restart_after: float = 0.5
    """Seconds from the end of a process to the next."""
    wanted: bool = True
    """False while it is down on purpose."""
    changed: trio.Event = attrs.field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self.disk = SimulatedDisk(self)

    def want(self, *, running: bool) -> None:
        """Start processes on it, or do not."""
        self.wanted = running
        self.changed.set()

    @property
    def live(self) -> SimulatedProcess | None:
        """The process, if it takes steps."""
        process = self.process
        return process if process is not None and not process.over and not process.stopped else None


class SimulatedDisk:
    """What is on a disk after the last commit that reached it. `delay`: seconds that a commit takes."""

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
        return _Medium(self)

    async def commit(self, change: Callable[[], None]) -> None:
        """Let `change` happen as a whole, after a while."""
        self._on_its_way = change
        await trio.sleep(self.delay * (0.5 + self._machine.draw.random()))
        if self._on_its_way is change:
            self._on_its_way = None
            change()

    def crash(self) -> None:
        """The process was killed: the commit on its way may have reached the disk, or not."""
        change, self._on_its_way = self._on_its_way, None
        if change is not None and self._machine.draw.random() < 0.5:
            change()

    def lose(self) -> None:
        """Everything on it is gone."""
        self._on_its_way = None
        self.replace(EMPTY)

    def replace(self, snapshot: Snapshot) -> None:
        """Keep `snapshot` and nothing else."""
        self._head = snapshot.revision, snapshot.compacted, snapshot.next_lease
        self._leases = dict(snapshot.leases)
        self._entries = {entry.key: entry for entry in snapshot.entries}
        self._events = deque(snapshot.events)

    def apply(self, changes: Changes) -> None:
        """Bring what is kept up to date."""
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
        """Everything on it."""
        return Snapshot(*self._head, dict(self._leases), tuple(self._entries[key] for key in sorted(self._entries)), tuple(self._events))


class _Medium:
    """The disk as one process has opened it."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk

    async def load(self) -> Snapshot:
        await trio.sleep(self._disk.delay)
        return self._disk.kept()

    async def write(self, changes: Changes) -> None:
        await self._disk.commit(lambda: self._disk.apply(changes))

    async def rewrite(self, snapshot: Snapshot) -> None:
        await self._disk.commit(lambda: self._disk.replace(snapshot))

    def close(self) -> None:
        """Nothing to let go of: the disk looks at whether its holder is over."""
