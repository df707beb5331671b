"""Right and wrong uses of pools within actors, for type checkers; nobody runs this. See
`types_of_streams`.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import assert_type

from actors import Actor, Answer, ChildSpec, DynamicSupervisor, Reference, method
from actors.actor import NodeInterface
from actors.pools import PoolInterface
from runtime.node import Node
from runtime.pools.pool import Pool


class Resizer(Actor):
    """A member of the pool."""

    @method
    async def run(self, path: str, width: int = 100) -> bytes:
        return path.encode() * width


class Publisher(Actor):
    """Opens a pool from its own node."""

    @method
    async def publish(self, paths: list[str]) -> int:
        pool = await self.node.pool("resize", Resizer, size=2)
        assert_type(pool, PoolInterface[Resizer])
        await right(pool)
        await right(await self.node.lookup_pool("resize", Resizer))
        await self.node.pool("resize", Resizer, size="2")  # type: ignore[arg-type]
        await self.node.pool("resize", Resizer, count=2)  # type: ignore[call-arg]
        await self.node.pool("resize", Resizer, per_node=1, isolation="thread")  # type: ignore[arg-type]
        pool.map(Resizer.run, [1])  # type: ignore[arg-type]
        pool.map(Resizer.run, paths, on_error="ignore")  # type: ignore[call-overload]
        await pool.submit(Resizer.run, 1)  # type: ignore[arg-type]
        pool.choose("fastest")  # type: ignore[arg-type]
        return len([image async for image in pool.map(Resizer.run, paths, ordered=False)])


async def right(pool: PoolInterface[Resizer]) -> None:
    async with pool, pool.map(Resizer.run, ["a"], timeout=1.0) as results:
        async for image in results:
            assert_type(image, bytes)
    async for image in pool.starmap(Resizer.run, [("a", 2)]):
        assert_type(image, bytes)
    async for kept in pool.map(Resizer.run, ["a"], keep=True):
        assert_type(kept, Reference[bytes])
    async for found in pool.map(Resizer.run, ["a"], on_error="return", window=8):
        assert_type(found, bytes | Exception)
    async for image in pool.map(Resizer.run, ["a"], on_error="skip", keep=False):
        assert_type(image, bytes)
    assert_type(await pool.submit(Resizer.run, "a", width=2), Reference[bytes])
    assert_type(await pool.call_all(Resizer.run, "a"), list[Answer[bytes]])
    assert_type(pool.choose("hash", key="a"), Resizer)
    assert_type(pool.members(), tuple[Resizer, ...])
    await pool.resize(min=1, max=3)
    assert_type(pool.name, str)
    await pool.stop()


async def of_programs(node: Node, pool: Pool[Resizer]) -> None:
    await right(await node.pool("resize", Resizer, size=2))
    await right(pool)
    inside: NodeInterface = node
    await inside.pool(None, Resizer, size=1)


async def children(supervisor: DynamicSupervisor) -> None:
    """A child's handle may be annotated as its class."""
    resizer: Resizer = await supervisor.spawn()
    assert_type(await resizer.run("a"), bytes)
    await supervisor.stop_child(resizer)
    again: Resizer = await supervisor.start_child(ChildSpec.of("resizer", Resizer))
    await supervisor.delete_child(again)
