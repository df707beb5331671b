"""A network of simulated hosts: bytes are delayed and connections break, as the faults demand.

For its users it behaves like TCP. Bytes arrive in order or not at all. What is sent into a
partition is sent again when the partition is over, unless that took longer than
`Timings.user_timeout`: then the sender's side breaks, and the receiver learns of it only when
something gets through again. The kernel of a killed process sends a reset to its peers; a host
without power sends nothing.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import random
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import attrs
import trio

from runtime.environment import Environment
from runtime.links.loans import LendingPools
from runtime.links.spin import Spin
from runtime.links.spinner import PollableConnection, Spinner
from runtime.links.transports import Connection, Network
from runtime.shared_memory.mappings import WritableMapping
from runtime.simulation.report import Trace
from runtime.simulation.scheduler import VirtualClock
from runtime.timings import Timings
from runtime.wire.handshake import Channel

CAPACITY = 1024 * 1024
"""Bytes of one direction that are in flight or not yet read."""

SYN_SECONDS = 20.0
"""Seconds for which a host dials through a partition, as a kernel repeats its SYN. Longer than
`Timings.dial`.
"""
DIAL_AGAIN = 1.0

SPINS = (0.002, 0.01, 0.04)
"""Virtual seconds that a spin lasts, one of these. The longest takes in many an answer of another
host.
"""

SPINNING = 0.7
"""The share of the receives that spin, once one had to sleep."""

STOPPING = 0.1
"""The share of what is found that stops the spin, as where another process needs the core."""

LOOKS = 4
"""How often a spin looks whether it may end. What arrives is found at once."""

_END = b""


@attrs.define(eq=False)
class Path:
    """The path from one host to another, in this direction. `delay` in seconds, plus up to
    `jitter`; `speed` in bytes per second.
    """

    delay: float
    jitter: float
    speed: float
    blocked: int = 0
    """How many faults block the path."""
    clog: float = 0.0
    """Seconds that are added while the path is clogged."""


class _PipeWaiter:
    """The one task that waits at one end of a pipe. (A `ParkingLot` is for many tasks, and costs
    several times as much. A simulated run waits hundreds of thousands of times.)
    """

    def __init__(self) -> None:
        self.task: trio.lowlevel.Task | None = None

    async def wait(self) -> None:
        """Wait for `wake`."""
        assert self.task is None, "one task reads and one writes"
        self.task = trio.lowlevel.current_task()
        # No await since the caller found nothing: what comes from here on wakes this task.
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, raise_cancel: Callable[[], object]) -> trio.lowlevel.Abort:
        self.task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def wake(self) -> None:
        """Wake the task, if one waits."""
        task = self.task
        if task is not None:
            self.task = None
            trio.lowlevel.reschedule(task)


class Pipe:
    """One direction of a connection."""

    def __init__(
        self, network: SimulatedNetwork, number: int, path: Path, hosts: tuple[str, str]
    ) -> None:
        self.network = network
        self.number = number
        self.hosts = hosts
        self.path = path
        self.arrived: deque[bytes] = deque()
        self.stuck: deque[bytes | None] = deque()
        self.stuck_since = math.inf
        self.sending_again = False
        self.size = 0
        self.latest = 0.0
        self.sent = 0
        self.cut_after = math.inf
        self.vanished = False
        """Silent: nothing gets through any more, and neither end gets an error."""
        self.sender_broken: OSError | None = None
        self.reader_broken: OSError | None = None
        self.reader_gone = False
        self.other: Pipe
        """The other direction."""
        self.readable = _PipeWaiter()
        self.polled = _PipeWaiter()
        """A task waits here that polls in the place of the one at `readable`."""
        self.writable = _PipeWaiter()

    def put(self, data: bytes | None) -> None:
        """Send `data`; b"" is the end of the stream, None a reset."""
        length = len(data) if data else 0
        network, path = self.network, self.path
        draw = network.draw.random
        arrival = (
            network.now()
            + path.delay
            + draw() * path.jitter
            + draw() * path.clog
            + length / path.speed
        )
        # Keep the order: data with a smaller drawn delay arrives together with the data that was
        # sent before it.
        if arrival < self.latest:
            arrival = self.latest
        self.latest = arrival
        if arrival > network.latest:
            network.latest = arrival
        assert length <= CAPACITY
        self.size += length
        network.at(arrival, partial(self.arrive, data))

    def arrive(self, data: bytes | None) -> None:
        """Deliver, unless the path is blocked."""
        # Also behind what is stuck already, so that the order stays.
        if self.stuck or self.vanished or self.path.blocked:
            self.stuck.append(data)
            if self.stuck_since == math.inf:
                since = self.stuck_since = self.network.now()
                self.network.at(since + self.network.user_timeout, lambda: self.give_up(since))
        else:
            self.deliver(data)

    def deliver(self, data: bytes | None) -> None:
        """Deliver to the reader."""
        self.network.trace.note(
            self.number, -1 if data is None else len(data), zlib.crc32(data or b"")
        )
        if data is None:
            self.break_reader(ConnectionResetError(errno.ECONNRESET, "reset by the peer"))
            self.break_sender(ConnectionResetError(errno.ECONNRESET, "reset"))
        elif self.reader_gone:
            # The process there no longer has this connection.
            self.size -= len(data)
            if data:
                self.other.put(None)
        elif self.reader_broken is None:
            self.arrived.append(data)
            self.wake_readers()
            if self.network.delivered is not None:
                self.network.delivered(self.hosts)

    def give_up(self, since: float) -> None:
        """Break the sender's side, because bytes were not acknowledged for too long. `since`: when
        they were stuck; if they have arrived in between, this is about earlier ones.
        """
        if self.stuck_since == since and self.stuck:
            self.break_sender(
                TimeoutError(errno.ETIMEDOUT, "what was sent was not acknowledged in time")
            )
            # The reader learns of it by a reset, and only when something gets through again.
            self.stuck.clear()
            self.stuck.append(None)

    def unstick(self) -> None:
        """The path is free again: send what was stuck, before anything newer arrives."""
        if self.stuck and not self.vanished and not self.path.blocked and not self.sending_again:
            self.sending_again = True
            self.network.at(self.network.now() + self.path.delay, self.arrive_again)

    def arrive_again(self) -> None:
        """Deliver what was stuck, unless the path has been blocked again."""
        self.sending_again = False
        if self.vanished or self.path.blocked:
            return
        stuck, self.stuck = self.stuck, deque()
        self.stuck_since = math.inf
        for data in stuck:
            self.deliver(data)

    def break_sender(self, error: OSError) -> None:
        """Raise `error` at the end that sends into this direction and reads from the other one."""
        if self.sender_broken is None:
            self.sender_broken = error
            self.other.break_reader(error)
            self.writable.wake()

    def break_reader(self, error: OSError) -> None:
        """Raise `error` at the end that reads from this direction and sends into the other one."""
        if self.reader_broken is None:
            self.reader_broken = error
            self.other.break_sender(error)
            self.wake_readers()

    def wake_readers(self) -> None:
        """Wake the task that reads, and the one that polls in its place, if they wait."""
        self.readable.wake()
        self.polled.wake()


def _afresh(error: OSError) -> OSError:
    """Return a new error of the same kind: a raised one would keep alive everything in its frames
    for as long as the connection exists.
    """
    return type(error)(*error.args)


class _DrawnSpin(Spin):
    """Whether a receive spins, and for how long, is drawn: virtual time says nothing of cores."""

    __slots__ = ("_draw",)

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self._draw = draw
        self.due = math.inf

    def on_slept(self, now: float, waited: float, size: int) -> None:
        """Draw for the next receive."""
        self.seconds = self._draw.choice(SPINS) if self._draw.random() < SPINNING else 0.0

    def on_hit(self, now: float, waited: float, size: int) -> None:
        """Go on, or stop in the middle of a poll."""
        if self._draw.random() < STOPPING:
            self.seconds = 0.0

    def on_turn(self, passed: float) -> float:
        """Look once: virtual time does not pass between two looks."""
        return 0.0


class SimulatedConnection(PollableConnection):
    """One end; a `Connection` of `runtime.links.transports`. With a `spinner` it may be polled."""

    channel = Channel()

    def __init__(self, sends: Pipe, receives: Pipe, spinner: Spinner | None = None) -> None:
        super().__init__(spinner, self._look, self._wait_readable, self._pass_time)
        if spinner is not None and sends.network.polling is not None:
            self._spin = _DrawnSpin(sends.network.polling)
        self.sends = sends
        self.receives = receives
        self.closed = False
        self.process: int | None = None
        """See `peer_process`."""

    def peer_process(self) -> int | None:
        """The pid of the process at the other end, if this is a Unix socket between processes that
        share memory.
        """
        return self.process

    @property
    def descriptor(self) -> int:
        """The number of the connection; -1 when it is closed."""
        return -1 if self.closed else self.sends.number

    def send_some(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        """Put bytes on the way to the peer; returns how many, 0 if the buffer is full. Raises
        OSError if the connection is broken.
        """
        pipe = self.sends
        if self.closed:
            raise OSError(errno.EBADF, "closed")
        if pipe.sender_broken is not None:
            raise _afresh(pipe.sender_broken)
        data = b"".join(buffers)
        length, room = len(data), CAPACITY - pipe.size
        if length > room:
            length = max(room, 0)
            data = data[:length]
        if not length:
            return 0
        assert pipe.size + length <= CAPACITY
        left = pipe.cut_after - pipe.sent
        pipe.sent += length
        if left <= length:
            # The beginning of the data still arrives. Then the connection is over at both ends.
            pipe.put(data[: int(left)] or None)
            pipe.put(None)
            pipe.cut_after = math.inf
        else:
            pipe.put(data)
        return length

    async def wait_writable(self) -> None:
        """Wait until `send_some` may take more."""
        await trio.lowlevel.checkpoint()
        while self.sends.size >= CAPACITY and not self.closed and self.sends.sender_broken is None:
            await self.sends.writable.wait()

    async def receive(self) -> bytes:
        """Return the next bytes that have arrived; b"" when the peer has ended. Raises OSError if
        the connection is broken.
        """
        spinner = self._spinner
        if spinner is not None and spinner.current is None and not self.receives.arrived:
            return await self._receive_watched(spinner)
        return await self._received(math.inf)

    def _look(self, most: int) -> bytes:
        pipe = self.receives
        if self.closed:
            raise OSError(errno.EBADF, "closed")
        if not pipe.arrived:
            if pipe.reader_broken is not None:
                raise _afresh(pipe.reader_broken)
            raise BlockingIOError
        return self._taken(most)

    async def _wait_readable(self) -> None:
        pipe = self.receives
        await trio.lowlevel.checkpoint()
        while not (pipe.arrived or self.closed or pipe.reader_broken is not None):
            await pipe.readable.wait()

    async def _pass_time(self) -> None:
        """Let time pass between two looks: a part of the spin, or until something arrives. As many
        looks as a real poll has would take most of a run.
        """
        pipe = self.receives
        if pipe.arrived or self.closed or pipe.reader_broken is not None:
            await trio.lowlevel.checkpoint()
            return
        # The reader leaves its place to another task that polls when it finds that, at the end of
        # this.
        waiter = pipe.polled if self._relieved else pipe.readable
        with trio.move_on_after(self._spin.seconds / LOOKS):
            await waiter.wait()

    async def _let_other_poll(self) -> None:
        # Virtual time passes only while all tasks sleep. The end of a poll is no event: in a real
        # connection, which this follows, it wakes no task.
        while self._relieved:  # noqa: ASYNC110
            await trio.sleep(self._spin.seconds / LOOKS)

    async def receive_into(self, buffer: memoryview) -> int:
        """Like `receive`, into `buffer`; returns the count, 0 at the end."""
        data = await self._received(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    async def _received(self, most: float) -> bytes:
        pipe = self.receives
        waited = False
        while not pipe.arrived:
            if self.closed:
                raise trio.ClosedResourceError("closed while it was being read")
            if pipe.reader_broken is not None:
                await trio.lowlevel.checkpoint()
                raise _afresh(pipe.reader_broken)
            await pipe.readable.wait()
            waited = True
        if not waited:
            await trio.lowlevel.checkpoint()
        if self.closed:
            raise trio.ClosedResourceError("closed while it was being read")
        return self._taken(most)

    def _taken(self, most: float) -> bytes:
        """Take what has arrived, at most so many bytes."""
        pipe = self.receives
        if not pipe.arrived[0]:
            return _END
        data = pipe.arrived.popleft()
        if len(data) > most:
            pipe.arrived.appendleft(data[int(most) :])
            data = data[: int(most)]
        pipe.size -= len(data)
        assert pipe.size >= 0, "what is read was sent"
        pipe.writable.wake()
        return data

    def close(self) -> None:
        """Drop the connection at once. Waiting calls raise trio.ClosedResourceError."""
        if not self.closed:
            self.closed = True
            self.receives.reader_gone = True
            self.receives.wake_readers()
            self._spin_no_more()
            self.sends.writable.wake()
            if self.sends.sender_broken is None:
                self.sends.put(_END)

    def abandon(self, *, notified: bool) -> None:
        """End the connection because its process has ended. If the host still runs, its kernel
        notifies the peer.
        """
        if not self.closed:
            self.closed = True
            self.receives.reader_gone = True
            if notified:
                self.sends.put(None)


@attrs.define(eq=False)
class Listener:
    """A process that accepts connections at an address."""

    owner: HostNetwork
    incoming: deque[SimulatedConnection] = attrs.field(factory=deque)
    came: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)


class SimulatedNetwork:
    """All hosts and the paths between them. Delays are drawn from `draw`, and events are recorded
    in `trace`. `timings`: of the nodes.
    """

    def __init__(
        self,
        draw: random.Random,
        trace: Trace,
        clock: VirtualClock,
        timings: Timings | None = None,
    ) -> None:
        self.user_timeout = (Timings() if timings is None else timings).user_timeout
        """Seconds for which bytes may be stuck before the sender's side breaks."""
        self.draw = draw
        self.trace = trace
        self.now = clock.current_time
        self.at = clock.at
        self.listeners: dict[str, Listener] = {}
        self.connections: list[SimulatedConnection] = []
        """The dialling ends of those that live, and of some that have ended."""
        self.latest = 0.0
        """When the last of all bytes that are on their way arrive."""
        self.polling: random.Random | None = None
        """Draws which receives spin, so that tasks may poll for their answers; None if none do.
        """
        self.delivered: Callable[[tuple[str, str]], None] | None = None
        """Called when bytes have arrived, with the host that sent them and that which reads them,
        before its tasks take a step.
        """
        self._crowded = 16
        self._paths: dict[tuple[str, str], Path] = {}
        self._ports = itertools.count(7400)
        self._numbers = itertools.count(1)
        self._slowest = draw.uniform(0.0002, 0.01)

    def path(self, there: str, back: str) -> Path:
        """Return the path from one host to another."""
        found = self._paths.get((there, back))
        if found is None:
            base = 0.00002 if there == back else self._slowest * self.draw.uniform(0.1, 1.0)
            found = self._paths[there, back] = Path(
                base, base * self.draw.choice((0.1, 1.0, 5.0)), self.draw.choice((1e7, 1e8, 1e9))
            )
        return found

    def freed(self) -> None:
        """Some paths are free again."""
        for connection in self.connections:
            # Asked here: a partition frees hundreds of paths one by one, and few pipes are stuck.
            if connection.sends.stuck:
                connection.sends.unstick()
            if connection.receives.stuck:
                connection.receives.unstick()

    async def connect(
        self, owner: HostNetwork, address: str, spinner: Spinner | None = None
    ) -> SimulatedConnection:
        """Dial from one process to the listener at an address. `spinner`: of the dialling end."""
        host = (
            owner.host
            if address.startswith("unix:")
            else address.removeprefix("tcp:").rpartition(":")[0]
        )
        if not host:
            raise ValueError(f"{address!r} is not an address")
        key = (
            f"{host}|{address}"
            if address.startswith("unix:")
            else f"tcp:{address.removeprefix('tcp:')}"
        )
        there, back = self.path(owner.host, host), self.path(host, owner.host)
        until = self.now() + SYN_SECONDS
        # A poll, as by a kernel that repeats its SYN.
        while there.blocked or back.blocked:
            if self.now() >= until:
                raise TimeoutError(errno.ETIMEDOUT, f"nothing comes back from {host}")
            await trio.sleep(DIAL_AGAIN)
        await trio.sleep(there.delay + back.delay + self.draw.random() * (there.clog + back.clog))
        # Only now: the processes at both ends may have ended while the dial was on its way.
        listener = self.listeners.get(key)
        if listener is None or listener.owner.over:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"no process listens at {address}")
        if owner.over:
            raise OSError(errno.ENETDOWN, "this process is no more")
        number = next(self._numbers)
        near = Pipe(self, 2 * number, there, (owner.host, host))
        far = Pipe(self, 2 * number + 1, back, (host, owner.host))
        near.other, far.other = far, near
        dialled = SimulatedConnection(near, far, spinner)
        accepted = SimulatedConnection(far, near, listener.owner.spinner)
        if address.startswith("unix:") and owner.shares_memory:
            # All simulated processes are this one.
            dialled.process = accepted.process = os.getpid()
        self.trace.note(number, 0, zlib.crc32(f"{owner.host} {host}".encode()))
        if len(self.connections) >= self._crowded:
            # Each time the number has doubled: with thousands of connections, a walk over all of
            # them at each dial would take most of the time.
            self.connections = [one for one in self.connections if one.sends.sender_broken is None]
            self._crowded = 2 * len(self.connections) + 16
        self.connections.append(dialled)
        owner.connections.append(dialled)
        listener.owner.connections.append(accepted)
        listener.incoming.append(accepted)
        listener.came.unpark_all()
        return dialled


