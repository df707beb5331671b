"""Actors that the cluster tests start in node processes."""

from __future__ import annotations

import os
import signal

import trio

from actors import Actor, method


class Ledger(Actor):
    """Counts, and keeps the count over restarts."""

    def __init__(self) -> None:
        self.count = 0

    async def on_start(self) -> None:
        self.count = await self.saved() or 0

    @method
    async def add(self, amount: int) -> int:
        await self.save(self.count + amount)
        self.count += amount
        return self.count

    @method
    async def add_and_be_killed(self, amount: int) -> str:
        """The process is killed after the save and before the answer, unless it is the test's own."""
        count = self.count + amount
        answer = f"{count}, saved by {self.node.name} at {self.epoch}"
        await self.save(count, answer=answer)
        self.count = count
        if self.node.name != "driver":
            os.kill(os.getpid(), signal.SIGKILL)
            await trio.sleep_forever()
        return answer

    @method(idempotent=True)
    async def read(self) -> int:
        return self.count

    @method(idempotent=True, concurrent=True)
    async def where(self) -> tuple[str, int]:
        return self.node.name, self.epoch

    @method
    async def die_in_the_middle(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
        await trio.sleep_forever()


class Sleeper(Actor):
    """Waits for as long as it is told."""

    @method(concurrent=True)
    async def sleep(self, seconds: float) -> str:
        await trio.sleep(seconds)
        return self.node.name
