"""The threads in which a node runs its users' plain code: constructors, plain `def` methods and
hooks, methods of values.

There are three limits, so that what blocks in one place holds up no other. Each actor has one for
its own concurrent methods. The node has one for the methods of all its actors, and one for their
constructors and hooks, because an actor that has ended must be replaced while methods block. What a
method or another start waits for counts towards a limit of the same size of its own, the same again
for each further one in the chain: it would wait for a thread that is free only when it has ended.
The runtime's own threads (disks, files) count towards none of them, see `Environment.in_thread`.
Beyond a limit a run waits for a thread, in the order of asking, within its call's deadline.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any, ParamSpec, TypeVar

import trio

from actors.errors import NotExecutedError
from runtime.environment import Environment, NoThreadError
from runtime.hosting.actor_turns import StartTurn
from runtime.hosting.cell import Invocation, RefusedElsewhereError
from runtime.hosting.constructor_queue import ConstructorQueue
from runtime.hosting.own_context import in_own_context
from runtime.hosting.start_scope import StartScope
from runtime.hosting.thread_limits import FIRST, ChainPlace, ThreadLimits

P = ParamSpec("P")
T = TypeVar("T")

NODE_THREADS = 1000
"""Default limit on threads for plain methods of one node. A thread that only waits takes some
50 KiB.
"""

ACTOR_THREADS = 40
"""Default limit for one actor: as many as trio and Starlette allow a whole program."""

THREAD_TURN: ContextVar[ThreadTurn] = ContextVar("THREAD_TURN")
"""Of a thread that runs a plain method, and of what this calls on the loop. Set only in threads,
because setting it for each run on the loop would cost every call.
"""


class ThreadTurn:
    """What a thread runs a plain method for, until that returns: tasks that it has begun have its
    context for as long as they live, and must not keep its arguments.
    """

    __slots__ = ("around", "asked_by", "invocation")

    def __init__(self, asked_by: Invocation | StartTurn | None, around: int) -> None:
        self.asked_by = asked_by
        """The turn that has asked for the thread."""
        self.invocation = asked_by if isinstance(asked_by, Invocation) else None
        """What the thread runs: another one if it was asked for by a batch of items, and goes on
        with the batches behind it. None for a method that a start calls.
        """
        self.around = around
        """How many threads are around this one for the same turn."""

    def end(self) -> None:
        """The method has returned, or the thread goes on with another one."""
        self.invocation = self.asked_by = None


def invocation_of_thread() -> Invocation | None:
    """Return what the running thread runs a plain method for; None outside of those threads."""
    turn = THREAD_TURN.get(None)
    return None if turn is None else turn.invocation


def go_on_with(invocation: Invocation) -> None:
    """Note that the running thread goes on with another invocation."""
    before = THREAD_TURN.get(None)
    turn = ThreadTurn(invocation, 0)
    if before is not None:
        turn.asked_by, turn.around = before.asked_by, before.around
        before.end()
    THREAD_TURN.set(turn)


class Threads:
    """The threads of one node. Raises ValueError for a limit that leaves no thread."""

    def __init__(
        self, environment: Environment, nursery: trio.Nursery, limit: int = NODE_THREADS
    ) -> None:
        self._environment = environment
        self._methods = ThreadLimits(limit)
        self._starts = ThreadLimits(limit)
        self._nursery = nursery
        self._context = copy_context()
        self._constructors: dict[int, ConstructorQueue] = {}
        """By how many methods and other starts wait for a start, each for the next."""
        self.innermost: Callable[[], Invocation | StartTurn | None] = lambda: None
        """Returns the invocation or the start that the running task belongs to; the host sets
        it.
        """

    @property
    def used(self) -> int:
        """Plain methods that run in threads now."""
        return self._methods.used

    @property
    def limit(self) -> int:
        """Plain methods that may run in threads at once, beside those that others wait for."""
        return self._methods.limit

    async def method(self, function: Callable[[], T], of_actor: ThreadLimits | None = None) -> T:
        """Run a plain method in a thread, within the node's limit and the actor's limit `of_actor`.

        It is not abandoned when cancelled, because its actor's next turn must begin after it.
        """
        innermost, place = self.innermost(), FIRST
        if innermost is not None:
            place = ChainPlace(innermost.depth, _threads_around(innermost))
        function = functools.partial(_in_turn, ThreadTurn(innermost, place.around), function)
        limiter = self._methods.at(place)
        if of_actor is None:
            return await self._environment.in_thread(function, limiter)
        # A borrower of its own, and not the task: a method in a thread may call back into its task,
        # which then runs another method in a thread.
        borrower, limiter_of_actor = object(), of_actor.at(place)
        try:
            limiter_of_actor.acquire_on_behalf_of_nowait(borrower)
        except trio.WouldBlock:
            await limiter_of_actor.acquire_on_behalf_of(borrower)
        try:
            return await self._environment.in_thread(function, limiter)
        finally:
            limiter_of_actor.release_on_behalf_of(borrower)

    async def call(self, function: Callable[[], T], of_actor: ThreadLimits | None = None) -> T:
        """Like `method`, where the function is all that a call runs: without a thread nothing of
        the call has run. Raises `RefusedElsewhereError` then, by which the call ends as not
        executed.
        """
        begun = False

        def run() -> T:
            nonlocal begun
            begun = True
            return function()

        try:
            return await self.method(run, of_actor)
        except NoThreadError as error:
            if begun:
                # Code of the user has asked for another thread.
                raise
            raise RefusedElsewhereError(NotExecutedError(f"it was not run: {error}")) from None

    def _starts_at(self, depth: int) -> trio.CapacityLimiter:
        return self._starts.at(ChainPlace(depth, 0))

    def _constructors_at(self, depth: int) -> ConstructorQueue:
        queue = self._constructors.get(depth)
        if queue is None:
            # In the context of the node: that of a start is not for others.
            queue = self._constructors[depth] = self._context.run(
                ConstructorQueue, self._environment, self._nursery, self._starts_at(depth)
            )
        return queue

    async def construct(
        self, function: Callable[[], object], scope: StartScope, turn: StartTurn
    ) -> None:
        """Run a constructor in a thread. It is abandoned when cancelled, by `scope` or otherwise:
        its object has not become an actor, and no task waits for it.
        """
        # In a tuple: trio refuses a coroutine as the result of a thread.
        constructors = self._constructors_at(turn.depth)
        (result,) = await constructors.run(lambda: (function(),), scope)
        if result is None:
            return
        if inspect.iscoroutine(result):
            # Never awaited on purpose: closed, so that Python does not warn of it as well.
            result.close()
            raise TypeError("__init__ cannot be `async def`; await in `on_start`")
        raise TypeError(f"__init__ should return None, not {type(result).__name__}")

    async def hook(self, hook: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run `on_stop`: on the loop if it is `async def`, in a thread if it is plain. A thread is
        abandoned when cancelled. What the hook sets in its context does not stay in the task, which
        may be that of the code that starts the actor.
        """
        if inspect.iscoroutinefunction(hook):
            await in_own_context(hook(*args, **kwargs))
        else:
            limiter = self._starts_at(0)
            await in_own_context(self._plain_hook(limiter, lambda: hook(*args, **kwargs)))

    async def start_hook(self, hook: Callable[[], Any], turn: StartTurn) -> None:
        """Run `on_start`, as `hook` does."""
        if inspect.iscoroutinefunction(hook):
            await in_own_context(hook())
        else:
            limiter = self._starts_at(turn.depth)
            await in_own_context(self._plain_hook(limiter, hook))

    async def _plain_hook(self, limiter: trio.CapacityLimiter, hook: Callable[[], Any]) -> None:
        # In a tuple: trio refuses a coroutine as the result of a thread.
        (result,) = await self._environment.in_thread(lambda: (hook(),), limiter, abandon=True)
        if inspect.isawaitable(result):
            # A plain function around a coroutine function, as decorators make them: await its
            # result.
            await result
        elif inspect.isasyncgen(result) or inspect.isgenerator(result):
            # As decorators make them, too: classes whose hooks are generators are refused.
            raise TypeError(
                f"the hook returned {result.__qualname__}, a generator: nothing asks a hook for "
                "items, so none of its code has run; take the `yield` out"
            )


