"""Actors whose methods run under asyncio: importable in the processes of clusters."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator

import trio

from actors import Actor, ExitReason, Reference, method
from actors.actor import Ended
from runtime.aio import AsyncioActor
from tests.pools.actors_used import NoSuchShapeError, Squares


class Plain(Actor):
    """An actor on trio."""

    def __init__(self) -> None:
        self.words: list[str] = []

    @method(concurrent=True)
    async def note(self, word: str) -> int:
        """Note a word."""
        self.words.append(word)
        return len(self.words)

    @method(concurrent=True)
    async def noted(self) -> list[str]:
        """All that was noted."""
        return self.words

    @method(concurrent=True)
    async def hang(self) -> None:
        """Wait until it is cancelled; note both."""
        self.words.append("hang begun")
        try:
            await trio.sleep_forever()
        finally:
            self.words.append("hang cancelled")

    @method(concurrent=True)
    async def seconds_left(self) -> float:
        """Until the deadline of the call."""
        return trio.current_effective_deadline() - trio.current_time()

    @method
    async def back(self, asker: Under) -> str:
        """Call back."""
        return await asker.where()


class Under(AsyncioActor):
    """Does what only asyncio can."""

    def __init__(self, notes: Plain | None = None) -> None:
        self.notes = notes
        self.started_in = ""
        self.value = 0

    async def on_start(self) -> None:
        self.started_in = await self._where()
        self.server = await asyncio.start_server(self._echo, "127.0.0.1", 0)
        # Closed however the actor ends: `on_stop` is not called when it crashes.
        self.nursery.start_soon(self._serve)

    async def _serve(self) -> None:
        async with self.server:
            await asyncio.Event().wait()

    async def on_stop(self, reason: ExitReason) -> None:
        if self.notes is not None:
            await self.at_asyncio(self.notes).note(f"stopped {reason.kind} {await self._where()}")

    async def on_ended(self, notice: Ended) -> None:
        if self.notes is not None:
            await self.at_asyncio(self.notes).note(f"ended {notice.name}")

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()

    async def _where(self) -> str:
        await asyncio.sleep(0)
        asyncio.get_running_loop()
        return threading.current_thread().name.partition(" of ")[0]

    @method
    async def where(self) -> str:
        """Which thread its coroutines run in."""
        return await self._where()

    @method
    async def hook_ran_in(self) -> str:
        """Which thread `on_start` ran in."""
        return self.started_in

    @method
    async def fetch(self, text: str) -> str:
        """Through asyncio's own streams."""
        host, port = self.server.sockets[0].getsockname()
        async with asyncio.timeout(30):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(text.encode() + b"\n")
            answer = await reader.readline()
            writer.close()
            await writer.wait_closed()
        return answer.decode().strip()

    @method
    def in_thread(self) -> str:
        """A plain method runs in a thread of the node."""
        return threading.current_thread().name.partition(" of ")[0]

    @method
    async def own(self, amount: int) -> int:
        """Call other methods of its own."""
        return await self.add(amount) + len(await self.in_thread())

    @method
    async def add(self, amount: int) -> int:
        """Count; with an await in the middle, which another call must not come into."""
        before = self.value
        await asyncio.sleep(0.001)
        self.value = before + amount
        return self.value

    @method
    async def fail(self, text: str) -> None:
        """Raise."""
        raise ValueError(text)

    @method(concurrent=True)
    async def hang(self, notes: Plain) -> None:
        """Wait until it is cancelled, and say so."""
        try:
            # Within the block: the caller may see the note, and cancel, before this has its answer.
            await notes.note("begun")
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.nursery.start_soon(notes.note, "cancelled")
            raise

    @method(concurrent=True)
    async def hang_elsewhere(self, notes: Plain) -> None:
        """Wait for a method of another actor."""
        await notes.hang()

    @method(timeout=30.0)
    async def seconds_left(self, notes: Plain) -> float:
        """As a method that it calls sees them."""
        return await notes.seconds_left()

    @method
    async def ask_back(self, notes: Plain) -> str:
        """Have another actor call this one: a cycle."""
        return await notes.back(self.handle)

    @method(concurrent=True)
    async def count(self, stop: int, notes: Plain) -> AsyncIterator[int]:
        """Yield the numbers below `stop`; with what needs to stay in one task of asyncio."""
        try:
            task = asyncio.current_task()
            for number in range(stop):
                await asyncio.sleep(0)
                assert asyncio.current_task() is task
                yield number
            if stop == 13:
                raise ValueError("thirteen")
        finally:
            self.nursery.start_soon(notes.note, "count closed")

    @method
    async def total(self, numbers: Reference[list[int]]) -> int:
        """Fetch, and put."""
        kept = await self.node.put(sum(await numbers.fetch()))
        return await kept.fetch()

    @method
    async def children(self) -> list[str]:
        """Everything else of the node and the context."""
        child = await self.node.options(name="under-child").spawn(Plain)
        watch = await self.watch(child)
        found = await self.node.lookup("under-child", Plain)
        await found.note("found")
        words = await found.noted()
        await self.node.stop(child)
        assert watch.name == "under-child"
        assert (await self.node.wait_ended(child)).name == "under-child"
        return [*words, self.name, self.node.members()[0].name]

    @method
    async def map_items(self, count: int) -> list[int]:
        """What each way to a pool gives: of items in memory, of an async source, one by one."""

        async def source() -> AsyncIterator[int]:
            for number in range(count):
                await asyncio.sleep(0)
                yield number

        async with await self.node.pool("squares", Squares, size=2) as pool:
            found = [result async for result in pool.map(Squares.square, range(count))]
            same = await self.node.lookup_pool("squares", Squares)
            again = [result async for result in same.map(Squares.square, source(), journal="job")]
            assert found == again
            assert await (await pool.submit(Squares.square, 3)).fetch() == 9
            counted = pool.map(Squares.square, range(9), keep=True)
            kept = [await one.fetch() async for one in counted]
            assert kept == [n * n for n in range(9)]
            assert (await counted.counts()).done == 9  # type: ignore[misc]
            assert [one.done async for one in counted.progress(0.01)] == [9]
            assert await (await pool.choose()).add(1, 2) == 3  # type: ignore[misc]
            with contextlib.suppress(NoSuchShapeError):
                async for _ in pool.map(Squares.picky, source()):
                    pass
            (journal,) = await self.node.pool_journals()
            assert await self.node.remove_pool_journal(journal.name)
        return found

    @method
    async def keep(self, value: int) -> int:
        """Save, and read it again."""
        await self.save(value)
        saved: int = await self.saved()
        return saved

    @method
    async def crash(self) -> None:
        """Have one of its own tasks raise."""
        self.nursery.start_soon(self._crash)

    async def _crash(self) -> None:
        await asyncio.sleep(0)
        raise RuntimeError("a task of its own")


