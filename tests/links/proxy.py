"""A proxy that spoils connections: cuts them at any byte, stalls, delays, throttles, half-closes
and refuses them, all drawn from one seed.

It needs no rights and no tools, only sockets. `ProxyNetwork` leads all connections of the nodes
that use it through the proxy, both those that they dial and those that others dial to them.
"""

from __future__ import annotations

import random
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import attrs
import trio

from runtime.links.transports import Connection, SocketNetwork, split_address, split_host_port

CHUNK = 64 * 1024
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER on, for no time: closing then sends a reset instead of what is left."""


@attrs.define
class Way:
    """One direction of a connection, and what is to happen to it. Times are trio's."""

    passes: float = float("inf")
    """Bytes until the connection is cut."""
    cut_by: str = "reset"
    still_until: float = 0.0
    slow_until: float = 0.0
    delay: float = 0.0
    """Seconds that each chunk waits at most, until `slow_until`."""
    rate: float = float("inf")
    """Bytes a second, until `slow_until`."""
    closes: bool = False
    """True if its end is to be passed on now, although more could come."""


@attrs.define(eq=False)
class Passage:
    """A connection through the proxy."""

    near: trio.SocketStream
    far: trio.SocketStream
    ways: tuple[Way, Way] = attrs.field(factory=lambda: (Way(), Way()))
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    def cut(self, how: str) -> None:
        """End it at once, in both directions."""
        for stream in (self.near, self.far):
            if how == "reset":
                try:
                    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                except OSError:
                    pass
        self.scope.cancel()


@attrs.frozen
class Weather:
    """How bad it is. `pause`: mean seconds between two faults; `kinds`: the weight of each;
    `longest`: seconds that one lasts at most.
    """

    pause: float = 0.01
    longest: float = 0.5
    kinds: dict[str, int] = attrs.field(
        factory=lambda: {
            "reset": 12,
            "end": 8,
            "stall": 4,
            "stall one way": 3,
            "delay": 3,
            "throttle": 2,
            "half-close": 2,
            "refuse": 1,
        }
    )


