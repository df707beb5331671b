"""A whole cluster in one thread: machines, the network between them, and what may be done to both.

Every machine has a process with a node, and starts another when that has ended, as a service manager would. The first machine founds the
cluster and keeps its store on its disk; the others join it.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from pathlib import Path

import trio

from actors.errors import UnderstudyError
from runtime.isolation import without_processes
from runtime.membership.stand_by import BLOCKED_LIMIT_SECONDS
from runtime.node import Node
from runtime.opening import open_node
from runtime.simulation.machines import LoopBeside, Machine, SimulatedEnvironment, SimulatedProcess
from runtime.simulation.network import HostNetwork, SimulatedNetwork
from runtime.simulation.scheduler import PROCESS, VirtualClock, belonging_to
from runtime.simulation.trace import Trace
from runtime.store.embedded import EmbeddedStore

SECRET = "simulated"
PORT = 7400
DIRECTORY = Path("/simulated")
LEAVE_SECONDS = 60.0

Program = Callable[[Node], Awaitable[None]]


class _Log(logging.Handler):
    """Warnings of the runtime become part of the trace."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(logging.WARNING)
        self._trace = trace

    def emit(self, record: logging.LogRecord) -> None:
        process = PROCESS.get()
        if isinstance(process, LoopBeside):
            process = process.process
        if isinstance(process, SimulatedProcess):
            if process.over:
                # What is left of it comes to its end, out of sight.
                return
            self._trace.tell(process.name, "log", record.getMessage())
        else:
            self._trace.tell("", "log", record.getMessage())


CLUSTER: ContextVar[SimulatedCluster] = ContextVar("CLUSTER")
"""The cluster that the running task belongs to, for actors that report to its checkers."""


