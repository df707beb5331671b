"""Members of pools, and functions that pools run."""

from __future__ import annotations

import os
import socket
import threading
from typing import ClassVar, Self

import attrs
import trio

from actors import Actor, message, method


@message
class NoSuchShapeError(Exception):
    """Of the tests' own."""


@message
@attrs.frozen
class Shape:
    """With fewer than three sides it can be made, sent, and not be built again."""

    sides: int = attrs.field(validator=attrs.validators.ge(3))

    @classmethod
    def of(cls, sides: int) -> Self:
        made = cls(3)
        object.__setattr__(made, "sides", sides)
        return made


@message
class ShapeError(Exception):
    """Holds a shape."""


class Squares(Actor):
    """Computes, and does what an item asks for besides."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset
        self.ran: list[int] = []

    @method
    def square(self, item: int) -> int:
        return item * item + self.offset

    @method
    async def note(self, item: int) -> tuple[str, int]:
        self.ran.append(item)
        return self.name, item

    @method(concurrent=True)
    async def noted(self) -> list[int]:
        return self.ran

    @method
    async def picky(self, item: int) -> int:
        if item % 10 == 3:
            raise NoSuchShapeError(item)
        return item

    @method
    def exhausted(self, item: int) -> int:
        return item if item != 2 else next(iter(()))

    @method
    async def exhausted_later(self, item: int) -> int:
        if item == 2:
            raise StopAsyncIteration
        return item

    @method
    async def slow_if(self, item: int) -> int:
        if item == 0:
            await self.released.wait()
        return item

    released: ClassVar[trio.Event] = trio.Event()
    """Until it is set, item 0 of `slow_if`, and all items of `hang`, wait."""

    blocks: ClassVar[threading.Event]
    """Until it is set, item 0 of the next one blocks its thread."""

    @method
    def block_if(self, item: int) -> int:
        if item == 0:
            self.blocks.wait(60)
        return item

    hangs: ClassVar[trio.Event]
    """Set by the first item of these two, which then hangs."""

    @method
    async def hang_once(self, item: int) -> int:
        first = not self.hangs.is_set()
        self.hangs.set()
        if first:
            await trio.sleep(3600)
        return item

    @method(idempotent=True)
    async def hang_once_idempotently(self, item: int) -> int:
        return await self.hang_once(item)

    @method(concurrent=True)
    async def hang(self, item: int) -> int:
        await self.released.wait()
        return item

    @method
    async def unsendable(self, item: int) -> object:
        return socket if item == 2 else item

    @method
    async def shape(self, item: int) -> list[Shape]:
        self.ran.append(item)
        return [Shape.of(item)]

    @method(idempotent=True)
    def shape_in_thread(self, item: int) -> Shape:
        self.ran.append(item)
        return Shape.of(item)

    @method
    def misshapen(self, item: int) -> int:
        if item % 2:
            raise ShapeError(f"of item {item}", Shape.of(item))
        return item

    @method
    def exit(self, item: int) -> int:
        if item == 5:
            os._exit(7)
        return item

    @method(idempotent=True)
    def exit_idempotently(self, item: int) -> int:
        if item == 5:
            os._exit(7)
        return item

    @method
    async def add(self, one: int, other: int) -> int:
        return one + other

    @method
    async def pair(self, item: int) -> list[int]:
        return [item, item]

    @method
    async def total(self, values: list[int]) -> int:
        return sum(values)

    @method
    async def blob(self, size: int) -> bytes:
        return b"x" * size

    @method
    async def where(self) -> str:
        return self.node.name


class Unstartable(Actor):
    """Its constructor raises."""

    def __init__(self) -> None:
        raise LookupError("no licence")

    @method
    async def run(self, item: int) -> int:
        return item


class Driver(Actor):
    """Opens a pool and drives a map from within an actor."""

    @method
    async def square_all(self, name: str | None, count: int) -> list[int]:
        async with await self.node.pool(name, Squares, 1, size=2) as pool:
            return [result async for result in pool.map(Squares.square, range(count))]

    @method
    async def use_existing(self, name: str) -> tuple[list[int], int, int, list[str]]:
        """What each kind of call gives, and where the members are."""
        pool = await self.node.lookup_pool(name, Squares)
        sums = [result async for result in pool.starmap(Squares.add, [(1, 2), (3, 4)])]
        kept = await pool.submit(Squares.square, 5)
        places = [answer.value or "" for answer in await pool.call_all(Squares.where)]
        return sums, await kept.fetch(), await pool.choose().add(1, 1), places

    @method
    async def followed(self, name: str, count: int) -> tuple[int, int | None, list[int]]:
        """What a map says of itself at its end, and what it has said on the way."""
        pool = await self.node.lookup_pool(name, Squares)
        results = pool.map(Squares.square, range(count))
        seen: list[int] = []
        async with trio.open_nursery() as nursery:

            async def follow() -> None:
                seen.extend([counts.done async for counts in results.progress(0.01)])

            nursery.start_soon(follow)
            async for _ in results:
                pass
        return results.counts().done, results.counts().total, seen

    @method
    async def kept(self, name: str) -> list[int]:
        """The results of a map that stay with their members, fetched."""
        pool = await self.node.lookup_pool(name, Squares)
        kept = [result async for result in pool.map(Squares.square, range(3), keep=True)]
        return [await one.fetch() for one in kept]

    @method
    async def journalled(self, name: str) -> list[int]:
        pool = await self.node.lookup_pool(name, Squares)
        return [result async for result in pool.map(Squares.square, range(3), journal="job")]

    @method
    async def journals_removed(self) -> list[str]:
        """Remove all, and say their names."""
        found = await self.node.pool_journals()
        assert all([await self.node.remove_pool_journal(one.name) for one in found])
        return [one.name for one in found]

    @method
    async def open_nonsense(self) -> None:
        await self.node.pool("squares", Squares, min=0)


def triple(item: int) -> int:
    return 3 * item


async def triple_later(item: int) -> int:
    await trio.lowlevel.checkpoint()
    return 3 * item
