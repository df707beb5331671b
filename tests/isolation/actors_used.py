"""Actors that are given processes of their own, and ways to do them harm."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import trio

from actors import Actor, Supervisor, message, method, register_converter
from actors.supervision import ExitReason


@message
class Refusal(Exception):  # noqa: N818  a name that users might give
    """An error of the user's own, with something in it."""

    def __init__(self, reason: str, amount: int) -> None:
        super().__init__(reason, amount)
        self.amount = amount


class Token:
    """A class of another library, which `register_converter` below lets be sent."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Token) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


register_converter(Token, lambda token: token.text, Token)


class Unsent(Exception):  # noqa: N818
    """An error that is no message."""


class Counter(Actor):
    """Counts, and says where."""

    def __init__(self, value: int = 0) -> None:
        self.value = value

    @method
    async def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    @method(concurrent=True)
    async def pid(self) -> int:
        return os.getpid()

    @method
    def pid_of_thread(self) -> tuple[int, bool]:
        return os.getpid(), threading.current_thread() is threading.main_thread()

    @method
    async def echo(self, value: Any) -> Any:
        return value

    @method
    async def count_to(self, end: int) -> AsyncIterator[int]:
        for number in range(end):
            yield number
        if end == 13:
            raise Refusal("thirteen", end)

    @method
    async def refuse(self, kind: str) -> None:
        if kind == "message":
            raise Refusal("no", 3)
        if kind == "memory":
            raise MemoryError("too little")
        if kind == "unsent":
            raise Unsent("secret")
        raise KeyError("missing")

    @method
    async def unsendable(self) -> Any:
        return object()


class Starter(Actor):
    """Starts a subprocess in a session of its own."""

    @method
    def start(self) -> tuple[int, int]:
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        return os.getpid(), subprocess.Popen(command, start_new_session=True).pid


class Waiter(Actor):
    """Waits, and leaves marks in a directory."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)

    async def on_stop(self, reason: ExitReason) -> None:
        (self.directory / "stopped").write_text(f"{reason.kind}: {reason.text}")

    @method
    async def wait(self, mark: str) -> None:
        (self.directory / mark).touch()
        try:
            await trio.sleep_forever()
        finally:
            (self.directory / f"{mark}-ended").touch()

    @method(concurrent=True)
    async def wait_beside(self, mark: str) -> None:
        await self.wait(mark)

    @method
    async def items(self, mark: str) -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            (self.directory / mark).touch()