class SharedHostPools(LendingPools):
    """What processes of one simulated host lend each other: memory of this process, under names
    that depend on the run alone, as its trace does. `names`: of all of them, with the descriptors.
    """

    def __init__(self, environment: Environment, names: dict[int, int]) -> None:
        super().__init__(environment)
        self._names = names

    def name(self, descriptor: int) -> int:
        """Return a name that none had before."""
        name = len(self._names)
        self._names[name] = descriptor
        return name

    def map(self, process: int, name: int, key: bytes, most: int) -> WritableMapping:
        """Return memory of another simulated process."""
        return super().map(process, self._names[name], key, most)


class HostNetwork:
    """The network as one process sees it; implements `Network` of `runtime.links.transports`."""

    def __init__(self, network: SimulatedNetwork, host: str) -> None:
        self.network = network
        self.host = host
        self.shares_memory = False
        """True if Unix sockets show the processes at their ends; see `SharedHostPools`."""
        self.connections: list[SimulatedConnection] = []
        self.over = False
        self.spinner = Spinner(lambda: 0.0) if network.polling is not None else None

    def beside(self) -> Network | None:
        """Return the same network for the loop beside the process's own, which does not spin."""
        return self if self.spinner is None else _NetworkBeside(self)

    async def connect(self, address: str) -> Connection:
        """Dial `address`, within the simulated network and with its faults. Raises OSError, and
        ValueError for an address that does not parse.
        """
        return await self.dial(address, self.spinner)

    async def dial(self, address: str, spinner: Spinner | None) -> Connection:
        """Dial likewise. `spinner`: that of the event loop which reads the connection."""
        if self.over:
            raise OSError(errno.ENETDOWN, "this process is no more")
        self.connections = [one for one in self.connections if not one.closed]
        return await self.network.connect(self, address, spinner)

    async def listen(
        self,
        address: str,
        handler: Callable[[Connection], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept connections until cancelled, and run `handler` in a task for each. Raises
        `ListenError` if the address is taken.
        """
        if address.startswith("unix:"):
            bound, key = address, f"{self.host}|{address}"
        else:
            port = int(address.rpartition(":")[2]) or next(self.network._ports)
            bound = key = f"tcp:{self.host}:{port}"
        before = self.network.listeners.get(key)
        if self.over or (before is not None and not before.owner.over):
            raise OSError(errno.EADDRINUSE, f"{bound} is in use")
        listener = self.network.listeners[key] = Listener(self)
        async with trio.open_nursery() as nursery:
            try:
                task_status.started(bound)
                while True:
                    while listener.incoming:
                        nursery.start_soon(handler, listener.incoming.popleft())
                    await listener.came.park()
            finally:
                # The machine's next process may listen there already.
                if self.network.listeners.get(key) is listener:
                    del self.network.listeners[key]

    async def own_host(self, toward: str, *, ipv4: bool = False) -> str:
        """Return the name of this machine, under which all others reach it."""
        return self.host

    def end(self, *, notified: bool) -> None:
        """End all connections of a process that has ended. `notified`: its host still runs, and
        notifies the peers.
        """
        self.over = True
        for connection in self.connections:
            connection.abandon(notified=notified)


class _NetworkBeside:
    """The network as the event loop beside a process's own sees it. Its connections do not spin."""

    spinner = None

    def __init__(self, own: HostNetwork) -> None:
        self.beside = own.beside
        self.listen = own.listen
        self.own_host = own.own_host
        self._own = own

    async def connect(self, address: str) -> Connection:
        """Dial `address`; see `HostNetwork.connect`."""
        return await self._own.dial(address, None)