def _threads_around(innermost: Invocation | StartTurn) -> int:
    """In how many threads this turn waits for what the running task does."""
    turn = THREAD_TURN.get(None)
    if turn is not None and turn.asked_by is innermost:
        return turn.around + 1
    # The context may be that of another turn, whose thread has begun the task. A start is in the
    # thread of its constructor or hook.
    return 1 if isinstance(innermost, StartTurn) else 0


def _in_turn(turn: ThreadTurn, function: Callable[[], T]) -> T:
    """Run `function` in a thread, whose context is a copy that ends with it."""
    THREAD_TURN.set(turn)
    try:
        return function()
    finally:
        # Perhaps another one by now.
        THREAD_TURN.get().end()


def on_loop(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `function` on the event loop, also when called from a constructor or a plain method,
    which run in threads of that loop. Raises RuntimeError in any other thread.
    """
    if trio.lowlevel.in_trio_run():
        return function(*args, **kwargs)
    try:
        return trio.from_thread.run_sync(functools.partial(function, *args, **kwargs))
    except RuntimeError as error:
        if str(error).startswith("this thread wasn't created by Trio"):
            raise RuntimeError(
                "an actor's tasks are started in its methods, not in a thread of its own: take "
                "trio.lowlevel.current_trio_token() in an async method, and use "
                "trio.from_thread.run_sync(..., trio_token=token) in the thread"
            ) from None
        raise
