"""Actors that watch, are watched, and are linked."""

from __future__ import annotations

import os
import signal

import trio

from actors import Actor, Ended, method
from actors.supervision import ExitReason


class Watched(Actor):
    """Ends in every way that there is."""

    @method
    async def crash(self) -> None:
        self.nursery.start_soon(self.explode)
        await trio.sleep_forever()

    async def explode(self) -> None:
        raise RuntimeError("boom")

    @method
    async def end(self) -> None:
        await self.node.stop(self.handle)

    @method(concurrent=True)
    async def where(self) -> tuple[str, int]:
        return self.node.name, self.epoch

    @method
    async def kill_process(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Watcher(Actor):
    """Watches and remembers what it is told."""

    def __init__(self) -> None:
        self.notices: list[Ended] = []
        self.more = trio.Event()
        self.watches: dict[int, object] = {}
        self.order: list[str] = []
        self.busy = False

    async def on_ended(self, notice: Ended) -> None:
        assert not self.busy
        self.order.append(f"ended {notice.watch}")
        self.notices.append(notice)
        self.more.set()
        self.more = trio.Event()

    @method
    async def look_at(self, handle: Watched) -> int:
        watch = await self.watch(handle)
        self.watches[watch.number] = watch
        return watch.number

    @method
    async def look_at_all(self, handles: list[Watched]) -> list[int]:
        numbers = []
        for handle in handles:
            numbers.append((await self.watch(handle)).number)
        return numbers

    @method
    async def look_away(self, number: int) -> None:
        await self.unwatch(self.watches[number])  # type: ignore[arg-type]

    @method
    async def stop_and_look_away(self, handle: Watched, number: int) -> int:
        """By the time that this ends its turn, the notice waits behind it."""
        self.busy = True
        await self.node.stop(handle)
        await trio.sleep(0.2)
        seen = len(self.notices)
        self.watches[number].cancel()  # type: ignore[attr-defined]
        self.busy = False
        return seen

    @method
    async def stop_in_its_turn(self, handle: Watched) -> None:
        self.busy = True
        await self.note.send("before")
        await self.node.stop(handle)
        await trio.sleep(0.1)
        self.order.append("method over")
        self.busy = False

    @method
    async def note(self, text: str) -> None:
        self.order.append(text)

    @method(concurrent=True)
    async def told(self) -> list[Ended]:
        return self.notices

    @method(concurrent=True)
    async def told_in_order(self) -> list[str]:
        return self.order

    @method(concurrent=True)
    async def wait_told(self, count: int) -> list[Ended]:
        while len(self.notices) < count:
            await self.more.wait()
        return self.notices


class Partner(Watcher):
    """May be linked."""

    async def on_stop(self, reason: ExitReason) -> None:
        self.order.append(str(reason))

    @method
    async def tie(self, handle: Actor) -> None:
        await self.link(handle)

    @method
    async def untie(self, handle: Actor) -> None:
        await self.unlink(handle)

    @method
    async def crash(self) -> None:
        self.nursery.start_soon(self.explode)
        await trio.sleep_forever()

    async def explode(self) -> None:
        raise RuntimeError("boom")

    @method(concurrent=True, idempotent=True)
    async def ping(self) -> str:
        return self.node.name


class Survivor(Partner):
    """Is told of the ends of those it is linked to."""

    handles_exits = True


class Fragile(Watcher):
    """Does not bear to be told."""

    async def on_ended(self, notice: Ended) -> None:
        raise ValueError("cannot bear it")


class LinksAtStart(Actor):
    """Is linked before it has started."""

    def __init__(self, other: Actor) -> None:
        self.other = other

    async def on_start(self) -> None:
        await self.link(self.other)
        await trio.sleep(0.2)
