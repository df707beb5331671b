"""What runs while a secret is being changed."""

from __future__ import annotations

from typing import cast

from actors import Actor, method
from runtime.node import Node, internals_of


class Echo(Actor):
    @method
    async def echo(self, value: int) -> int:
        return value

    @method
    async def cut(self) -> None:
        """Cut the connections of its node, those from isolated actors elsewhere included."""
        node = cast("Node", self.node)
        for link in tuple(internals_of(node).links.values()):
            link.drop_connection()


class Relay(Actor):
    """Calls an actor of another node, from where it runs itself."""

    @method
    async def ask(self, name: str, value: int) -> int:
        echo = await self.node.lookup(name, Echo)
        return await echo.echo(value)
