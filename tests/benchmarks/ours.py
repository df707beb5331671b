"""The actors that are measured."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from actors import Actor, method
from runtime import LocalCluster, open_local_cluster
from tests.benchmarks.measuring import spinning
from tests.benchmarks.memory import resident


class Bench(Actor):
    """Does as little as possible."""

    @method
    async def read(self) -> int:
        return 16

    @method
    async def echo(self, data: bytes) -> bytes:
        return data

    @method
    async def echo_array(self, data: Any) -> Any:
        return data


class Idle(Actor):
    """Is there, and waits."""

    @method
    async def read(self) -> int:
        return 16


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


@asynccontextmanager
async def open_bench(spin: str = "auto") -> AsyncIterator[tuple[Bench, LocalCluster]]:
    """A cluster of this process and another one, `worker-1`, and an actor there."""
    with spinning(spin):
        async with open_local_cluster(nodes=1, cluster=f"bench-{spin}") as cluster:
            yield await cluster.node.options(on="worker-1").spawn(Bench), cluster
