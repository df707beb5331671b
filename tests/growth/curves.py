"""What is counted: calls, actors, names, subscribers, children and references."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from shutil import which

import attrs
import trio

from actors import Actor, ChildSpec, Reference, Supervisor, method
from actors.identifiers import ActorId
from runtime import open_local_cluster, open_node
from runtime.environment import SystemEnvironment
from runtime.membership.names import Names
from runtime.store.embedded_store import EmbeddedStore
from runtime.store.etcd.address import EtcdAddress
from runtime.store.etcd.store import EtcdStore
from runtime.store.interface import Store
from runtime.testing import open_etcd
from runtime.wire.codec import Codec
from tests.growth.measuring import Curve, measure

TOGETHER = 64
"""Names in one request, as a node claims them."""

CHUNK = 10_000
"""Actors or references that are made with one call."""

FOUND = 10_000
"""Names that are looked up one by one, at the most: a million of them in etcd would take ten
minutes. The time for these stands for the others.
"""

ITEMS = 10
"""Items that each subscriber of a stream takes."""

LONG_LEASE = 3_600.0


class Quiet(Actor):
    """Answers, and offers a stream."""

    @method
    async def read(self) -> int:
        return 16

    @method(concurrent=True)
    async def items(self) -> AsyncIterator[int]:
        for number in range(ITEMS):
            yield number
            await trio.lowlevel.checkpoint()


class Owner(Actor):
    """Has values, and hands out references to them."""

    @method
    async def many(self, count: int) -> list[Reference[int]]:
        return [await self.node.put(16) for _ in range(count)]


def parts(count: int, size: int) -> Iterator[int]:
    """Sizes that add up to `count`."""
    for begin in range(0, count, size):
        yield min(size, count - begin)


async def calls_in_flight(what: str, most: int) -> Curve:
    """Calls to an actor of another node, all at once, each from a task of its own."""
    async with open_local_cluster(1) as cluster:
        placed = cluster.node.options(on="worker-1", mailbox_limit=2 * most)
        quiet = await placed.spawn(Quiet)

        async def work(count: int) -> float:
            began = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for _ in range(count):
                    nursery.start_soon(quiet.read)
            return time.perf_counter() - began

        return await measure(what, work, most)


async def actors_on_a_node(what: str, most: int) -> Curve:
    """Idle actors of one node, started, each called once, and dropped with the node."""

    async def work(count: int) -> float:
        async with open_node() as node:
            began = time.perf_counter()
            for size in parts(count, CHUNK):
                for started in await node.spawn_many(Quiet, [()] * size):
                    await started.read()
            return time.perf_counter() - began

    return await measure(what, work, most)


OpenStore = Callable[[], AbstractAsyncContextManager[Store]]


async def names_in(store: OpenStore, what: str, most: int) -> Curve:
    """Names that are claimed in no particular order, found, and released."""
    drawn = random.Random(1)

    async def work(count: int) -> float:
        async with store() as opened:
            lease = await opened.grant(LONG_LEASE)
            names = Names(opened, Codec([], sentinel=b"12345678"), lease, "node", 3)
            texts = [f"actor-{number}" for number in range(count)]
            drawn.shuffle(texts)
            began = time.perf_counter()
            owned: list[ActorId] = []
            for start in range(0, count, TOGETHER):
                some = texts[start : start + TOGETHER]
                epochs = await names.claim_many(some, "module:Class")
                for name, epoch in zip(some, epochs, strict=True):
                    assert isinstance(epoch, int), epoch
                    owned.append(ActorId(name, epoch))
            drawn.shuffle(owned)
            some_found = owned[:FOUND]
            finding = time.perf_counter()
            for name, epoch in some_found:
                found = await names.find(name)
                assert found is not None
                assert found.epoch == epoch
            found_in = time.perf_counter() - finding
            for start in range(0, count, TOGETHER):
                await names.release_many(owned[start : start + TOGETHER])
            of_others = found_in * (count - len(some_found)) / len(some_found)
            return time.perf_counter() - began + of_others

    return await measure(what, work, most)


@asynccontextmanager
async def embedded(directory: Path | None = None) -> AsyncIterator[Store]:
    """A new store of this process, in memory or in a directory."""
    environment = SystemEnvironment()
    store = (
        EmbeddedStore(environment)
        if directory is None
        else await EmbeddedStore.on_disk(environment, directory)
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        yield store
        store.close()


async def names_in_memory(what: str, most: int) -> Curve:
    """In the store of a founder that keeps nothing."""
    return await names_in(embedded, what, most)


async def names_on_disk(what: str, most: int) -> Curve:
    """In the store of a founder with a data directory."""
    with tempfile.TemporaryDirectory() as directory:
        numbers = iter(range(1_000_000))
        return await names_in(lambda: embedded(Path(directory) / str(next(numbers))), what, most)


async def names_in_etcd(what: str, most: int) -> Curve:
    """In an etcd of one member."""
    async with open_etcd(1) as server:
        address = EtcdAddress.parse(server.address)
        numbers = iter(range(1_000_000))

        @asynccontextmanager
        async def opened() -> AsyncIterator[Store]:
            store = EtcdStore(address, f"growth-{next(numbers)}", SystemEnvironment())
            async with trio.open_nursery() as nursery:
                await nursery.start(store.run)
                yield store
                store.close()

        return await names_in(opened, what, most)


async def stream_subscribers(what: str, most: int) -> Curve:
    """Callers on one node that each read a stream of one actor on another."""
    async with open_local_cluster(1) as cluster:
        quiet = await cluster.node.options(on="worker-1").spawn(Quiet)

        async def subscribe() -> None:
            async with quiet.items() as items:
                assert len([item async for item in items]) == ITEMS

        async def work(count: int) -> float:
            began = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for _ in range(count):
                    nursery.start_soon(subscribe)
            return time.perf_counter() - began

        return await measure(what, work, most)


async def children(what: str, most: int) -> Curve:
    """Children of one supervisor, from its start to its stop."""

    async def work(count: int) -> float:
        async with open_node() as node:
            began = time.perf_counter()
            supervisor = await node.spawn(
                Supervisor,
                [ChildSpec(id=f"child-{number}", actor=Quiet) for number in range(count)],
            )
            await node.stop(supervisor)
            return time.perf_counter() - began

    return await measure(what, work, most)


async def references(what: str, most: int) -> Curve:
    """References to values of another node, until all of them are held here."""
    async with open_local_cluster(1) as cluster:
        owner = await cluster.node.options(on="worker-1").spawn(Owner)

        async def work(count: int) -> float:
            held: list[Reference[int]] = []
            began = time.perf_counter()
            for size in parts(count, CHUNK):
                held += await owner.many(size)
            assert await held[-1].fetch() == 16
            return time.perf_counter() - began

        return await measure(what, work, most)


@attrs.frozen
class Subject:
    """Something of which there may be many: how many of it are measured by default, and at
    most.
    """

    what: str
    curve: Callable[[str, int], Awaitable[Curve]]
    usual: int
    most: int
    needs: str = ""
    """A program that must be installed."""

    @property
    def is_there(self) -> bool:
        """True if it can be measured on this machine."""
        return not self.needs or which(self.needs) is not None


SUBJECTS = {
    "calls": Subject("calls in flight", calls_in_flight, 10_000, 100_000),
    "actors": Subject("actors of a node", actors_on_a_node, 100_000, 1_000_000),
    "memory": Subject("names, store in memory", names_in_memory, 100_000, 1_000_000),
    "disk": Subject("names, store on disk", names_on_disk, 10_000, 1_000_000),
    "etcd": Subject("names, etcd", names_in_etcd, 1_000, 1_000_000, "etcd"),
    "streams": Subject("subscribers of a stream", stream_subscribers, 1_000, 10_000),
    "children": Subject("children of a supervisor", children, 1_000, 10_000),
    "references": Subject("references held", references, 100_000, 1_000_000),
}
