"""Three live nodes in the test's own event loop, over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, ParamSpec, TypeVar, cast

import attrs
import pytest

from actors import Reference
from actors.identifiers import NodeId
from runtime import open_node
from runtime.environment import SystemEnvironment
from runtime.node import Node, internals_of
from runtime.references.manager import OnLeave
from runtime.testing import Platform
from runtime.timings import Timings
from tests.references.keepers import Maker

P = ParamSpec("P")
A = TypeVar("A")

SECRET = "a secret for the tests of references"
TIMINGS = Timings()


@attrs.frozen
class Three:
    """A driver, and two nodes that have values and use them."""

    driver: Node
    first: Node
    second: Node

    def node(self, name: str) -> Node:
        """One of them by its name."""
        found: Node = getattr(self, name)
        return found

    async def spawn(self, actor: Callable[P, A], on: str) -> A:
        """A handle of the driver's to a new actor on that node."""
        spawn: Any = self.driver.options(on=on).spawn
        return cast("A", await spawn(actor))

    def handle_at(self, node: Node, handle: Any) -> Any:
        """A handle of that node's to the same actor."""
        return internals_of(node).endpoint.make_handle(handle.address)

    async def put(self, on: str, value: object) -> Reference[Any]:
        """The driver's reference to a value of that node."""
        maker = await self.spawn(Maker, on)
        return await maker.put(value)

    @asynccontextmanager
    async def another(
        self, name: str, timings: Timings = TIMINGS, on_leave: OnLeave = "move"
    ) -> AsyncIterator[Node]:
        """One more node. One that is to be killed must "lose" its values at the end of the block,
        when it leaves in order: they are lost already.
        """
        platform = Platform(environment=SystemEnvironment(timings))
        async with open_node(
            name,
            join=self.driver.address,
            secret=SECRET,
            references_on_leave=on_leave,
            platform=platform,
        ) as node:
            for each in (self.driver, self.first, self.second):
                await each.wait_for(4)
            yield node

    async def kill(self, node: Node) -> None:
        """End a node for the others, as if its process were gone."""
        identity = NodeId(node.name, node.incarnation)
        for link in list(internals_of(node).links.values()):
            link.end("killed by the test")
        for each in (self.driver, self.first, self.second):
            internals_of(each).on_proven_end(identity, "killed by the test")

    def received_by(self, name: str) -> int:
        """Bytes, over all links of that node."""
        return sum(
            link.counters.bytes_received for link in internals_of(self.node(name)).links.values()
        )

    def sent(self, source: str, target: str) -> int:
        """Bytes from one node to another."""
        there = self.node(source)
        return (
            internals_of(self.node(target))
            .links[NodeId(there.name, there.incarnation)]
            .counters.bytes_received
        )


@pytest.fixture
async def three() -> AsyncIterator[Three]:
    """A cluster of three. The values that they have at the end of the test go nowhere."""
    options: Any = {"secret": SECRET, "references_on_leave": "lose"}
    async with (
        open_node("driver", **options) as driver,
        open_node("first", join=driver.address, **options) as first,
        open_node("second", join=driver.address, **options) as second,
    ):
        for node in (driver, first, second):
            await node.wait_for(3)
        yield Three(driver, first, second)
