"""Actors that the cluster tests start in node processes."""

from __future__ import annotations

import os
import signal
import time

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
        """The process is killed after the save and before the answer, unless it is the
        test's own.
        """
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

    @method
    async def answer(self, size: int) -> str:
        return "a" * size


class Stubborn(Actor):
    """Does not let its node leave."""

    begun = False

    @method
    async def block_loop(self) -> None:
        time.sleep(600)  # noqa: ASYNC251  that is what it is for

    @method
    def block_thread(self) -> None:
        time.sleep(600)

    @method
    async def shield_itself(self) -> None:
        self.begun = True
        with trio.CancelScope(shield=True):
            await trio.sleep_forever()

    @method(concurrent=True)
    async def has_begun(self) -> bool:
        return self.begun

    @method
    async def ignore_signals(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


class Diligent(Actor):
    """Works beside itself; to be asked again does no harm."""

    @method(idempotent=True, concurrent=True)
    async def work(self, seconds: float) -> int:
        await trio.sleep(seconds)
        return os.getpid()

    @method(idempotent=True, concurrent=True)
    async def work_when_repeated(self, mark: str) -> None:
        """Never ends where it makes the file; ends at once where that is there."""
        if not await trio.Path(mark).exists():
            await trio.Path(mark).touch()
            await trio.sleep_forever()


class Caller(Actor):
    """Calls its counterparts on other nodes."""

    @method(concurrent=True)
    async def echo(self, value: int) -> int:
        return value

    @method(concurrent=True)
    async def call_all(self, names: list[str], seconds: float, times: int) -> list[str]:
        """Call each of them `times` times at once, when the host's clock shows `seconds`. Returns
        the errors.
        """
        others = [await self.node.lookup(name, Caller) for name in names]
        errors: list[str] = []

        async def call(other: Caller, number: int) -> None:
            try:
                if await other.echo(number) != number:
                    errors.append("the answer to another call")
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")

        # All processes of one host read the same monotonic clock: they begin within the same
        # millisecond.
        await trio.sleep(max(0.0, seconds - time.monotonic()))
        async with trio.open_nursery() as nursery:
            for number in range(times):
                for other in others:
                    nursery.start_soon(call, other, number)
        return errors


class Teller(Actor):
    """Answers with what it is told."""

    @method
    async def tell(self, number: int) -> int:
        return number
