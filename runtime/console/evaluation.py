"""Runs the statements of a console in a task of trio, its background tasks beside it, and decides
what Ctrl-C does to them.
"""

from __future__ import annotations

import inspect
import linecache
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import CodeType, FrameType, FunctionType
from typing import Any, Generic, TypeVar, cast

import attrs
import trio

from runtime.console.statements import Statement
from runtime.user_errors import is_machinery, repr_of

T = TypeVar("T")

Say = Callable[[str], None]
"""Writes lines for the user, beside what statements print."""


class Interrupts:
    """The handler of SIGINT: what Ctrl-C does. Within `statement`, and elsewhere in the run.

    The first ends the statement that runs: by KeyboardInterrupt if its own code is what runs at
    this moment, otherwise by cancelling what it awaits, which cancels calls where they run. Never
    is KeyboardInterrupt raised in the code of the runtime or of trio: a node would end with it. The
    second ends what blocks the event loop, if that is a background task; the third, for a statement
    that will not end, the process.
    """

    def __init__(self, say: Say) -> None:
        self._say = say
        self._token = trio.lowlevel.current_trio_token()
        self._scope: trio.CancelScope | None = None
        self._pressed = 0
        self._leaving = False

    def begin(self, scope: trio.CancelScope) -> None:
        """A statement runs in this scope from now on."""
        self._scope = scope
        self._pressed = 0

    def end(self) -> None:
        """It runs no more."""
        self._scope = None

    def leave(self) -> None:
        """The console is being left: the next one ends the process."""
        self._leaving = True

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """The handler. Raises KeyboardInterrupt into code of the user's alone."""
        whose = _whose(frame)
        if self._leaving:
            self._end_process()
        elif self._scope is None:
            # At the prompt, where the key is no signal: it comes from elsewhere, or while the loop
            # is blocked.
            if whose is BackgroundTasks.run.__code__:
                raise KeyboardInterrupt
        else:
            self._pressed += 1
            if self._pressed >= 3:
                self._end_process()
            elif whose is run_users_code.__code__:
                raise KeyboardInterrupt
            elif self._pressed == 1:
                self._cancel(self._scope)
            else:
                self._say("this statement does not end yet; Ctrl-C once more ends the shell")
                if whose is BackgroundTasks.run.__code__:
                    raise KeyboardInterrupt

    def _cancel(self, scope: trio.CancelScope) -> None:
        try:
            # From a signal handler, which may run between any two bytecodes of the loop: it only
            # asks.
            self._token.run_sync_soon(scope.cancel)
        except trio.RunFinishedError:
            return

    def _end_process(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def _whose(frame: FrameType | None) -> CodeType | None:
    """Return the function of this module that has called the user's code which is interrupted; None
    if it is other code.
    """
    own = False
    while frame is not None:
        if is_machinery(frame.f_code.co_filename):
            return frame.f_code if own else None
        own, frame = True, frame.f_back
    return None


async def run_users_code(function: Callable[[], object]) -> None:
    """Run the code of a statement, which is a coroutine if it awaits anything at its top."""
    found = function()
    if inspect.iscoroutine(found):
        await found


async def evaluate(
    statement: Statement, namespace: dict[str, object], interrupts: Interrupts
) -> BaseException | None:
    """Run a statement in this task; returns what it raised, whatever that is, or None. One that was
    interrupted has raised KeyboardInterrupt. Only the cancellation of the task itself comes out.
    """
    lines = [f"{line}\n" for line in statement.source.splitlines()]
    # For tracebacks and `inspect.getsource`. No time of change: it is never thrown out.
    linecache.cache[statement.filename] = len(statement.source), None, lines, statement.filename
    scope = trio.CancelScope()
    failure: BaseException | None = statement.error
    interrupts.begin(scope)
    try:
        with scope:
            for code in statement.code:
                await run_users_code(FunctionType(code, namespace))
    except BaseException as error:  # noqa: ASYNC103  the checkpoint raises a cancellation again
        failure = error  # noqa: ASYNC104
    finally:
        interrupts.end()
    await trio.lowlevel.checkpoint_if_cancelled()
    if scope.cancelled_caught:
        failure = KeyboardInterrupt()
    if failure is not None:
        _remember(failure)
    return failure


def _remember(error: BaseException) -> None:
    """Keep the error where `pdb.pm()` looks for it."""
    sys.last_type, sys.last_value = type(error), error
    sys.last_traceback = error.__traceback__
    setattr(sys, "last_exc", error)  # noqa: B010  Python 3.11 does not know it yet


@attrs.define
class _Status(Generic[T]):
    """The task status of a background task, which remembers that it was used."""

    _status: trio.TaskStatus[Any]
    started_already: bool = False

    def started(self, value: object = None) -> None:
        self._status.started(value)
        self.started_already = True


class BackgroundTasks:
    """The `nursery` of a console. Unlike in trio's, a task that raises ends alone, and its error is
    reported: neither the other tasks nor the console end with it.
    """

    def __init__(self, nursery: trio.Nursery, report: Callable[[str, BaseException], None]) -> None:
        self._nursery = nursery
        self._report = report
        self._running: dict[trio.CancelScope, str] = {}
        self._emptied = trio.Event()

    def start_soon(
        self, function: Callable[..., Awaitable[object]], *args: object, name: object = None
    ) -> None:
        """Start a task that runs `function(*args)`; it ends with the console at the latest."""
        self._nursery.start_soon(partial(self.run, _named(function, name)), function, *args)

    async def start(
        self, function: Callable[..., Awaitable[object]], *args: object, name: object = None
    ) -> Any:
        """Like `start_soon`, and wait until the function has called `task_status.started`; see
        `Nursery.start`.
        """
        return await self._nursery.start(
            partial(self._start, _named(function, name)), function, *args
        )

    async def enter(self, manager: AbstractAsyncContextManager[T]) -> T:
        """Enter an `async with` block that stays open until the console ends, and return what it is
        of. Calling `__aenter__` in a statement would leave it open within that statement's task.
        """

        async def _hold(task_status: trio.TaskStatus[T]) -> None:
            async with manager as entered:
                task_status.started(entered)
                await trio.sleep_forever()

        return cast("T", await self.start(_hold, name=type(manager).__qualname__))

    def cancel(self) -> None:
        """Cancel all tasks that run now. Later ones are not affected."""
        for scope in tuple(self._running):
            scope.cancel()

    async def wait_ended(self) -> None:
        """Wait until no task runs."""
        while self._running:
            await self._emptied.wait()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tasks that run."""
        return tuple(self._running.values())

    async def run(
        self, name: str, function: Callable[..., Awaitable[object]], *args: object, **more: object
    ) -> None:
        """Run one task; for `start_soon`."""
        failure: BaseException | None = None
        scope = trio.CancelScope()
        self._running[scope] = name
        try:
            with scope:
                await function(*args, **more)
        except BaseException as error:  # noqa: ASYNC103  the checkpoint raises a cancellation again
            failure = error  # noqa: ASYNC104
        finally:
            del self._running[scope]
            emptied, self._emptied = self._emptied, trio.Event()
            emptied.set()
        await trio.lowlevel.checkpoint_if_cancelled()
        status = more.get("task_status")
        if isinstance(status, _Status) and not status.started_already and failure is not None:
            # It is for the statement that waits for the start.
            raise failure
        if failure is not None:
            self._report(name, failure)

    async def _start(  # noqa: ASYNC114, ASYNC128  the user's function says that it has started
        self,
        name: str,
        function: Callable[..., Awaitable[object]],
        *args: object,
        task_status: trio.TaskStatus[Any],
    ) -> None:
        await self.run(name, function, *args, task_status=_Status[Any](task_status))

    def __repr__(self) -> str:
        names = ", ".join(self.names)
        return f"<nursery of this shell: {names or 'no tasks'}>"


def _named(function: object, name: object) -> str:
    """Return the name of a task. Raises TypeError for a coroutine in place of a function."""
    if inspect.iscoroutine(function):
        function.close()
        raise TypeError(
            "start_soon and start take a function and its arguments, not a coroutine: "
            "nursery.start_soon(function, argument)"
        )
    found = name if name is not None else getattr(function, "__qualname__", None)
    return found if isinstance(found, str) else repr_of(found if found is not None else function)
