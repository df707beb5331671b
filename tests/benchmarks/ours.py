"""The actors that are measured."""

from __future__ import annotations

import gc
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from actors import Actor, Reference, method
from runtime import LocalCluster, open_local_cluster
from tests.benchmarks.measuring import pipelined, spinning
from tests.benchmarks.memory import resident


class Bench(Actor):
    """Does as little as possible."""

    @method
    async def read(self) -> int:
        return 16

    @method(idempotent=True)
    async def read_again(self) -> int:
        return 16

    @method
    async def echo(self, data: bytes) -> bytes:
        return data

    @method
    async def fail(self, number: int) -> int:
        raise ValueError("there is no such number", number)

    @method
    async def echo_array(self, data: Any) -> Any:
        return data


class Idle(Actor):
    """Is there, and waits."""

    @method
    async def read(self) -> int:
        return 16


class Laborer(Actor):
    """Takes its time over each call."""

    @method
    async def compute(self, seconds: float) -> None:
        """Keep the core, and with it the whole node, busy."""
        until = trio.current_time() + seconds
        while trio.current_time() < until:
            pass

    @method
    async def wait(self, seconds: float) -> None:
        """Wait, as for another service."""
        await trio.sleep(seconds)


class Crowd(Actor):
    """Starts actors on its own node, and weighs the node."""

    @method
    async def rate(self, count: int) -> float:
        """Start so many; how many in a second."""
        began = trio.current_time()
        for _ in range(count):
            await self.node.spawn(Idle)
        return count / (trio.current_time() - began)

    @method
    async def grow(self, count: int) -> list[Idle]:
        """Start so many, and keep no handles of them here."""
        return [await self.node.spawn(Idle) for _ in range(count)]

    @method
    async def weight(self) -> int:
        """Bytes of memory that the node's process occupies."""
        gc.collect()
        return resident()


class Numbered(Actor):
    """Has a constructor of its own, which runs in a thread."""

    def __init__(self, number: int) -> None:
        self.number = number


class Visitor(Actor):
    """Calls others from a node of its own."""

    def __init__(self) -> None:
        self.known: list[Idle] = []

    @method
    async def meet(self, some: list[Idle]) -> None:
        """Remember these handles."""
        self.known.extend(some)

    @method
    async def visit(self, seconds: float) -> float:
        """Calls per second to one of them or another, many at once."""
        draw = random.Random(1)
        return await pipelined(lambda: draw.choice(self.known).read(), seconds)


class Owner(Actor):
    """Has values, and hands out references to them."""

    @method
    async def one(self) -> int:
        """A value."""
        return 16

    @method
    async def many(self, count: int) -> list[Reference[int]]:
        """References to so many values."""
        return [await self.node.put(16) for _ in range(count)]

    @method
    async def weight(self) -> int:
        """Bytes of memory that the node's process occupies."""
        gc.collect()
        return resident()


class Holder(Actor):
    """Holds references, and reads values."""

    def __init__(self) -> None:
        self.held: list[Reference[int]] = []

    @method
    async def hold(self, references: list[Reference[int]]) -> None:
        """Hold these."""
        self.held.extend(references)

    @method
    async def touch(self, array: Sequence[float]) -> float:
        """Read one number of each page."""
        pages: Any = array
        return float(pages[::512].sum())

    @method
    async def weight(self) -> int:
        """Bytes of memory that the node's process occupies."""
        gc.collect()
        return resident()


@asynccontextmanager
async def open_bench(spin: str = "auto") -> AsyncIterator[tuple[Bench, LocalCluster]]:
    """A cluster of this process and another one, `worker-1`, and an actor there."""
    with spinning(spin):
        async with open_local_cluster(nodes=1, cluster=f"bench-{spin}") as cluster:
            yield await cluster.node.options(on="worker-1").spawn(Bench), cluster