class SimulatedCluster:
    """`names`: one machine for each, the founder first. `program(node)` runs beside every node for as long as that is open."""

    def __init__(self, seed: int, names: Sequence[str], clock: VirtualClock) -> None:
        self.seed = seed
        self.clock = clock
        self.draw = random.Random(f"{seed} cluster")
        self.trace = Trace(self.now)
        self.network = SimulatedNetwork(random.Random(f"{seed} network"), self.trace, clock)
        self.machines = {name: Machine(name, random.Random(f"{seed} {name}")) for name in names}
        self.founder = names[0]
        self.program: Program | None = None
        self.scenario: object = None
        """What runs on it, for actors that report to it."""
        self.blocked_limit = BLOCKED_LIMIT_SECONDS
        """Seconds for which the lease of a node is kept whose event loop is blocked."""
        self.unexpected: list[str] = []
        """Processes that ended by an error that no user should see."""
        self._nursery: trio.Nursery
        self._past: list[SimulatedProcess] = []
        self._pauses: dict[str, list[tuple[float, float]]] = {}
        self._closing = False
        self._units = 0

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

    def live(self, name: str) -> Node | None:
        """The node on a machine, if it is open and its process takes steps."""
        process = self.machines[name].live
        return process.node if process is not None else None

    async def node(self, name: str) -> Node:
        """The node on a machine, as soon as there is one."""
        while (node := self.live(name)) is None:  # noqa: ASYNC110  asked as any outsider would
            await trio.sleep(0.05)
        return node

    # What may be done to machines

    def crash(self, name: str, *, power: bool = False, disk: bool = True) -> None:
        """Kill a machine's process, as SIGKILL does. `power`: the host goes down as well, and tells nobody. Without `disk` that is lost."""
        machine = self.machines[name]
        process = machine.process
        if process is None or process.over:
            return
        self.trace.tell(name, "crash", f"{'the power of the host fails' if power else 'killed'}{'' if disk else ', and its disk is lost'}")
        process.over = True
        process.stop()
        process.network.end(told=not power)
        machine.disk.crash()
        if not disk:
            machine.disk.lose()
        self._past.append(process)
        process.ended.set()

    def pause(self, name: str) -> None:
        """Stop a machine's process, as SIGSTOP does."""
        process = self.machines[name].live
        if process is not None:
            self.trace.tell(name, "pause", "stopped")
            self._pauses.setdefault(name, []).append((self.now(), math.inf))
            process.stop()

    def resume(self, name: str) -> None:
        """Let it go on."""
        process = self.machines[name].process
        if process is not None and process.stopped and not process.over and not process.is_blocked:
            self._go_on(name, process)

    def block_loop(self, name: str) -> None:
        """Stop the event loop of a machine's process, as code does that computes without end; the loop beside it goes on."""
        process = self.machines[name].live
        if process is not None:
            self.trace.tell(name, "block", "its event loop is blocked")
            self._pauses.setdefault(name, []).append((self.now(), math.inf))
            process.block()

    def unblock_loop(self, name: str) -> None:
        """Let it go on."""
        process = self.machines[name].process
        if process is not None and process.is_blocked and not process.over:
            self._go_on(name, process)

    def _go_on(self, name: str, process: SimulatedProcess) -> None:
        self.trace.tell(name, "resume", "goes on")
        self._pauses[name][-1] = self._pauses[name][-1][0], self.now()
        process.resume()

    def silence_store(self) -> Callable[[], None]:
        """Let the store answer nothing, though its process runs and its links stand; returns what ends it."""
        node = self.live(self.founder)
        store = node.own_store if node is not None else None
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
        """For how many seconds since then the machine's processes were stopped, or their event loops blocked."""
        return sum(max(0.0, min(end, self.now()) - max(begin, since)) for begin, end in self._pauses.get(name, ()))

    # What may be done to the network

    def block(self, there: str, back: str) -> Callable[[], None]:
        """Let nothing through from one machine to another, in this direction only; returns what ends it."""
        path = self.network.path(there, back)
        path.blocked += 1

        def unblock() -> None:
            path.blocked -= 1
            self.network.freed()

        return unblock

    def partition(self, *sides: Sequence[str]) -> Callable[[], None]:
        """Let nothing through between machines of different sides; returns what ends it. A machine on no side reaches all."""
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
        self._units += 1
        while not self._closing:
            if not machine.wanted:
                machine.changed = trio.Event()
                await machine.changed.wait()
                continue
            process = self._begin(machine)
            with belonging_to(process):
                self._nursery.start_soon(self._live, machine, process)
            await process.ended.wait()
            if not self._closing:
                await trio.sleep(machine.restart_after)
        self._units -= 1

    def _begin(self, machine: Machine) -> SimulatedProcess:
        pid = next(machine.pids)
        network = HostNetwork(self.network, machine.name)
        beside = LoopBeside(self._nursery)
        environment = SimulatedEnvironment(machine, pid, f"{self.seed} {machine.name} {pid}", self.now, beside)
        process = SimulatedProcess(name=machine.name, pid=pid, network=network, environment=environment, beside=beside)
        machine.process = process
        self.trace.tell(machine.name, "restart" if pid > 1 else "start", f"process {pid}")
        return process

    async def _live(self, machine: Machine, process: SimulatedProcess) -> None:
        """The main task of a process."""
        founds = machine.name == self.founder
        try:
            with process.scope:
                async with open_node(
                    machine.name,
                    join=None if founds else f"{self.founder}:{PORT}",
                    listen=f"{machine.name}:{PORT}",
                    cluster="simulated",
                    secret=SECRET,
                    data_dir=DIRECTORY if founds else None,
                    environment=process.environment,
                    network=process.network,
                    disk=machine.disk.open,
                    isolation=without_processes,
                    blocked_limit=self.blocked_limit,
                ) as node:
                    process.node = node
                    self.trace.tell(machine.name, "up", f"incarnation {node.incarnation}")
                    mine = [one for one in node.members() if (one.name, one.incarnation) == (node.name, node.incarnation)]
                    if any(one.state == "joining" for one in mine):
                        # Whoever has it in hand could not place an actor on it. One that was given up meanwhile is not there at all.
                        self.unexpected.append(f"{machine.name}: open_node returned before the node was up in its own view")
                    async with trio.open_nursery() as nursery:
                        if self.program is not None:
                            nursery.start_soon(self.program, node)
                        await node.asked_to_leave.wait()
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
            if not process.over:
                why = f"{type(process.error).__name__}: {process.error}" if process.error is not None else "in order"
                self.trace.tell(machine.name, "leave", why)
                process.over = True
                process.network.end(told=True)
                process.node = None
                process.ended.set()

    async def _end(self) -> None:
        """Let all nodes leave, the founder last, and then what is left of processes that were killed."""
        self._closing = True
        for machine in self.machines.values():
            self.resume(machine.name)
            self.unblock_loop(machine.name)
            machine.want(running=False)
        with trio.move_on_after(LEAVE_SECONDS):
            for machine in reversed(self.machines.values()):
                process = machine.process
                if process is not None and not process.over:
                    if process.node is not None:
                        process.node.leave()
                    else:
                        process.scope.cancel()
                    await process.ended.wait()
        for process in self._past:
            process.scope.cancel()
            process.resume()
        self._nursery.cancel_scope.deadline = trio.current_time() + LEAVE_SECONDS
