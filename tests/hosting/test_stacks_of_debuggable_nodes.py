"""Stacks in nodes that were opened with `debuggable`, where greenback runs each task of an actor in
a greenlet: they read as in other nodes, also while a debugger waits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.lowlevel

from actors import Actor, method
from runtime import Node, open_node
from runtime.node import internals_of
from runtime.observation.inspection_service import inspection_of
from tests.waiting import until


async def innermost() -> None:
    await trio.sleep_forever()


class Shop(Actor):
    """Waits in all ways."""

    @method
    async def wait(self) -> None:
        """Wait in the method."""
        await innermost()

    @method
    async def inner(self) -> None:
        """Wait in a task of the method's."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(innermost)
            await trio.lowlevel.checkpoint()

    @method
    async def own(self) -> None:
        """Wait in a task of the actor's."""
        self.nursery.start_soon(innermost)

    @method
    async def stop_at_once(self) -> None:
        """Stop before anything was awaited."""
        self._stop()

    @method
    async def stop_later(self) -> None:
        """Stop after the event loop has gone on with the method."""
        await trio.lowlevel.checkpoint()
        self._stop()

    def _stop(self) -> None:
        breakpoint()


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with open_node("one", secret="a secret of these tests", debuggable=True) as opened:
        yield opened


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("wait", [["Shop.wait", "innermost", "sleep_forever"]]),
        ("inner", [["Shop.inner"], ["innermost", "sleep_forever"]]),
        ("own", [["innermost", "sleep_forever"]]),
        ("stop_at_once", [["Shop.stop_at_once", "Shop._stop"]]),
        ("stop_later", [["Shop.stop_later", "Shop._stop"]]),
    ],
)
async def test_the_lines_are_the_users(node: Node, name: str, expected: list[list[str]]) -> None:
    shop = await node.options(name="shop").spawn(Shop)
    service: Any = inspection_of(internals_of(node).endpoint, node.name, node.incarnation)
    seen: list[list[str]] = []

    async def waits() -> bool:
        answer = await service.stacks("shop")
        # The frames of the runtime and of trio are folded, or below what the user looks for.
        seen[:] = sorted(
            [line[2] for line in task["stack"] if line[0] == __file__ or line[2] == "sleep_forever"]
            for task in answer["tasks"]
        )
        return seen == expected

    async with trio.open_nursery() as nursery:
        nursery.start_soon(getattr(shop, name))
        await until(waits, "it waits as expected")
        answer = await service.stacks("shop")
        files = {line[0] for task in answer["tasks"] for line in task["stack"]}
        assert not any("greenback" in file or "pdb" in file for file in files)
        nursery.cancel_scope.cancel()
