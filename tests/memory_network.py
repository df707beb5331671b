"""A network within one event loop: no sockets, so that a virtual clock may jump, and every run is
decided by its seeds.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import trio

from runtime.links.transports import Connection
from runtime.wire.handshake import Channel

CAPACITY = 1024 * 1024


class Pipe:
    """One direction of a connection."""

    def __init__(self, latency: Callable[[], float]) -> None:
        self.latency = latency
        self.content: deque[tuple[float, bytes]] = deque()
        self.size = 0
        self.latest = 0.0
        self.broken = False
        self.changed = trio.lowlevel.ParkingLot()

    def put(self, data: bytes) -> None:
        """`data`, or b"" for the end, arrives after the latency drawn for it, and in order."""
        self.latest = max(self.latest, trio.current_time() + self.latency())
        self.content.append((self.latest, data))
        self.size += len(data)
        self.changed.unpark_all()


class MemoryConnection:
    """A `Connection` over two pipes."""

    channel = Channel()

    def __init__(self, sends: Pipe, receives: Pipe) -> None:
        self.sends = sends
        self.receives = receives
        self.closed = False

    def send_some(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        """See `Connection.send_some`."""
        if self.closed or self.sends.broken:
            raise ConnectionResetError("the other end has gone")
        data = b"".join(buffers)[: max(0, CAPACITY - self.sends.size)]
        if data:
            self.sends.put(data)
        return len(data)

    async def wait_writable(self) -> None:
        """See `Connection.wait_writable`."""
        await trio.lowlevel.checkpoint()
        while self.sends.size >= CAPACITY and not (self.closed or self.sends.broken):
            await self.sends.changed.park()

    async def receive(self) -> bytes:
        """See `Connection.receive`."""
        await trio.lowlevel.checkpoint()
        pipe = self.receives
        while True:
            if self.closed:
                raise trio.ClosedResourceError("closed while it was being read")
            if pipe.broken:
                raise ConnectionResetError("reset")
            due = pipe.content[0][0] if pipe.content else float("inf")
            if due <= trio.current_time():
                break
            with trio.move_on_at(due):
                await pipe.changed.park()
        if not pipe.content[0][1]:
            return b""
        data = pipe.content.popleft()[1]
        pipe.size -= len(data)
        pipe.changed.unpark_all()
        return data

    async def receive_into(self, buffer: memoryview) -> int:
        """See `Connection.receive_into`."""
        data = await self.receive()
        if len(data) > len(buffer):
            self.receives.content.appendleft((0.0, data[len(buffer) :]))
            self.receives.size += len(data) - len(buffer)
            data = data[: len(buffer)]
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """See `Connection.close`."""
        if not self.closed:
            self.closed = True
            self.sends.put(b"")
            self.receives.broken = True
            self.receives.changed.unpark_all()

    def reset(self) -> None:
        """Break it at once, at both ends; what was on its way is lost."""
        for pipe in (self.sends, self.receives):
            pipe.broken = True
            pipe.changed.unpark_all()


class MemoryNetwork:
    """Connects nodes of one event loop. `latency` draws the seconds that each piece of data, and
    each dial, is under way.
    """

    def __init__(self, latency: Callable[[], float] = lambda: 0.0) -> None:
        self.latency = latency
        self.connections: list[MemoryConnection] = []
        self._listeners: dict[
            str, tuple[trio.Nursery, Callable[[Connection], Awaitable[None]]]
        ] = {}
        self._ports = itertools.count(1)

    def beside(self) -> None:
        """See `Network.beside`: one event loop."""

    async def connect(self, address: str) -> Connection:
        """See `Network.connect`."""
        await trio.sleep(self.latency())
        found = self._listeners.get(
            address if address.startswith(("tcp:", "unix:")) else f"tcp:{address}"
        )
        if found is None:
            raise ConnectionRefusedError(f"nobody listens at {address}")
        there, back = Pipe(self.latency), Pipe(self.latency)
        near, far = MemoryConnection(there, back), MemoryConnection(back, there)
        self.connections = [one for one in self.connections if not (one.closed or one.sends.broken)]
        self.connections.append(near)
        nursery, handler = found
        nursery.start_soon(handler, far)
        return near

    async def listen(
        self,
        address: str,
        handler: Callable[[Connection], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """See `Network.listen`."""
        bound = address if address.startswith("unix:") else f"tcp:127.0.0.1:{next(self._ports)}"
        async with trio.open_nursery() as nursery:
            self._listeners[bound] = nursery, handler
            try:
                task_status.started(bound)
                await trio.sleep_forever()
            finally:
                del self._listeners[bound]

    async def own_host(self, toward: str, *, ipv4: bool = False) -> str:
        """See `Network.own_host`."""
        return "127.0.0.1"

    def reset_all(self) -> None:
        """Break every connection."""
        for connection in self.connections:
            connection.reset()