class Ending(AsyncioActor):
    """Ends its own loop, or tries to."""

    def __init__(self, way: str = "") -> None:
        self.way = way
        self.hangs = 0

    async def on_start(self) -> None:
        if self.way:
            self._end(self.way)

    def _end(self, way: str) -> None:
        loop = asyncio.get_running_loop()
        if way == "stop":
            loop.stop()
        elif way == "callback":
            loop.call_soon(sys.exit, "from a callback")
        elif way == "task":
            self.kept = asyncio.create_task(self._exit())
        elif way == "cancel":
            for task in asyncio.all_tasks():
                task.cancel()

    async def _exit(self) -> None:
        raise KeyboardInterrupt("from a task")

    @method
    async def end(self, way: str) -> None:
        """End the loop, and wait."""
        self._end(way)
        await asyncio.sleep(3600)

    @method
    async def stream(self, way: str) -> AsyncIterator[int]:
        """End the loop after an item."""
        yield 1
        self._end(way)
        await asyncio.sleep(3600)

    @method
    async def interrupt(self) -> None:
        """Raise what ends loops."""
        raise KeyboardInterrupt("from a method")

    @method
    async def exit(self) -> None:
        """Ask for the end of the actor."""
        sys.exit("from a method")

    @method(concurrent=True)
    async def hanging(self) -> int:
        """How many calls wait."""
        await asyncio.sleep(0)
        return self.hangs

    @method(concurrent=True)
    async def hang(self) -> None:
        """Wait."""
        self.hangs += 1
        await asyncio.sleep(3600)


class Further(Under):
    """Extends a hook and a method."""

    async def on_start(self) -> None:
        await super().on_start()
        self.started_in += " further"

    @method
    async def where(self) -> str:
        """Which thread."""
        return await self._where() + " further"
