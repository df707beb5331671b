"""A network over real sockets that a test takes down."""

from __future__ import annotations

import trio

from runtime.links.transports import Connection, SocketNetwork


class BreakableNetwork(SocketNetwork):
    """While it is not `up`, connections are refused; `take_down` also closes those that stand."""

    def __init__(self) -> None:
        super().__init__()
        self.up = True
        self.connections: list[Connection] = []

    async def connect(self, address: str) -> Connection:
        if not self.up:
            await trio.sleep(0.02)
            raise ConnectionRefusedError("taken down by the test")
        connection = await super().connect(address)
        self.connections.append(connection)
        return connection

    def take_down(self) -> None:
        self.up = False
        for connection in self.connections:
            connection.close()
