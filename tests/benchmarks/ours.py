"""The actors that are measured."""

from __future__ import annotations

from actors import Actor, method


class Bench(Actor):
    """Does as little as possible."""

    @method
    async def read(self) -> int:
        return 16

    @method
    async def echo(self, data: bytes) -> bytes:
        return data