def close_link() -> None:
    """Close the descriptor of the connection to the node, as a double close in native code does."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        try:
            found = socket.socket(fileno=descriptor)
        except OSError:
            continue
        try:
            # Only the node listens at an address with a name.
            is_link = found.family == socket.AF_UNIX and bool(found.getpeername())
        except OSError:
            is_link = False
        finally:
            found.detach()
        if is_link:
            os.close(descriptor)


class Victim(Actor):
    """Does itself harm, in every way there is."""

    @method(concurrent=True)
    async def pid(self) -> int:
        return os.getpid()

    @method
    async def suffer(self, how: str) -> None:
        if how == "segfault":
            ctypes.string_at(0)
        elif how == "exit":
            os._exit(3)
        elif how == "exit 0":
            os._exit(0)
        elif how == "sys.exit 0":
            raise SystemExit(0)
        elif how == "sys.exit False":
            raise SystemExit(False)
        elif how == "sys.exit":
            raise SystemExit(4)
        elif how == "block":
            time.sleep(1000)  # noqa: ASYNC251  that is the point
        elif how == "close the link":
            close_link()
        elif how == "close the link and block":
            close_link()
            time.sleep(1000)  # noqa: ASYNC251  that is the point
        elif how == "SIGSTOP":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif how == "task":
            self.nursery.start_soon(self._fail)
            await trio.sleep_forever()
        else:
            os.kill(os.getpid(), signal.Signals[how])
            await trio.sleep_forever()

    @method
    def allocate(self, size: int) -> int:
        return len(bytearray(size))

    @method
    async def block_for(self, seconds: float) -> str:
        time.sleep(seconds)  # noqa: ASYNC251  that is the point
        return "back"

    async def _fail(self) -> None:
        raise ValueError("a task of its own")


class Guest(Actor):
    """Uses all that its node offers."""

    def __init__(self) -> None:
        self.name_at_first = self.name

    async def on_start(self) -> None:
        self.found = await self.saved()

    @method
    async def itself(self) -> tuple[str, str, int, int, str, int]:
        return (
            self.name,
            self.node.name,
            self.node.incarnation,
            self.epoch,
            self.handle.address.node,
            os.getpid(),
        )

    @method
    async def remember(self, state: Any) -> None:
        await self.save(state)

    @method
    async def remembered(self) -> Any:
        return self.found

    @method
    async def raise_by(self, counter: Any, amount: int) -> int:
        result: int = await counter.add(amount)
        return result

    @method
    async def read_all(self, counter: Any, end: int) -> list[int]:
        return [number async for number in counter.count_to(end)]

    @method
    async def raise_by_name(self, name: str, amount: int) -> int:
        return await (await self.node.lookup(name, Counter)).add(amount)

    @method
    async def found_another(self, name: str, isolated: bool) -> Counter:
        options = self.node.options(name=name, isolation="process" if isolated else "none")
        return await options.get_or_spawn(Counter, 10)

    @method
    async def spawn_twice(self, name: str) -> str:
        await self.node.options(name=name).spawn(Counter)
        try:
            await self.node.options(name=name).spawn(Counter)
        except Exception as error:
            return type(error).__name__
        return "both"

    @method
    async def spawn_hastily(self, names: list[str]) -> list[str]:
        """Spawn counters, and cancel each spawn when its answer is there and not yet read. Returns
        those of which the answer was read already: where it is polled for, it may come so early.
        """
        started: list[str] = []

        async def spawn(name: str) -> None:
            await self.node.options(name=name).spawn(Counter)
            started.append(name)

        for name in names:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(spawn, name)
                # The request is sent within these passes of the loop.
                for _ in range(10):
                    await trio.lowlevel.checkpoint()
                # This blocks the loop, and the node answers meanwhile.
                time.sleep(0.1)  # noqa: ASYNC251
                nursery.cancel_scope.cancel()
        return started

    @method
    async def end(self, other: Any) -> None:
        await self.node.stop(other, reason="told by a guest")

    @method
    async def finish(self) -> str:
        await self.node.stop(self.handle, reason="finished")
        return "the last word"

    @method
    async def members(self) -> list[str]:
        return [member.name for member in self.node.members()]

    @method
    async def ask_itself(self) -> Any:
        return await self.handle.remembered()

    @method
    async def fail_later(self) -> None:
        self.nursery.start_soon(self._fail)

    async def _fail(self) -> None:
        raise Refusal("later", 1)


class FailsToStart(Actor):
    """Does not come to be."""

    def __init__(self, how: str, mark: str = "") -> None:
        self.how = how
        self.mark = mark
        if how == "constructor":
            raise Refusal("in the constructor", 1)
        if how == "exit":
            os._exit(5)

    async def on_start(self) -> None:
        if self.how == "on_start":
            raise KeyError("in on_start")
        if self.how == "hang":
            Path(self.mark).write_text(str(os.getpid()))  # noqa: ASYNC240
            time.sleep(1000)  # noqa: ASYNC251  that is the point


class Overseer(Supervisor):
    """A supervisor, which cannot be isolated."""


class Quitter(Actor):
    """Ends its process by a stream."""

    @method
    async def quit(self) -> AsyncIterator[int]:
        raise SystemExit(3)
        yield 1

    @method
    async def ping(self) -> str:
        return "pong"
