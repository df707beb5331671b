"""While a node leaves, its actors still reach each other: what they have begun ends in order."""

from __future__ import annotations

from typing import ClassVar

import pytest
import trio

from actors import Actor, ChildSpec, ExitReason, Supervisor, method
from actors.errors import NodeDrainingError
from runtime import open_node
from runtime.node import internals_of

SECRET = "a secret for the tests of closing"


class Book(Actor):
    """Is asked by the others while its node leaves."""

    lines: ClassVar[list[str]] = []

    @method
    async def write(self, line: str) -> str:
        self.lines.append(line)
        return f"noted: {line}"


class Writer(Actor):
    """Needs the book to end its call, and to stop."""

    async def work(self, started: trio.Event, leaving: trio.Event) -> str:
        started.set()
        await leaving.wait()
        return await (await self.node.lookup("book", Book)).write("work")

    async def on_stop(self, reason: ExitReason) -> None:
        await (await self.node.lookup("book", Book)).write(f"{self.name} stops: {reason.kind}")


@pytest.fixture(autouse=True)
def empty_book() -> None:
    Book.lines.clear()


async def test_an_on_stop_reaches_the_actors_that_were_started_before_its_own() -> None:
    async with open_node("here", secret=SECRET) as node:
        await node.options(name="book").spawn(Book)
        await node.options(name="writer").spawn(Writer)
        await node.options(name="top").spawn(Supervisor, [ChildSpec.of("child", Writer)])
    assert Book.lines == ["top/child stops: parent stopped", "writer stops: shutdown"]


async def test_a_call_that_runs_ends_with_the_help_of_other_actors_of_a_node_that_leaves() -> None:
    outcome: list[str] = []
    events: list[trio.Event] = [trio.Event(), trio.Event()]

    class Waiting(Writer):
        @method
        async def wait(self) -> str:
            return await self.work(*events)

    async def call(writer: Waiting) -> None:
        outcome.append(await writer.wait())

    async with trio.open_nursery() as nursery, open_node("here", secret=SECRET) as node:
        await node.options(name="book").spawn(Book)
        writer = await node.options(name="writer").spawn(Waiting)
        nursery.start_soon(call, writer)
        await events[0].wait()
        host = internals_of(node).endpoint.host
        # As at the end of the block, but before the call goes on.
        host.take_no_new_work()
        refused = host.find("book", 0, "write")
        assert isinstance(refused, NodeDrainingError)
        events[1].set()
    assert outcome == ["noted: work"]
    assert Book.lines == ["work", "writer stops: shutdown"]
