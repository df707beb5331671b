"""Actors that tell in which call context their code runs: importable in the processes of the
tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import trio

from actors import Actor, Ended, Handle, Reference, call_context, method
from runtime.aio import AsyncioActor


def told() -> str:
    """The current context, as it travels."""
    return call_context.get().text


class Teller(Actor):
    """Each of its methods returns, or notes, the context that its code sees."""

    def __init__(self) -> None:
        self.noted: list[str] = []
        self.constructed_in = told()
        self.started_in = ""
        self.failures = 0

    async def on_start(self) -> None:
        self.started_in = told()

    async def on_ended(self, notice: Ended) -> None:
        self.noted.append(f"{notice.name} ended: {told()}")

    @method
    async def tell(self) -> str:
        return told()

    @method
    async def tell_later(self) -> str:
        await trio.sleep(0.001)
        return told()

    @method
    def tell_in_thread(self) -> str:
        return told()

    @method(concurrent=True)
    async def tell_beside(self) -> str:
        return told()

    @method
    async def tell_of_start(self) -> tuple[str, str]:
        return self.constructed_in, self.started_in

    @method
    async def relay(self, path: list[Handle]) -> str:
        """The context as the last actor of a path of them sees it."""
        if not path:
            return told()
        answer: str = await path[0].relay(path[1:])
        return answer

    @method
    async def note(self) -> None:
        self.noted.append(told())

    @method
    async def notes(self) -> list[str]:
        return self.noted

    @method
    async def items(self) -> AsyncIterator[str]:
        yield told()
        await trio.sleep(0.001)
        yield told()

    @method
    async def leave_behind(self) -> None:
        """Sets a context and never takes it back."""
        call_context.set(call_context.get().with_values({"left": "behind"}))

    @method
    async def work_on(self) -> None:
        """Starts a task of the actor's own, which notes its context."""
        self.nursery.start_soon(self._work)

    @method(idempotent=True)
    async def fail_twice(self) -> str:
        self.failures += 1
        if self.failures % 3:
            raise LookupError("not yet")
        return told()

    @method
    async def observe(self, other: Handle) -> None:
        await self.watch(other)

    @method
    async def fetched(self, value: Reference[str]) -> str:
        return await value.fetch()

    @method
    async def spawn_one(self, isolation: str | None) -> tuple[str, str]:
        """The contexts in which an actor that this one spawns is constructed and started."""
        spawner = self.node.options(isolation="process") if isolation else self.node
        return await (await spawner.spawn(Teller)).tell_of_start()

    async def _work(self) -> None:
        await trio.sleep(0.001)
        self.noted.append(told())


class AsyncioTeller(AsyncioActor):
    """The same under asyncio."""

    @method
    async def tell(self) -> str:
        return told()

    @method
    async def ask(self, other: Teller) -> str:
        """The context as the other sees it."""
        await asyncio.sleep(0.001)
        return await other.tell()
