"""A proxy before an etcd that loses requests before etcd has seen them, answers after etcd has
given them, and parts of either.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio


@attrs.define
class LossyProxy:
    """`lose_answers` and `lose_requests`: probabilities. `paths`: only requests of these are lost.

    `cut`: the probability that a piece of either direction ends, at any byte, with its connection.
    """

    target: int
    draw: random.Random
    port: int = 0
    lose_answers: float = 0.0
    lose_requests: float = 0.0
    cut: float = 0.0
    paths: tuple[bytes, ...] = (b"/v3/kv/txn",)
    lost_answers: int = 0
    lost_requests: int = 0
    cuts: int = 0

    async def serve(self, client: trio.SocketStream) -> None:
        """Carry one connection until either side ends it, or something is to be lost."""
        async with (
            client,
            await trio.open_tcp_stream("127.0.0.1", self.target) as server,
            trio.open_nursery() as nursery,
        ):
            doomed = trio.Event()

            async def answers() -> None:
                try:
                    async for data in server:
                        if doomed.is_set():
                            self.lost_answers += 1
                            break
                        if not await self._carried(data, client):
                            break
                except trio.BrokenResourceError:
                    pass
                nursery.cancel_scope.cancel()

            nursery.start_soon(answers)
            try:
                async for data in client:
                    if any(b"POST " + path in data for path in self.paths):
                        if self.draw.random() < self.lose_requests:
                            self.lost_requests += 1
                            break
                        if self.draw.random() < self.lose_answers:
                            doomed.set()
                    if not await self._carried(data, server):
                        break
            except trio.BrokenResourceError:
                pass
            nursery.cancel_scope.cancel()

    async def _carried(self, data: bytes | bytearray, sink: trio.SocketStream) -> bool:
        """Send it on, all or a part; False if that was the last of the connection."""
        cut = self.draw.random() < self.cut
        self.cuts += cut
        await sink.send_all(data[: self.draw.randrange(len(data))] if cut else data)
        return not cut


@asynccontextmanager
async def lossy_proxy(target: int, seed: int = 0) -> AsyncIterator[LossyProxy]:
    """A proxy on a free port before `target`."""
    proxy = LossyProxy(target, random.Random(seed))
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        proxy.port = listeners[0].socket.getsockname()[1]
        await nursery.start(trio.serve_listeners, proxy.serve, listeners)
        yield proxy
        nursery.cancel_scope.cancel()
