"""The threads in which a node runs its users' plain code: constructors, plain `def` methods and hooks, methods of values.

Three limits, so that what blocks in one place holds up no other: each actor has one for its own concurrent methods, the node one for the
methods of all its actors, and one for their constructors and hooks, because what ended must be replaced while methods block. The runtime's
own threads (disks, files) count with none of them, see `Environment.in_thread`. Beyond a limit a run waits for a thread, in the order of
asking, within its call's deadline.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import trio

from runtime.environment import Environment

P = ParamSpec("P")
T = TypeVar("T")

NODE_THREADS = 1000
"""Threads for plain methods of one node, where nobody says otherwise. One that only waits takes some 50 KiB."""

ACTOR_THREADS = 40
"""Of one actor, where nobody says otherwise: as many as trio and Starlette allow a whole program."""


class Threads:
    """The threads of one node. Raises ValueError for a limit that leaves no thread."""

    def __init__(self, environment: Environment, limit: int = NODE_THREADS) -> None:
        self._environment = environment
        self._methods = trio.CapacityLimiter(limit)
        self._hooks = trio.CapacityLimiter(limit)

    async def method(self, function: Callable[[], T], of_actor: trio.CapacityLimiter | None = None) -> T:
        """Run a plain method, of an actor with the limit `of_actor`. Not abandoned when cancelled: its actor's next turn is after it."""
        if of_actor is None:
            return await self._environment.in_thread(function, self._methods)
        # Not the task: a method in a thread may call back into its own task, which runs another there.
        borrower = object()
        try:
            of_actor.acquire_on_behalf_of_nowait(borrower)
        except trio.WouldBlock:
            await of_actor.acquire_on_behalf_of(borrower)
        try:
            return await self._environment.in_thread(function, self._methods)
        finally:
            of_actor.release_on_behalf_of(borrower)

    async def construct(self, function: Callable[[], object]) -> None:
        """Run a constructor. Abandoned when cancelled: what it makes has not become an actor, and nobody waits for it."""
        await self._environment.in_thread(function, self._hooks, abandon=True)

    async def hook(self, hook: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run `on_start` or `on_stop`: on the loop if it is `async def`, in a thread if it is plain. Abandoned there when cancelled."""
        if inspect.iscoroutinefunction(hook):
            await hook(*args, **kwargs)
            return
        # In a tuple: trio refuses a coroutine as the result of a thread.
        (result,) = await self._environment.in_thread(lambda: (hook(*args, **kwargs),), self._hooks, abandon=True)
        if inspect.isawaitable(result):
            # A plain function around a coroutine function, as decorators make them.
            await result


def on_loop(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run what belongs to the event loop there, also when called from a constructor or plain method, which run in threads of it."""
    if trio.lowlevel.in_trio_run():
        return function(*args, **kwargs)
    return trio.from_thread.run_sync(functools.partial(function, *args, **kwargs))
