"""The actors of the examples on the page about errors."""

from __future__ import annotations

import trio

from actors import Actor, Ignore, method


class Counter(Actor):
    def __init__(self, start: int = 0) -> None:
        self.value = 0 + start

    @method
    async def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    @method
    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    @method
    async def fail(self, text: str) -> None:
        raise ValueError(text)

    @method
    async def unsendable(self) -> object:
        return object()

    @method
    async def large(self) -> bytes:
        return bytes(1_000_000)


class Caller(Actor):
    @method
    async def call_itself(self) -> None:
        await (await self.node.lookup(self.name, Caller)).call_itself()

    @method
    async def call(self, other: Caller, back: Caller) -> None:
        await other.call(back, other)


class Unneeded(Actor):
    async def on_start(self) -> None:
        raise Ignore("there is nothing to do")
