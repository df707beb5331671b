"""Plain methods that call plain methods, and wait for these in their threads: they never wait for a
thread that they have themselves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from actors import Actor, method
from runtime import open_node

SECRET = "a secret for the tests of nested methods"

HANG = 30
"""Seconds after which a call that waits for itself is given up."""

DEPTH = 3
CALLERS = 5


class Relay(Actor):
    """Asks the next one in a plain method, in a thread that waits for it."""

    def __init__(self, following: Relay | None = None) -> None:
        self.following = following

    @method(concurrent=True)
    def length(self) -> int:
        """The relays from this one to the last."""
        if self.following is None:
            return 1
        return 1 + trio.from_thread.run(self.following.length)

    @method(concurrent=True)
    def descend(self, depth: int) -> int:
        """Go from one to the other of two relays, which call each other; the calls there were."""
        if depth == 0:
            return 1
        following = self.following if self.following is not None else self.handle
        return 1 + trio.from_thread.run(following.descend, depth - 1)

    @method(concurrent=True)
    def descend_here(self, depth: int) -> int:
        """Like `descend`, as a function of this object."""
        if depth == 0:
            return 1
        return 1 + trio.from_thread.run(self.descend_here, depth - 1)

    @method(concurrent=True)
    def descend_in_tasks(self, depth: int) -> int:
        """Like `descend`, in two tasks at once."""
        if depth == 0:
            return 1
        return 1 + trio.from_thread.run(self._descend_twice, depth - 1)

    async def _descend_twice(self, depth: int) -> int:
        counts: list[int] = []

        async def descend() -> None:
            counts.append(await self.handle.descend_in_tasks(depth))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(descend)
            nursery.start_soon(descend)
        assert counts[0] == counts[1]
        return counts[0]

    @method(concurrent=True)
    def start_others(self, depth: int) -> int:
        """Start an actor whose constructor calls a plain method that starts another one."""
        if depth == 0:
            return 1
        return 1 + trio.from_thread.run(self._start, depth)

    async def _start(self, depth: int) -> int:
        return await (await self.node.spawn(Starting, self.handle, depth - 1)).found()


class Starting(Actor):
    """Calls a relay in its constructor, which starts another one of these."""

    def __init__(self, relay: Relay, depth: int) -> None:
        self.count = trio.from_thread.run(relay.start_others, depth)

    @method(concurrent=True)
    def found(self) -> int:
        return self.count


async def call_at_once(call: Callable[[], Awaitable[int]]) -> list[int]:
    """What as many callers get as there are threads, and more."""
    answers: list[int] = []

    async def ask() -> None:
        answers.append(await call())

    with trio.fail_after(HANG):
        async with trio.open_nursery() as nursery:
            for _ in range(CALLERS):
                nursery.start_soon(ask)
    return answers


@pytest.mark.parametrize("limit", [1, 2])
async def test_methods_of_several_nodes_that_wait_for_each_other_end(limit: int) -> None:
    async with (
        open_node("here", secret=SECRET, thread_limit=limit) as here,
        open_node("there", join=here.address, secret=SECRET, thread_limit=limit),
    ):
        await here.wait_for(2)
        relay: Relay | None = None
        for number in range(DEPTH):
            relay = await here.options(on=("here", "there")[number % 2]).spawn(Relay, relay)
        assert relay is not None
        assert await call_at_once(relay.length) == [DEPTH] * CALLERS


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("of", ["actor", "node"])
@pytest.mark.parametrize("way", ["descend", "descend_here", "descend_in_tasks", "start_others"])
async def test_methods_of_one_actor_that_wait_for_each_other_end(
    way: str, of: str, limit: int
) -> None:
    async with open_node(
        "here", secret=SECRET, thread_limit=limit if of == "node" else 1000
    ) as here:
        of_actor = limit if of == "actor" else None
        relay = await here.options(thread_limit=of_actor).spawn(Relay)
        call = getattr(relay, way)
        assert await call_at_once(lambda: call(DEPTH)) == [DEPTH + 1] * CALLERS


async def test_two_actors_that_call_each_other_in_threads_end() -> None:
    async with open_node("here", secret=SECRET) as here:
        last = await here.options(thread_limit=1).spawn(Relay)
        first = await here.options(thread_limit=1, isolation="process").spawn(Relay, last)
        assert await call_at_once(lambda: first.descend(DEPTH)) == [DEPTH + 1] * CALLERS
