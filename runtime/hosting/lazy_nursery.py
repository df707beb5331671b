"""The nursery of an actor's own tasks: opened at the first `self.nursery.start_soon`, so that an
actor without tasks costs no task.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context, copy_context
from functools import partial
from inspect import (
    isasyncgen,
    isasyncgenfunction,
    iscoroutine,
    isgenerator,
    isgeneratorfunction,
)
from typing import TYPE_CHECKING, Any, TypeVarTuple

import trio

from runtime.environment import unwrap
from runtime.hosting.threads import on_loop
from runtime.user_errors import is_cancellation, is_interrupt

Ts = TypeVarTuple("Ts")

_INSTEAD = {
    "start": "start_soon the function, and wait for an Event that it sets when it is ready",
    "cancel_scope": "all tasks are cancelled when the actor ends; to end one of them earlier, let "
    "its function return, for example when an Event is set",
    "create_task": "start_soon takes the function and its arguments, as in start_soon(self.work, "
    "5)",
}


class NurseryEndedError(RuntimeError):
    """The actor has ended, so that it can start no more tasks."""


class LazyNursery:
    """Implements `actors.actor.ActorNursery` in a task of the node's nursery. `crashed(error)` is
    called when one of its tasks raises; `inner_tasks()` is open while they run.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        name: str,
        crashed: Callable[[BaseException], None],
        inner_tasks: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._nursery = nursery
        self.name = name
        self._crashed = crashed
        self._inner_tasks = inner_tasks
        self._scope = trio.CancelScope()
        self._own: trio.Nursery | None = None
        self._waiting: list[
            tuple[Callable[..., Awaitable[object]], tuple[Any, ...], str | None, Context]
        ] = []
        self._opened = False
        self._closed = trio.Event()

    def start_soon(
        self, function: Callable[[*Ts], Awaitable[object]], *args: *Ts, name: str | None = None
    ) -> None:
        """Start a task that ends with the actor; also from a thread of the actor's. Raises
        RuntimeError if the actor has ended, and TypeError for what is no function.
        """
        check_task_function(function)
        on_loop(self._start_soon, function, args, name)

    def _start_soon(
        self, function: Callable[..., Awaitable[object]], args: tuple[Any, ...], name: str | None
    ) -> None:
        if self._scope.cancel_called:
            raise NurseryEndedError(f"{self.name} has ended; it can start no more tasks")
        if self._own is not None:
            self._own.start_soon(self.run, function, args, name=name or function)
            return
        # Each task has the context of the code that starts it, and not of what opens the nursery.
        self._waiting.append((function, args, name, copy_context()))
        if not self._opened:
            self._opened = True
            self._nursery.start_soon(self._open, name=f"tasks of {self.name}")

    if not TYPE_CHECKING:  # it would hide misspelt names from type checkers

        def __getattr__(self, name: str) -> object:
            raise missing_in_nursery(name)

    async def close(self) -> None:
        """Cancel the tasks and wait for them."""
        self._scope.cancel()
        if self._opened:
            await self._closed.wait()

    def cancel(self) -> None:
        """Cancel the tasks without waiting."""
        self._scope.cancel()

    async def run(self, function: Callable[..., Awaitable[object]], args: tuple[Any, ...]) -> None:
        """Run one task. This frame is in the stack of the user's code, so that a report of a
        blocked loop can name the actor.

        Exceptions do not leave it: trio cannot handle every exception at the end of a task.
        """
        try:
            await awaitable_of(function(*args))
        except BaseException as error:  # noqa: ASYNC103  cancellations and interrupts go on
            if is_cancellation(error) or is_interrupt(error):
                raise
            self._scope.cancel()
            self._crashed(unwrap(error))

    async def _open(self) -> None:
        try:
            with self._scope, self._inner_tasks():
                async with trio.open_nursery() as own:
                    self._own = own
                    for function, args, name, context in self._waiting:
                        start = partial(self.run, function, args)
                        context.run(partial(own.start_soon, start, name=name or function))
                    self._waiting.clear()
                    await trio.sleep_forever()
        finally:
            self._own = None
            self._closed.set()


def check_task_function(function: object) -> None:
    """Raise TypeError if this cannot be called, or is a generator. Otherwise the mistake would end
    the actor, later and without the line that made it.
    """
    if not callable(function):
        raise TypeError(
            "start_soon takes a function and its arguments, as in start_soon(self.work, 5), and "
            f"not {'the coroutine that it returns' if iscoroutine(function) else type(function)}"
        )
    if isasyncgenfunction(function) or isgeneratorfunction(function):
        while isinstance(function, partial):
            function = function.func
        raise TypeError(_of_generator(getattr(function, "__qualname__", "the function")))


def _of_generator(name: str) -> str:
    return (
        f"start_soon takes an `async def` function, and {name} is a generator, because it has a "
        "`yield`: nothing would ask for its items; take the `yield` out, or start a function that "
        "reads them, as by `async for item in ...`"
    )


def missing_in_nursery(name: str) -> AttributeError:
    """Make the error for what nurseries of trio have, and those of actors have not."""
    instead = _INSTEAD.get(name, "it starts tasks, which are cancelled when the actor ends")
    return AttributeError(
        f"self.nursery of an actor has start_soon, and no {name!r}: {instead}", name=name
    )


def awaitable_of(given: Awaitable[object]) -> Awaitable[object]:
    """Return what the function of a task has returned. Raise TypeError if it cannot be awaited."""
    if not hasattr(type(given), "__await__"):
        made: object = given
        if isasyncgen(made) or isgenerator(made):
            # By a function that is none itself, such as a lambda or what a decorator returns.
            raise TypeError(_of_generator(made.__qualname__))
        raise TypeError(
            "start_soon takes an `async def` function, and was given one that is none; run that "
            "in a thread, as in start_soon(trio.to_thread.run_sync, function)"
        )
    return given


def own_task_of(task: trio.lowlevel.Task) -> str | None:
    """The actor whose own nursery (`self.nursery`) this task holds open or runs in."""
    frame = getattr(task.coro, "cr_frame", None)
    if frame is not None and frame.f_code in _OWN_TASKS:
        return str(getattr(frame.f_locals.get("self"), "name", "")) or None
    return None


_OWN_TASKS = (LazyNursery.run.__code__, LazyNursery._open.__code__)
