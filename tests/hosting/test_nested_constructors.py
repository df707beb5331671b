"""Constructors and plain hooks that start other actors, and wait for these in their threads: they
never wait for a thread that they have themselves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from actors import Actor, method
from actors.actor import NodeInterface
from actors.errors import ActorStartError
from runtime import open_node

SECRET = "a secret for the tests of nested constructors"

HANG = 30
"""Seconds after which a start that waits for itself is given up."""


class Nest(Actor):
    """Starts another one of its kind in its constructor, `depth` deep, in one of the `WAYS`."""

    def __init__(self, depth: int, way: str) -> None:
        self.depth = 1
        if depth > 0:
            for child in trio.from_thread.run(WAYS[way], self.node, (depth - 1, way)):
                self.depth = 1 + trio.from_thread.run(child.deepest)

    @method(concurrent=True)
    async def deepest(self) -> int:
        return self.depth


class HookedNest(Nest):
    """Does that in a plain `on_start`, in a thread as well."""

    def __init__(self, depth: int, way: str) -> None:
        self.asked = depth, way
        super().__init__(0, way)

    def on_start(self) -> None:
        Nest.__init__(self, *self.asked)


async def alone(node: NodeInterface, args: tuple[int, str]) -> list[Nest]:
    return [await node.spawn(Nest, *args)]


async def hooked(node: NodeInterface, args: tuple[int, str]) -> list[Nest]:
    return [await node.spawn(HookedNest, *args)]


async def named(node: NodeInterface, args: tuple[int, str]) -> list[Nest]:
    return [await node.options(name=f"nest-{args[0]}").get_or_spawn(Nest, *args)]


async def many(node: NodeInterface, args: tuple[int, str]) -> list[Nest]:
    return await node.spawn_many(Nest, [args] * 2)


async def with_resources(node: NodeInterface, args: tuple[int, str]) -> list[Nest]:
    return [await node.options(resources={"room": 1.0}).spawn(Nest, *args)]


async def elsewhere(node: NodeInterface, args: tuple[int, str]) -> list[Nest]:
    other = "there" if node.name == "here" else "here"
    return [await node.options(on=other).spawn(Nest, *args)]


WAYS: dict[str, Callable[[NodeInterface, tuple[int, str]], Awaitable[list[Nest]]]] = {
    way.__name__: way for way in (alone, hooked, named, many, with_resources, elsewhere)
}


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("way", WAYS)
async def test_starts_within_starts_end_at_any_limit_of_threads(way: str, limit: int) -> None:
    room = {"room": 100.0}
    async with (
        open_node("here", secret=SECRET, thread_limit=limit, resources=room) as here,
        open_node("there", join=here.address, secret=SECRET, thread_limit=limit, resources=room),
    ):
        await here.wait_for(2)
        depths: list[int] = []

        async def start(number: int) -> None:
            # Names are taken once.
            depth = 3 if way != "named" or number == 0 else 0
            nests = await WAYS["alone" if depth == 0 else way](here, (depth, way))
            depths.extend([await nest.deepest() for nest in nests])

        with trio.fail_after(HANG):
            async with trio.open_nursery() as nursery:
                # As many as there are threads, and more.
                for number in range(3):
                    nursery.start_soon(start, number)
        assert max(depths) == 4
        assert len(depths) == (6 if way == "many" else 3)
        assert way == "named" or min(depths) == 4


class Beside(Actor):
    """Starts two others at once, in tasks of its own; both wait for the place that it has."""

    def __init__(self) -> None:
        self.depths = trio.from_thread.run(self.start_both)

    async def start_both(self) -> list[int]:
        depths: list[int] = []

        async def start() -> None:
            (nest,) = await alone(self.node, (1, "alone"))
            depths.append(await nest.deepest())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(start)
            nursery.start_soon(start)
        return depths

    @method
    async def found(self) -> list[int]:
        return self.depths


async def test_several_starts_within_one_share_its_place() -> None:
    async with open_node("here", secret=SECRET, thread_limit=1) as here:
        with trio.fail_after(HANG):
            beside = await here.spawn(Beside)
        assert await beside.found() == [2, 2]


class Self(Actor):
    """Calls itself in its constructor, which would wait for its own end."""

    def __init__(self) -> None:
        trio.from_thread.run(self.ask)

    async def ask(self) -> None:
        await (await self.node.lookup(self.name, Self)).answer()

    @method
    async def answer(self) -> None:
        pass


async def test_a_constructor_that_calls_its_own_actor_is_refused() -> None:
    async with open_node("here", secret=SECRET) as here:
        with trio.fail_after(HANG), pytest.raises(ActorStartError, match=r"cycle: self\.on_start"):
            await here.options(name="self").spawn(Self)
