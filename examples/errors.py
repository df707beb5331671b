"""The actors and filters of the examples on the pages about errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import attrs
import trio

from actors import Actor, Call, Filter, Ignore, Next, message, method
from runtime import Node
from runtime.rendezvous.parameters import RendezvousParameters
from runtime.rendezvous.registry import OpenableHandler, create_handler


@message
@attrs.frozen
class Order:
    item: str


@message
@attrs.define(on_setattr=[])
class Basket:
    items: int = attrs.field(validator=attrs.validators.gt(0))


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
    async def empty(self) -> Basket:
        basket = Basket(1)
        basket.items = 0
        return basket

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


async def ask_to_leave(node: Node) -> None:
    node.asked_to_leave.set()


class SlowStart(Actor):
    async def on_start(self) -> None:
        await trio.sleep(60)


class Account(Actor):
    async def on_start(self) -> None:
        self.balance = await self.saved() or 0

    @method
    async def read_saved(self) -> object:
        return await self.saved()

    @method
    async def pay_in(self, amount: int) -> int:
        await self.save(self.balance + amount)
        self.balance += amount
        return self.balance

    @method
    async def pay_in_and_crash(self, amount: int) -> NoReturn:
        await self.pay_in(amount)
        await crash(self)


class Fragile(Actor):
    @method(idempotent=True)
    async def crash_at_13(self, item: int) -> int:
        if item == 13:
            await crash(self)
        return item


async def crash(actor: Actor) -> NoReturn:
    """A task of the actor's own raises, which ends the actor in the middle of its method."""

    async def fail() -> None:
        raise RuntimeError("a bug")

    actor.nursery.start_soon(fail)
    await trio.sleep_forever()


def agent(directory: Path, **options: Any) -> OpenableHandler:
    """An agent of the job "digits", whose rendezvous is in a directory."""
    chosen = {"min_nodes": 1, "max_nodes": 1, "last_call_timeout": 0, **options}
    return create_handler(RendezvousParameters("file", str(directory), "digits", **chosen))


class RefuseAll(Filter):
    sides = ("client",)

    async def call(self, next: Next, call: Call) -> object:
        raise PermissionError("the shop is closed")


class FailAfter(Filter):
    sides = ("client",)

    async def call(self, next: Next, call: Call) -> object:
        await next(call)
        raise KeyError("currency")
