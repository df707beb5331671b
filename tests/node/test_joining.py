"""Joining while others cannot wait: a node is called from the moment its name is in the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from actors import Actor, method
from runtime import Node, open_node
from runtime.links.transports import Connection, SocketNetwork
from tests.node.conftest import SECRET


class Greeter(Actor):
    """Says where it is."""

    @method
    async def where(self) -> str:
        return self.node.name


class Hesitant(SocketNetwork):
    """Joins at once, but dials as a node only after somebody has dialled it."""

    def __init__(self) -> None:
        super().__init__()
        self.dials = 0
        self.dialled = trio.Event()

    async def connect(self, address: str) -> Connection:
        self.dials += 1
        if self.dials > 1:
            await self.dialled.wait()
        return await super().connect(address)

    async def listen(  # noqa: ASYNC128  passed on
        self,
        address: str,
        handler: Callable[[Connection], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        async def handle(connection: Connection) -> None:
            self.dialled.set()
            await handler(connection)

        await super().listen(address, handle, task_status=task_status)


async def test_a_node_that_is_called_while_it_still_joins_answers() -> None:
    """Both dial each other then; the connection that stands must not be the one that waits for the join to be over."""
    answers: list[str] = []

    async def call(founder: Node) -> None:
        async for members in founder.watch_members():
            if len(members) == 2:
                break
        answers.append(await (await founder.options(on="newcomer").spawn(Greeter)).where())

    with trio.fail_after(10):
        async with open_node("founder", secret=SECRET) as founder, trio.open_nursery() as nursery:
            nursery.start_soon(call, founder)
            async with open_node("newcomer", join=founder.address, secret=SECRET, network=Hesitant()):
                while not answers:  # noqa: ASYNC110  the other task has an answer, or this test its time-out
                    await trio.sleep(0.01)
    assert answers == ["newcomer"]
