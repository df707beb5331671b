"""Children that take all devices of three nodes, which leave and join one after another:
nothing is given twice, no child starves, and calls wait.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from actors import Actor, ChildSpec, RetryPolicy, Supervisor, method
from runtime import open_node
from runtime.node import Node, internals_of
from tests.waiting import until

SECRET = "a secret for the tests of devices that move"
GPUS = 2
NAMES = ("a", "b", "c")
CHILDREN = GPUS * len(NAMES)


class Model(Actor):
    @method(concurrent=True, idempotent=True)
    async def where(self) -> str:
        return self.node.name


@attrs.define
class Cluster:
    """A founder without devices, and the nodes that have some, by their names."""

    here: Node
    nursery: trio.Nursery
    nodes: dict[str, Node] = attrs.field(factory=dict)
    leaving: dict[str, tuple[trio.Event, trio.Event]] = attrs.field(factory=dict)

    async def join(self, name: str) -> None:
        await self.nursery.start(self._live, name)

    async def leave(self, name: str) -> None:
        leave, left = self.leaving[name]
        leave.set()
        await left.wait()

    async def _live(  # noqa: ASYNC114  it is started in `join` alone
        self, name: str, *, task_status: trio.TaskStatus[None]
    ) -> None:
        leave, left = self.leaving[name] = trio.Event(), trio.Event()
        async with open_node(
            name, join=self.here.address, secret=SECRET, resources={"gpu": GPUS}
        ) as node:
            self.nodes[name] = node
            task_status.started()
            await leave.wait()
        internals_of(node).host.check_invariants()
        del self.nodes[name]
        left.set()

    def running(self) -> set[str]:
        """The children that run; checks that no node has more than its devices allow."""
        found: list[str] = []
        for node in self.nodes.values():
            cells = internals_of(node).cells.values()
            its = [one for one in cells if isinstance(one.instance, Model) and one.ended is None]
            assert len(its) <= GPUS, f"{node.name} runs {[one.address.name for one in its]}"
            found += [one.address.name for one in its if one.started]
        return set(found)


@asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    async with open_node("here", secret=SECRET) as here, trio.open_nursery() as nursery:
        found = Cluster(here, nursery)
        for name in NAMES:
            await found.join(name)
        await here.wait_for(1 + len(NAMES))
        yield found
        nursery.cancel_scope.cancel()


async def call(handle: Any, over: trio.Event) -> None:
    while not over.is_set():
        await handle.where.options(retry=RetryPolicy(max_retries=5))()
        await trio.sleep(0.01)


@pytest.mark.parametrize("strategy", ["one-for-one", "rest-for-one", "one-for-all"])
async def test_children_of_all_devices_move_with_them(strategy: Any) -> None:
    draw, over = random.Random(strategy), trio.Event()
    async with cluster() as found:
        specs = [
            ChildSpec.of(f"m{number}", Model).changed(resources={"gpu": 1})
            for number in range(CHILDREN)
        ]
        # A move is no failure, and neither is it to find no room.
        options = found.here.options(name="top")
        await options.spawn(Supervisor, specs, strategy=strategy, intensity=0)
        async with trio.open_nursery() as callers:
            for number in range(CHILDREN):
                model = await found.here.lookup(f"top/m{number}", Model)
                callers.start_soon(call, model, over)
            for _ in range(4):
                gone = draw.sample(NAMES, draw.choice([1, 2]))
                async with trio.open_nursery() as nursery:
                    for name in gone:
                        nursery.start_soon(found.leave, name)
                await until(
                    found.running,
                    "those that have room run",
                    lambda its: strategy != "one-for-one" or len(its) == GPUS * len(found.nodes),
                )
                async with trio.open_nursery() as nursery:
                    for name in gone:
                        nursery.start_soon(found.join, name)
                await until(found.running, "all run", lambda its: len(its) == CHILDREN)
            over.set()
