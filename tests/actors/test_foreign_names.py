"""Names that users know from Ray, Dask, Celery, torch or Erlang: the error says what to write."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import Any

import pytest

import runtime.aio
import runtime.blocking
from actors import Actor, Reference, method
from runtime import NodeProcess, open_local_cluster, open_node
from runtime.node import Node


class Counter(Actor):
    def __init__(self) -> None:
        self.value = 0

    @method
    async def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    async def _secret(self) -> int:
        return self.value


async def test_on_trio() -> None:
    async with open_node() as node:
        counter: Any = await node.spawn(Counter)
        reference: Any = await counter.add.remote(1)
        anything: Any = node
        for name in ("get", "result", "value", "to_here"):
            with pytest.raises(AttributeError, match=rf"{name}.: await reference.fetch\(\)"):
                getattr(reference, name)
        with pytest.raises(AttributeError, match=r"delay.: await handle\.method\.send"):
            counter.add.delay(1)
        with pytest.raises(AttributeError, match=r"future.: start a task that awaits the call"):
            counter.add.future(1)
        with pytest.raises(AttributeError, match=r"get.: await reference.fetch\(\)"):
            anything.get(reference)
        with pytest.raises(AttributeError, match=r"kill.: await node.stop\(handle\)"):
            anything.kill(counter)
        with pytest.raises(AttributeError, match=r"'kill' .*; stop\(handle\) of a node or cluster"):
            counter.kill()
        with pytest.raises(AttributeError, match=r"a handle has no '_secret': .* the actor's own"):
            getattr(counter, "_secret")  # noqa: B009
        assert await reference.fetch() == 1


class Lists(Actor):
    @method
    async def count(self) -> AsyncIterator[int]:
        yield 1

    @method
    def own(self) -> object:
        return self.handle

    @method
    def keep(self, reference: Reference[int]) -> object:
        return reference


async def test_what_is_awaited_elsewhere() -> None:
    async with open_node() as node:
        counter: Any = await node.spawn(Counter)
        lists: Any = await node.spawn(Lists)
        for wanted, not_awaited in (
            (r"method was not called: await handle.method\(\.\.\.\)", counter.add),
            (r"async for item in handle.method\(\.\.\.\)", lists.count),
        ):
            with pytest.raises(TypeError, match=wanted):
                await not_awaited
        with pytest.raises(TypeError, match=r"was not called: async for item in handle\.method"):
            async for _ in lists.count:
                pass
        with pytest.raises(AttributeError, match=r"'remote' .*methods have it: await handle.meth"):
            counter.remote(1)


async def test_plain_methods_return_handles_and_references() -> None:
    """Plain methods may return awaitables, which these are not."""
    async with open_node() as node:
        lists: Any = await node.spawn(Lists)
        assert not inspect.isawaitable(lists)
        assert not inspect.isawaitable(await node.put(5))
        assert await lists.own() == lists
        reference = await node.put(5)
        assert await (await lists.keep(reference)).fetch() == 5


def test_an_actor_is_started_by_a_node_and_not_by_its_class() -> None:
    anything: Any = Counter
    for name in ("remote", "start", "spawn"):
        with pytest.raises(
            AttributeError, match=r"await node.spawn\(Counter, \.\.\.\) starts an a"
        ):
            getattr(anything, name)
        assert not hasattr(anything(), name)
    with pytest.raises(RuntimeError, match=r"start one with await node.spawn\(Counter, \.\.\.\)"):
        anything().add.remote(1)

    class Engine(Actor):
        @method
        async def start(self) -> None: ...

        @method
        async def remote(self) -> None: ...

    assert set(Engine.__methods__) == {"start", "remote"}


async def test_a_base_behind_the_actor_may_have_names_that_start_actors_elsewhere() -> None:
    class Motor:
        def start(self) -> str:
            return "started"

        @classmethod
        def spawn(cls) -> str:
            return cls.__name__

        @method
        async def remote(self) -> str:
            return self.start()

    class Car(Actor, Motor):
        @method
        async def drive(self) -> str:
            return f"{self.start()}, {type(self).spawn()}"

    async with open_node() as node:
        car: Any = await node.spawn(Car)
        assert await car.drive() == "started, Car"
        assert await car.remote() == "started"


async def test_other_names_have_pythons_own_error() -> None:
    async with open_node() as node:
        anything: Any = node
        with pytest.raises(AttributeError) as caught:
            anything.adress  # noqa: B018
        assert str(caught.value) == "'Node' object has no attribute 'adress'"
        assert (caught.value.name, caught.value.obj) == ("adress", node)


def test_an_error_of_a_property_is_not_hidden() -> None:
    class Broken(Node):
        @property
        def address(self) -> str:
            raise AttributeError("within the property")

    with pytest.raises(AttributeError, match="within the property"):
        Broken.__new__(Broken).address  # noqa: B018


@pytest.mark.cluster
def test_without_an_event_loop_nothing_is_awaited() -> None:
    with runtime.blocking.open_local_cluster(nodes=1) as opened:
        cluster: Any = opened
        counter = cluster.spawn(Counter)
        with pytest.raises(AttributeError, match=r"result.: reference.fetch\(\)"):
            counter.add.remote(1).result()
        with pytest.raises(AttributeError, match=r"delay.: handle\.method\.send"):
            counter.add.delay(1)
        with pytest.raises(AttributeError, match=r"map.: cluster.executor\(\).map"):
            cluster.map(str, [1])
        with pytest.raises(AttributeError, match=r"submit.: .*cluster.future\("):
            cluster.submit(str, 1)
        with pytest.raises(AttributeError, match="only programs on trio have a node"):
            cluster.node  # noqa: B018


@pytest.mark.cluster
def test_under_asyncio() -> None:
    async def main() -> None:
        async with runtime.aio.open_local_cluster(nodes=1) as opened:
            cluster: Any = opened
            with pytest.raises(AttributeError, match=r"get_actor.: await cluster.lookup"):
                cluster.get_actor("counter")

    asyncio.run(main())


@pytest.mark.cluster
async def test_a_local_cluster_on_trio() -> None:
    async with open_local_cluster(nodes=0) as opened:
        cluster: Any = opened
        with pytest.raises(AttributeError, match=r"map.: a pool does"):
            cluster.map(str, [1])
        with pytest.raises(AttributeError, match=r"its node has; write cluster.node.spawn"):
            cluster.spawn(Counter)


def test_a_block_of_trio_in_a_program_without_an_event_loop() -> None:
    opener: Any = open_local_cluster()
    wanted = r"async with .*without an event loop use runtime\.blocking"
    with pytest.raises(TypeError, match=wanted), opener:
        pass


def test_marks_that_no_caller_could_reach() -> None:
    with pytest.raises(TypeError, match=r"_hidden cannot be a @method: names that begin with an"):

        class Hidden(Actor):
            @method
            async def _hidden(self) -> None: ...

    with pytest.raises(TypeError, match=r"on_stop cannot be a @method: the runtime calls it"):

        class Hook(Actor):
            @method
            async def on_stop(self, reason: object) -> None: ...

    with pytest.raises(TypeError, match=r"options cannot be a @method: this name belongs to the"):

        class Reserved(Actor):
            @method
            async def options(self) -> None: ...  # type: ignore[override]


def test_of_processes() -> None:
    kinds: list[tuple[Any, str]] = [
        (NodeProcess, "await "),
        (runtime.aio.AioNodeProcess, "await "),
        (runtime.blocking.BlockingNodeProcess, ""),
    ]
    for cls, wait in kinds:
        process = cls.__new__(cls)
        with pytest.raises(AttributeError, match=rf"terminate.: {wait}process\.leave\(\) lets its"):
            process.terminate()
        with pytest.raises(AttributeError, match=r"returncode.: process\.running is False once"):
            getattr(process, "returncode")  # noqa: B009
