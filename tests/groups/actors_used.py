"""Actors that are in groups."""

from __future__ import annotations

import os
import signal

import trio

from actors import Actor, method


class Reader(Actor):
    """Joins when told to, and remembers what it hears."""

    def __init__(self, *groups: str) -> None:
        self.groups = groups
        self.heard: list[str] = []
        self.more = trio.Event()

    async def on_start(self) -> None:
        for group in self.groups:
            await self.join(group)

    @method
    async def enter(self, group: str, times: int = 1) -> None:
        for _ in range(times):
            await self.join(group)

    @method
    async def exit(self, group: str) -> bool:
        return await self.leave(group)

    @method
    async def on_news(self, text: str) -> None:
        self.heard.append(text)
        self.more.set()
        self.more = trio.Event()

    @method(concurrent=True)
    async def wait_heard(self, count: int) -> list[str]:
        while len(self.heard) < count:
            await self.more.wait()
        return self.heard

    @method(concurrent=True)
    async def where(self) -> str:
        if self.heard:
            raise ValueError(self.heard[0])
        return self.node.name

    @method(concurrent=True)
    async def hang(self) -> None:
        await trio.sleep_forever()

    @method
    async def kill_process(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @method
    async def sees(self, group: str) -> list[str]:
        return [reader.name for reader in (await self.node.group(group, Reader).ready()).members()]
