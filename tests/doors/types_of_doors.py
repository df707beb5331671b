"""Right and wrong uses of one actor at three doors, for type checkers; nobody runs this. A wrong
one carries the ignore that would otherwise be unused.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import Future
from typing import assert_type

from actors import Actor, RetryPolicy, method
from actors.blocking import BlockingReference, BlockingStream
from runtime import aio
from runtime.aio import AioCluster, AioLocalCluster
from runtime.blocking import Blocking, BlockingCluster, connect, open_local_cluster
from runtime.node import Node


class Typed(Actor):
    """Has one method of each kind."""

    def __init__(self, start: int) -> None:
        self.value = start

    @method
    async def add(self, amount: int, *, twice: bool = False) -> int:
        return amount

    @method(idempotent=True, timeout=3.0)
    def in_thread(self, size: int) -> bytes:
        return bytes(size)

    @method
    async def scan(self, start: int) -> AsyncIterator[str]:
        yield str(start)

    @method
    async def total(self, numbers: list[int], other: Typed | None = None) -> int:
        return sum(numbers)

    @method
    async def me(self) -> Typed:
        return self


def blocking(cluster: BlockingCluster) -> None:
    """All of it is accepted."""
    typed = cluster.spawn(Typed, 1)
    typed = cluster.lookup("typed", Typed)
    typed = cluster.options(name="typed").get_or_spawn(Typed, start=1)
    assert_type(typed.add(5), int)
    assert_type(typed.add(5, twice=True), int)
    assert_type(typed.in_thread(5), bytes)
    assert_type(typed.add.options(timeout=2.0, retry=RetryPolicy())(5), int)
    assert_type(typed.options(timeout=2.0).add(5), int)
    assert_type(typed.add.future(5), Future[int])
    assert_type(typed.add.future(5).result(), int)
    assert_type(typed.add.remote(5), BlockingReference[int])
    assert_type(typed.add.remote(5).fetch(), int)
    assert_type(typed.scan(1), BlockingStream[str])
    for item in typed.scan.options(timeout=1.0)(1):
        assert_type(item, str)
    typed.add.send(5)
    assert_type(typed.name, str)
    assert_type(typed.epoch, int)
    assert_type(typed.total(cluster.put([1]).as_value(), cluster.argument(typed)), int)
    assert_type(cluster.handle(typed.me()).add(1), int)
    takes(typed)


def takes(typed: Blocking[Typed]) -> None:
    """A blocking handle as a parameter."""
    assert_type(typed.add(1), int)


def wrong(cluster: BlockingCluster) -> None:
    """Every line is refused."""
    typed = cluster.spawn(Typed, "1")  # type: ignore[arg-type]
    typed = cluster.lookup("typed", Typed)
    typed.add("5")  # type: ignore[arg-type]
    typed.add()  # type: ignore[call-arg]
    typed.add.future("5")  # type: ignore[arg-type]
    typed.add.send("5")  # type: ignore[arg-type]
    typed.add.options(timeout="long")  # type: ignore[arg-type]
    typed.scan("1")  # type: ignore[arg-type]
    typed.none()  # type: ignore[attr-defined]
    assert typed.value  # type: ignore[misc]
    typed.scan.options(retry=RetryPolicy())  # type: ignore[call-arg]


def opened() -> None:
    """Both ways to a cluster."""
    with connect("127.0.0.1:7400", secret="s") as cluster:
        assert_type(cluster, BlockingCluster)
    with open_local_cluster(nodes=2) as local:
        local.processes["worker-1"].kill()


async def trio(typed: Typed) -> None:
    """At trio's door, as ever."""
    assert_type(await typed.add(5), int)
    assert_type(typed.name, str)
    assert_type(typed.options(timeout=1.0), Typed)


async def asyncio_door(cluster: AioCluster) -> None:
    """All of it is accepted."""
    typed = await cluster.spawn(Typed, 1)
    typed = await cluster.options(name="typed").get_or_spawn(Typed, start=1)
    typed = await cluster.lookup("typed", Typed)
    assert_type(await typed.add(5), int)
    assert_type(await typed.options(timeout=2.0).add.options(timeout=2.0)(5), int)
    assert_type(await (await typed.add.remote(5)).fetch(), int)
    async for item in typed.scan(1):
        assert_type(item, str)
    assert_type(await cluster.handle(await typed.me()).add(1), int)
    async with aio.connect("127.0.0.1:7400") as other:
        assert_type(other, AioCluster)
    async with aio.open_local_cluster() as local:
        assert_type(local, AioLocalCluster)


async def wrong_at_asyncio(cluster: AioCluster) -> None:
    """Every line is refused."""
    await cluster.spawn(Typed, "1")  # type: ignore[arg-type]
    typed = await cluster.lookup("typed", Typed)
    await typed.add("5")  # type: ignore[arg-type]
    await typed.add()  # type: ignore[call-arg]
    for item in typed.scan(1):  # type: ignore[attr-defined]
        assert item


def moved(blocking_door: BlockingCluster, asyncio_door: AioCluster, typed: Typed) -> None:
    """A handle at each of the doors."""
    here = blocking_door.handle(typed)
    assert_type(here.add(1), int)
    assert_type(asyncio_door.handle(here), Typed)
    assert_type(asyncio_door.handle(typed), Typed)
    assert_type(blocking_door.handle(here).add(1), int)


def plain_function(number: int, *, word: str = "") -> bytes:
    return word.encode() * number


async def async_function(number: int) -> list[str]:
    return [str(number)]


def functions_from_scripts(cluster: BlockingCluster) -> None:
    """What a function returns is known, and its arguments are checked."""
    assert_type(cluster.run(plain_function, 1), bytes)
    assert_type(cluster.run(plain_function, 1, word="x"), bytes)
    assert_type(cluster.run(async_function, 1), list[str])
    assert_type(cluster.options(timeout=1.0, idempotent=True).run(async_function, 1), list[str])
    assert_type(cluster.future(plain_function, 1), Future[bytes])
    assert_type(cluster.future(async_function, 1), Future[list[str]])
    with cluster.executor(max_workers=2) as executor:
        assert_type(executor.submit(plain_function, 1), Future[bytes])
        assert_type(list(executor.map(plain_function, [1])), list[bytes])
    cluster.run(plain_function, "1")  # type: ignore[call-overload]
    cluster.run(plain_function)  # type: ignore[call-overload]
    cluster.run(async_function, 1, 2)  # type: ignore[call-overload]


async def functions_from_asyncio(cluster: AioCluster, node: Node) -> None:
    """The same, awaited."""
    assert_type(await cluster.run(plain_function, 1), bytes)
    assert_type(await cluster.run(async_function, 1), list[str])
    assert_type(await cluster.options(on="here").run(async_function, 1), list[str])
    assert_type(await node.run(plain_function, 1), bytes)
    assert_type(await node.run(async_function, 1), list[str])
    assert_type(await node.options(on="here").run(plain_function, 1), bytes)
    await cluster.run(plain_function, "1")  # type: ignore[call-overload]
    await node.run(async_function)  # type: ignore[call-overload]
