"""Right and wrong uses of watches and groups, for type checkers; nobody runs this. See
`types_of_streams`.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import assert_type

from actors import Actor, Answer, Ended, Group, Watch, method
from runtime.node import Node


class Reader(Actor):
    """Is in groups, and watches."""

    handles_exits = True

    async def on_ended(self, notice: Ended) -> None:
        assert_type(notice.watch, int)

    @method
    async def count(self, start: int, step: int = 1) -> int:
        return start + step

    @method
    async def uses(self, other: Reader) -> None:
        watch = await self.watch(other)
        assert_type(watch, Watch)
        await self.unwatch(watch)
        await self.unwatch(other)  # type: ignore[arg-type]
        await self.link(other)
        await self.unlink(other)
        await self.join("group")
        assert_type(await self.leave("group"), bool)
        await self.join(5)  # type: ignore[arg-type]
        right(self.node.group("group", Reader))


def right(group: Group[Reader]) -> None:
    assert_type(group.members(), tuple[Reader, ...])
    assert_type(group.choose(), Reader)


async def calls(node: Node, group: Group[Reader]) -> None:
    right(node.group("group", Reader))
    right(node.group("group", Reader).options(timeout=1.0))
    assert_type(await group.broadcast(Reader.count, 1, step=2), int)
    await group.broadcast(Reader.count, "1")  # type: ignore[arg-type]
    await group.broadcast(Reader.count)  # type: ignore[call-arg]
    assert_type(await group.call_all(Reader.count, 1), list[Answer[int]])
    async for members in group.watch():
        assert_type(members, tuple[Reader, ...])
    assert_type(await node.wait_ended(group.choose()), Ended)