class Proxy:
    """See the module; made by `open_proxy`. `counts` tells what has happened, by kind."""

    def __init__(self, draw: random.Random, nursery: trio.Nursery) -> None:
        self.counts: Counter[str] = Counter()
        self._draw = draw
        self._nursery = nursery
        self._passages: set[Passage] = set()
        self._doors: dict[tuple[str, int], trio.Event | str] = {}
        self._refuses_until = 0.0
        self._healed = True
        self._raging = trio.CancelScope()

    async def door(self, address: str) -> str:
        """An address of the proxy behind which connections lead to `address`; for a door,
        itself.
        """
        where = split_host_port(split_address(address)[1])
        if f"tcp:{where[0]}:{where[1]}" in self._doors.values():
            return address
        opening = self._doors.get(where)
        if opening is None:
            opened = self._doors[where] = trio.Event()
            self._doors[where] = await self._nursery.start(self.listen, where)
            opened.set()
        elif isinstance(opening, trio.Event):
            await opening.wait()
        found = self._doors[where]
        assert isinstance(found, str)
        return found

    def rage(self, weather: Weather) -> None:
        """Let faults happen, until `heal`."""
        self._healed = False
        self._raging = trio.CancelScope()
        self._nursery.start_soon(self._rage, weather, self._raging)

    def heal(self) -> None:
        """No more faults, and an end to those going on. What was cut stays cut."""
        self._healed = True
        self._raging.cancel()
        self._refuses_until = 0.0
        for passage in self._passages:
            for way in passage.ways:
                way.passes = way.rate = float("inf")
                way.still_until = way.slow_until = way.delay = 0.0

    def strike(self, kind: str, longest: float = 0.5) -> None:
        """Let one fault of this kind happen to a connection drawn, if there is one."""
        draw = self._draw
        now = trio.current_time()
        seconds = longest * draw.random() ** 3
        if kind == "refuse":
            self._refuses_until = now + seconds
            self.counts[kind] += 1
            return
        if not self._passages:
            return
        passage = draw.choice(sorted(self._passages, key=id))
        way = draw.choice(passage.ways)
        if kind in ("reset", "end"):
            way.cut_by = kind
            way.passes = min(way.passes, int(2 ** draw.uniform(0, 16)))
            return
        self.counts[kind] += 1
        if kind == "half-close":
            way.closes = True
        elif kind == "stall one way":
            way.still_until = now + seconds
        elif kind == "stall":
            for each in passage.ways:
                each.still_until = now + seconds
        elif kind == "delay":
            way.slow_until, way.delay = now + seconds, 0.02 * draw.random()
        else:
            way.slow_until, way.rate = now + seconds, 10 ** draw.uniform(4, 6.5)

    async def _rage(self, weather: Weather, scope: trio.CancelScope) -> None:
        kinds, weights = list(weather.kinds), list(weather.kinds.values())
        with scope:
            while True:
                await trio.sleep(self._draw.expovariate(1 / weather.pause))
                self.strike(self._draw.choices(kinds, weights)[0], weather.longest)

    async def listen(self, where: tuple[str, int], task_status: trio.TaskStatus[str]) -> None:
        """Open a door to `where`, and lead each connection through it."""

        async def handle(near: trio.SocketStream) -> None:
            async with near:
                if trio.current_time() < self._refuses_until:
                    self.counts["refused"] += 1
                    return
                try:
                    far = await trio.open_tcp_stream(*where)
                except OSError:
                    return
                async with far:
                    await self._carry(Passage(near, far))

        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        host, port = listeners[0].socket.getsockname()
        task_status.started(f"tcp:{host}:{port}")
        await trio.serve_listeners(handle, listeners)

    async def _carry(self, passage: Passage) -> None:
        self.counts["connections"] += 1
        self._passages.add(passage)
        try:
            with passage.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(
                        self._pass_on, passage, passage.near, passage.far, passage.ways[0]
                    )
                    nursery.start_soon(
                        self._pass_on, passage, passage.far, passage.near, passage.ways[1]
                    )
        finally:
            self._passages.discard(passage)

    async def _pass_on(
        self, passage: Passage, source: trio.SocketStream, sink: trio.SocketStream, way: Way
    ) -> None:
        try:
            while data := await source.receive_some(CHUNK):
                # `heal` may end it
                while (still := way.still_until - trio.current_time()) > 0:  # noqa: ASYNC110
                    await trio.sleep(min(still, 0.02))
                if way.slow_until > trio.current_time():
                    if way.delay:
                        await trio.sleep(way.delay * self._draw.random())
                    if way.rate < float("inf"):
                        await self._drip(sink, data, way)
                        continue
                if way.closes:
                    break
                if len(data) >= way.passes:
                    await sink.send_all(data[: int(way.passes)])
                    self.counts[way.cut_by] += 1
                    passage.cut(way.cut_by)
                    return
                way.passes -= len(data)
                await sink.send_all(data)
            await sink.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # One of the two ends has gone, and so does the other.
            passage.cut("reset")

    async def _drip(self, sink: trio.SocketStream, data: bytes, way: Way) -> None:
        """Pass `data` on as slowly as asked for, while that is asked for."""
        while data:
            slow = trio.current_time() < way.slow_until
            piece = data[: max(1, int(way.rate * 0.01))] if slow else data
            data = data[len(piece) :]
            await sink.send_all(piece)
            if slow:
                await trio.sleep(0.01)


class ProxyNetwork(SocketNetwork):
    """Sockets that lead through a proxy: those that are dialled, and those that listen for others.
    There are no Unix sockets here.
    """

    def __init__(self, proxy: Proxy) -> None:
        super().__init__()
        self.proxy = proxy

    async def connect(self, address: str) -> Connection:
        """See `Network.connect`."""
        if split_address(address)[0] == "unix":
            raise ConnectionRefusedError("this network has no Unix sockets")
        return await super().connect(await self.proxy.door(address))

    async def listen(
        self,
        address: str,
        handler: Callable[[Connection], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """See `Network.listen`; others are told the address of the door."""
        if split_address(address)[0] == "unix":
            task_status.started(address)
            await trio.sleep_forever()
        async with trio.open_nursery() as nursery:
            bound: str = await nursery.start(super().listen, address, handler)
            task_status.started(await self.proxy.door(bound))


@asynccontextmanager
async def open_proxy(seed: int) -> AsyncIterator[Proxy]:
    """A proxy whose faults are drawn from `seed`; none happen before `rage`."""
    async with trio.open_nursery() as nursery:
        yield Proxy(random.Random(seed), nursery)
        nursery.cancel_scope.cancel()
