"""A network over real sockets that a test takes down."""

from __future__ import annotations

import trio

from runtime.links.transports import Connection, SocketNetwork


class BreakableNetwork(SocketNetwork):
    """While it is not `up`, connections are refused, and those to `refused` addresses at any time;
    `take_down` and `cut` also close those that stand.
    """

    def __init__(self) -> None:
        super().__init__()
        self.up = True
        self.refused: set[str] = set()
        self.connections: list[Connection] = []
        self._to: list[tuple[str, Connection]] = []

    async def connect(self, address: str) -> Connection:
        if not self.up or address in self.refused:
            await trio.sleep(0.02)
            raise ConnectionRefusedError("taken down by the test")
        connection = await super().connect(address)
        self.connections.append(connection)
        self._to.append((address, connection))
        return connection

    def cut(self, *addresses: str) -> None:
        """Refuse these addresses from now on, and close the connections that were made to them."""
        self.refused.update(addresses)
        for address, connection in self._to:
            if address in addresses:
                connection.close()

    def take_down(self) -> None:
        self.up = False
        for connection in self.connections:
            connection.close()
