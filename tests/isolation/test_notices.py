"""How a notice reaches the actor in its process, and how one ends that no task wants any
more: without processes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import attrs
import pytest
import trio

from actors.actor import Ended
from actors.method import Address
from actors.options import SpawnOptions
from actors.supervision import ExitReason
from runtime.environment import SystemEnvironment
from runtime.hosting.actor_start import ActorStart
from runtime.hosting.cell import ActorCell
from runtime.hosting.host import ActorHost
from runtime.isolation.child_watches import WatchingClient
from runtime.isolation.node_api import NodeApi
from tests.watching.actors_used import Fragile, Watcher


class Node:
    """A node that answers when the test lets it."""

    name = "node"

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int]] = []
        self.answer = trio.Event()

    async def unwatch(self, name: str, epoch: int, number: int) -> None:
        self.asked.append((name, epoch, number))
        await self.answer.wait()


@attrs.define
class Process:
    """The inside of one: its host, what it watches, and its actor."""

    node: Node
    watching: WatchingClient
    host: ActorHost
    nursery: trio.Nursery

    async def begin(self, cls: type[Watcher]) -> tuple[ActorCell, Watcher]:
        """Start the actor."""
        await self.host.begin(ActorStart(cls, "", SpawnOptions()), Address("watcher", "node", 1, 1))
        cell = self.host.cells["watcher"]
        return cell, cast("Watcher", cell.instance)


@pytest.fixture
async def process() -> AsyncIterator[Process]:
    """One without a node."""
    async with trio.open_nursery() as nursery:
        node = Node()
        watching = WatchingClient(cast("NodeApi", node), nursery)

        def nothing(*args: object) -> Any:
            raise AssertionError(args)

        host = ActorHost(cast("Any", node), nursery, SystemEnvironment(), nothing, nothing, nothing)
        host.extensions.add("watching", watching)
        with trio.fail_after(60):
            yield Process(node, watching, host, nursery)
        nursery.cancel_scope.cancel()


def notice(number: int) -> Ended:
    """One for a watch."""
    return Ended(number, "other", 1, "node", ExitReason("stopped"))


async def test_a_notice_that_arrives_after_its_watch_was_cancelled_is_dropped_and_soon_forgotten(
    process: Process,
) -> None:
    cell, actor = await process.begin(Watcher)
    process.watching.cancel(cell, 1)
    process.watching.cancel(cell, 1)
    assert await process.watching.tell(process.host, cell, notice(1))
    assert await process.watching.tell(process.host, cell, notice(2))
    assert [one.watch for one in actor.notices] == [2]
    assert process.node.asked == [("watcher", 1, 1)]
    process.node.answer.set()
    await trio.testing.wait_all_tasks_blocked()
    assert not process.watching._cancelled
    assert not process.watching._deliveries


async def test_one_that_waits_in_the_mailbox_is_taken_out_when_its_watch_is_cancelled(
    process: Process,
) -> None:
    cell, actor = await process.begin(Watcher)
    cell.busy = True
    outcomes: list[bool] = []

    async def tell() -> None:
        outcomes.append(await process.watching.tell(process.host, cell, notice(1)))

    process.nursery.start_soon(tell)
    await trio.testing.wait_all_tasks_blocked()
    assert not outcomes
    process.watching.cancel(cell, 1)
    await trio.testing.wait_all_tasks_blocked()
    assert outcomes == [True]
    process.host.workers.submit(cell)
    assert await process.watching.tell(process.host, cell, notice(2))
    assert [one.watch for one in actor.notices] == [2]


async def test_telling_that_is_cancelled_takes_the_notice_back(process: Process) -> None:
    cell, actor = await process.begin(Watcher)
    cell.busy = True
    with trio.move_on_after(0):
        await process.watching.tell(process.host, cell, notice(1))
    process.host.workers.submit(cell)
    await trio.testing.wait_all_tasks_blocked()
    assert actor.notices == []
    assert not process.watching._deliveries


@pytest.mark.parametrize("ends", ["before", "in its turn"])
async def test_one_that_has_ended_or_ends_of_it_is_said_to_have(
    process: Process, ends: str
) -> None:
    cell, actor = await process.begin(Fragile)
    if ends == "before":
        await process.host.stop("watcher", 1, ExitReason("stopped"))
    assert not await process.watching.tell(process.host, cell, notice(1))
    assert actor.notices == []
    assert cell.ended is not None
    assert (cell.ended.kind == "raised") is (ends == "in its turn")
