"""The context (of `contextvars`) of a method, an item or a hook: a copy that ends with it.

A worker's task runs methods of all actors, one after the other. What a method sets in its context
(a tenant, the fields of a logger) must not be there for the next one, which may be another actor's.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any, Final, TypeVar

import trio

T = TypeVar("T")

Method = Coroutine[Any, Any, object]


@types.coroutine
def resume(coroutine: Method, trap: object, context: Context) -> Generator[Any, Any, object]:
    """Continue, in `context`, a coroutine that was stepped by hand until it yielded `trap` to the
    event loop.

    What a thread of the coroutine runs in the task through `trio.from_thread.run` has the context
    of the thread: trio gives it to the task meanwhile.
    """
    task = trio.lowlevel.current_task()
    outside = task.context
    while True:
        try:
            step = functools.partial(coroutine.send, (yield trap))
        except BaseException as error:  # noqa: ASYNC103  passed on to the coroutine
            step = functools.partial(coroutine.throw, error)
        try:
            trap = context.run(step) if task.context is outside else step()
        except StopIteration as stop:
            return stop.value
        finally:
            # An exception that was thrown in has this frame in its traceback. If this frame kept
            # it, it and everything that its frames refer to would stay until the cyclic garbage
            # collector runs.
            del step


STEPPED_BY_HAND: Final = resume.__code__
"""The code below which a task runs a method: its variable `coroutine` is the method's."""


async def in_own_context(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine in a copy of the present context."""
    context = copy_context()
    try:
        trap = context.run(coroutine.send, None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    return await resume(coroutine, trap, context)  # type: ignore[return-value]
