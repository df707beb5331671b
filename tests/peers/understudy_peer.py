"""This library: a cluster of this process and two others."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import trio

from actors import Actor, UnderstudyError, method
from runtime import LocalCluster, open_local_cluster
from tests.benchmarks.measuring import pipelined, sequential
from tests.peers import works
from tests.peers.works import IN_FLIGHT, MEMBERS, report


class Bench(Actor):
    """Does as little as possible."""

    @method
    async def read(self) -> int:
        return 16

    @method
    async def echo(self, data: Any) -> Any:
        return data

    @method
    async def fail(self) -> None:
        raise ValueError("as asked")

    @method(concurrent=True)
    async def wait(self) -> None:
        await trio.sleep_forever()

    @method
    async def pid(self) -> int:
        return os.getpid()


async def _calls(cluster: LocalCluster, seconds: float, names: set[str]) -> None:
    import numpy as np

    actor = await cluster.node.options(on="worker-1").spawn(Bench)
    read, echo = actor.read, actor.echo
    if "sequential" in names:
        report("sequential", await sequential(read, seconds))
    if "pipelined" in names:
        report("pipelined", await pipelined(read, seconds, IN_FLIGHT))
    for name, size in (("echo-1k", works.KIBIBYTE), ("echo-64k", 64 * works.KIBIBYTE)):
        if name in names:
            data = bytes(size)
            found = await sequential(lambda data=data: echo(data), seconds)  # type: ignore[misc]
            report(name, found if name == "echo-1k" else works.mebibytes(found, size))
    if "echo-array" in names:
        array = np.ones(works.ARRAY_BYTES // 8)
        found = await sequential(lambda: echo(array), seconds)
        report("echo-array", works.mebibytes(found, works.ARRAY_BYTES))
    if "raise" in names:

        async def fail() -> None:
            try:
                await actor.fail()
            except ValueError:
                return
            raise AssertionError("the method must raise")

        report("raise", await pipelined(fail, seconds, 200))


async def _actors(cluster: LocalCluster, names: set[str]) -> None:
    placed = cluster.node.options(on="worker-1")
    if "first" in names:
        took = []
        for _ in range(50):
            began = time.perf_counter()
            await (await placed.spawn(Bench)).read()
            took.append(1000 * (time.perf_counter() - began))
        report("first", median(took))
    if "actors" in names:
        began = time.perf_counter()
        handles = await placed.spawn_many(Bench, [()] * works.ACTORS)
        await handles[-1].read()
        report("actors", works.ACTORS / (time.perf_counter() - began))


async def _kill(cluster: LocalCluster) -> None:
    actor = await cluster.node.options(on="worker-2").spawn(Bench)
    pid = await actor.pid()
    began = 0.0

    async def waiting() -> None:
        try:
            await actor.wait()
        except UnderstudyError:
            report("kill", 1000 * (time.perf_counter() - began))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(waiting)
        await trio.sleep(0.3)
        began = time.perf_counter()
        os.kill(pid, signal.SIGKILL)


async def _maps(cluster: LocalCluster, seconds: float, names: set[str]) -> None:
    import numpy as np

    async def timed(function: Callable[..., float], items: list[Any]) -> float:
        async with await cluster.node.pool(None, function, size=MEMBERS) as pool:
            await pool.ready(MEMBERS)
            began = time.perf_counter()
            count = sum([1 async for _ in pool.map(function, items)])
            return count / (time.perf_counter() - began)

    for name in works.SPINS:
        if name in names:
            report(name, await timed(works.spin, works.items_of(name, seconds)))
    if "map-array" in names:
        arrays = [np.zeros(works.MEBIBYTE // 8) for _ in range(works.array_count(seconds))]
        report("map-array", await timed(works.first, arrays))


async def main() -> None:
    """Do all works that the command line names."""
    seconds, names = works.seconds_and_works()
    async with open_local_cluster(nodes=MEMBERS) as cluster:
        await _calls(cluster, seconds, names)
        await _actors(cluster, names)
        await _maps(cluster, seconds, names)
        if "kill" in names:
            await _kill(cluster)


if __name__ == "__main__":
    trio.run(main)
