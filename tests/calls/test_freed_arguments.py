"""The arguments of what failed or was cancelled are freed at once, and not when the cyclic garbage
collector comes: no error is in a circle with the frames of its own traceback.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import trio

from actors import Actor, ChildSpec, DynamicSupervisor, RetryPolicy, method
from actors.errors import ActorStartError, CallError, ChildError
from runtime.node import Node
from tests.live_pair import Pair
from tests.waiting import until

POLICY = RetryPolicy(max_retries=2, initial_delay=0.001)
SECONDS = 10.0
"""Longer than any end takes; a circle would stay for ever, because nothing collects it."""

MARK = "an argument of the test of freed arguments"


class Refusing(Actor):
    """Fails in all ways."""

    def __init__(self, argument: object = None, fails: bool = False) -> None:
        if fails:
            raise ValueError("as asked")

    @method(concurrent=True)
    async def fail(self, argument: object) -> None:
        raise ValueError("as asked")

    @method
    def fail_in_thread(self, argument: object) -> None:
        raise ValueError("as asked")

    @method(concurrent=True)
    async def wait(self, argument: object) -> None:
        await trio.sleep_forever()

    @method(concurrent=True)
    async def items(self, argument: object) -> AsyncIterator[int]:
        yield 1
        raise ValueError("as asked")


class Keeping(Actor):
    """Keeps its argument. Its start fails, or it does not."""

    def __init__(self, argument: object, fails: str) -> None:
        self.argument = argument
        self.fails = fails
        if fails == "constructor":
            raise ValueError("as asked")

    async def on_start(self) -> None:
        if self.fails == "on_start":
            raise ValueError("as asked")
        if self.fails == "cancelled":
            await trio.sleep_forever()


class Children(DynamicSupervisor):
    """Starts children that fail."""


def fail(argument: object) -> None:
    raise ValueError("as asked")


class Attempts:
    """Things that do not succeed, each with an argument. `options`: where the actors are."""

    def __init__(self, node: Node, options: Any, actor: Refusing) -> None:
        self.node = node
        self.options = options
        self.actor = actor

    async def call(self, argument: object) -> None:
        await self.actor.fail(argument)

    async def call_in_thread(self, argument: object) -> None:
        await self.actor.fail_in_thread(argument)

    async def call_with_retries(self, argument: object) -> None:
        await self.actor.fail.options(retry=POLICY)(argument)

    async def call_that_expires(self, argument: object) -> None:
        await self.actor.wait.options(timeout=0.01)(argument)

    async def attempt_that_expires(self, argument: object) -> None:
        policy = RetryPolicy(max_retries=2, initial_delay=0.001, attempt_timeout=0.01)
        await self.actor.wait.options(retry=policy, timeout=0.1)(argument)

    async def cancelled_call(self, argument: object) -> None:
        with trio.move_on_after(0.01):
            await self.actor.wait(argument)

    async def kept_call(self, argument: object) -> None:
        await (await self.actor.fail.remote(argument)).fetch()

    async def stream(self, argument: object) -> None:
        async for _ in self.actor.items(argument):
            pass

    async def gone(self, argument: object) -> None:
        actor = await self.options.options(name="gone").spawn(Refusing)
        await self.node.stop(actor)
        for _ in range(2):
            with pytest.raises(CallError):
                await actor.fail(argument)
        with pytest.raises(CallError):
            async for _ in actor.items(argument):
                pass
        await (await actor.fail.remote(argument)).fetch()

    async def spawn(self, argument: object) -> None:
        await self.options.spawn(Refusing, argument, True)

    async def spawn_of_what_keeps_it(self, argument: object) -> None:
        for fails in ("constructor", "on_start"):
            with suppress(ActorStartError):
                await self.options.spawn(Keeping, argument, fails)

    async def cancelled_spawn_of_what_keeps_it(self, argument: object) -> None:
        with trio.move_on_after(0.05):
            await self.options.spawn(Keeping, argument, "cancelled")

    async def spawn_of_what_keeps_it_by_name(self, argument: object) -> None:
        await self.options.options(name="keeping").spawn(Keeping, argument, "on_start")

    async def stopped_actor(self, argument: object) -> None:
        await self.node.stop(await self.options.spawn(Keeping, argument, ""))

    async def isolated_spawn(self, argument: object) -> None:
        isolated = self.options.options(isolation="process")
        for fails in ("constructor", "on_start"):
            with suppress(ActorStartError):
                await isolated.spawn(Keeping, argument, fails)

    async def stopped_isolated_actor(self, argument: object) -> None:
        isolated = self.options.options(isolation="process")
        await self.node.stop(await isolated.spawn(Keeping, argument, ""))

    async def child(self, argument: object) -> None:
        supervisor = await self.options.spawn(Children)
        for fails in ("constructor", "on_start"):
            with suppress(ChildError):
                await supervisor.start_child(
                    ChildSpec(id=fails, actor=Keeping, args=(argument, fails), restart="temporary")
                )
        await self.node.stop(supervisor)

    async def spawn_of_a_taken_name(self, argument: object) -> None:
        await self.options.options(name="taken").spawn(Refusing)
        await self.options.options(name="taken").spawn(Refusing, argument)

    async def spawn_or_find(self, argument: object) -> None:
        await self.options.options(name="found").get_or_spawn(Refusing, argument, True)

    async def cancelled_spawn_many(self, argument: object) -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await self.options.spawn_many(Refusing, [(argument,)] * 5)

    async def failed_spawn_many(self, argument: object) -> None:
        await self.options.spawn_many(Refusing, [(argument, True)] * 5)


# What real processes add is tried once in each run of the tests.
RARELY = {"stopped_isolated_actor"}
KINDS = [
    pytest.param(name, marks=[pytest.mark.long] if name in RARELY else [])
    for name in vars(Attempts)
    if not name.startswith("_")
]


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.disable()
    # What was there before is none of this test's, and `marked` would walk over all of it again
    # and again. It stays frozen: with it is what pytest has collected.
    gc.freeze()
    yield
    gc.enable()


def marked() -> int:
    """How many arguments there are, copies that arrived included."""
    return sum(type(one) is list and one[:1] == [MARK] for one in gc.get_objects())


async def attempted(attempt: Callable[[object], Awaitable[None]]) -> None:
    # For the caller the argument is over with the error.
    with suppress(Exception):
        await attempt([MARK])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("uncollected")
async def test_what_failed_keeps_no_arguments(pair: Pair, where: str, kind: str) -> None:
    options = pair.here.options(on=where)
    attempts = Attempts(pair.here, options, await options.spawn(Refusing))
    await attempted(getattr(attempts, kind))
    # The far side may still be at the end of its part.
    await until(
        marked, "arguments that are kept", lambda kept: not kept, seconds=SECONDS, every=0.02
    )
