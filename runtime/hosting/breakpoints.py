"""`breakpoint()` in an actor's method, and debuggers of failures that are kept: only in nodes that
were opened with `debuggable`. `understudy debug` talks to them.

A plain method waits in its thread. An `async def` method waits in its task, and so do the actor's
own tasks, while the event loop goes on: greenback lets plain code inside a task await something. An
actor under asyncio waits with its whole loop, which is its own. A breakpoint that cannot wait, or
that is one too many, is a line of the log, and the code goes on.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial
from types import FrameType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs
import trio

from actors.own_logger import own_logger
from runtime.environment import Environment, NoThreadError
from runtime.hosting.cell import ActorCell, Invocation
from runtime.hosting.debug_conversation import DebugConversation
from runtime.hosting.post_mortem import FailureRecord
from runtime.hosting.remote_pdb import RemotePdb
from runtime.hosting.threads import invocation_of_thread
from runtime.hosting.workers import TaskWorkers
from runtime.user_errors import guarded

if TYPE_CHECKING:
    import asyncio

MOST_DEBUGGERS: Final = 16
"""Debuggers of one node that are open at once."""

STOPPED: ContextVar[DebugConversation] = ContextVar("STOPPED")
"""In a thread that has waited at a breakpoint: the conversation of the last one. A thread is used
for others later, and their context has none.
"""

OF_NODE: ContextVar[Breakpoints] = ContextVar("OF_NODE")
"""The breakpoints of the node whose actor runs."""

MOST_STEPS: Final = 1000
"""Nurseries between a task and that of its actor that are looked at."""

logger = own_logger("understudy.debug")

ASYNCIO_RUN: ContextVar[AsyncioRun] = ContextVar("ASYNCIO_RUN")
"""In a task of asyncio: the run of the method, or of the actor's own task, that the task belongs
to.
"""


class BlockingCall(Protocol):
    """Runs a function in trio, in the nursery of a task, and blocks a thread until it has ended."""

    def __call__(self, function: Callable[[], Awaitable[Any]], /) -> Any:
        """Return what the function returns. Raises an error if the task is cancelled meanwhile."""
        ...


@attrs.frozen
class AsyncioRun:
    """The task of trio for which code runs under asyncio, and the ways back to it."""

    task: trio.lowlevel.Task
    call: BlockingCall
    token: trio.lowlevel.TrioToken


class Breakpoints:
    """The debuggers of one node. `starting()`: the actor that the running code starts. `owner_of`:
    the actor whose own task a task is. `address`: where `understudy debug` finds the node.
    """

    def __init__(
        self,
        environment: Environment,
        nursery: trio.Nursery,
        workers: TaskWorkers,
        starting: Callable[[], ActorCell | None],
        owner_of: Callable[[trio.lowlevel.Task], str | None],
        address: str,
    ) -> None:
        self._environment = environment
        self._nursery = nursery
        self._workers = workers
        self._starting = starting
        self._owner_of = owner_of
        self.address = address
        self._number = 0
        self._open: dict[int, DebugConversation] = {}
        self._greenback = _greenback()

    async def prepare(self) -> None:
        """Let plain code in the running task await: once for each task that runs methods."""
        if self._greenback is not None:
            await self._greenback.ensure_portal()

    def inner_tasks(self) -> AbstractContextManager[object]:
        """While this is open, plain code may await in all tasks below the running one."""
        if self._greenback is None:
            return nullcontext()
        found: AbstractContextManager[object] = self._greenback.portals_for_children()
        return found

    def waiting(self, actor: str) -> list[DebugConversation]:
        """The breakpoints at which methods of this actor wait, the earliest first."""
        return [one for one in self._all() if one.actor == actor and one.what]

    def conversation(self, number: int) -> DebugConversation | None:
        """The debugger of this number; None if it has ended."""
        self._all()
        return self._open.get(number)

    def debug_failure(self, record: FailureRecord) -> DebugConversation | None:
        """Open a debugger of the frames of a failure; None if too many are open."""
        talk = self._opened(record.actor, "", "", None)
        if talk is not None:
            self._nursery.start_soon(self._debug_failure, talk, record, name="debugger")
        return talk

    async def _debug_failure(self, talk: DebugConversation, record: FailureRecord) -> None:
        debugger = RemotePdb(
            talk,
            partial(trio.from_thread.run, talk.next_line),
            within=lambda: False,
            over=lambda: True,
            on_loop=trio.from_thread.run_sync,
        )
        trace = _traceback(record)
        try:
            # Guarded: what values in the frames raise ends the debugger alone.
            with suppress(NoThreadError):
                await self._environment.in_thread(
                    partial(guarded, partial(debugger.post_mortem, trace), lambda error: None)
                )
        finally:
            talk.end()

    def stop(self, frame: FrameType) -> None:
        """Wait at a `breakpoint()` in this frame, in a thread or in a task."""
        if trio.lowlevel.in_trio_run():
            self._stop_task(frame)
            return
        run = ASYNCIO_RUN.get(None)
        if run is not None and _asyncio_task() is not None:
            self._stop_asyncio(frame, run)
            return
        invocation = invocation_of_thread()
        try:
            talk = trio.from_thread.run_sync(
                self._at_breakpoint, frame, _name_of(invocation), invocation
            )
        except RuntimeError:
            logger.warning("a breakpoint() in a thread of your own is passed over: %s", _at(frame))
            return
        if talk is None:
            return
        thread = threading.get_ident()
        STOPPED.set(talk)
        debugger = RemotePdb(
            talk,
            partial(trio.from_thread.run, talk.next_line),
            within=lambda: threading.get_ident() == thread,
            over=lambda: STOPPED.get(None) is not talk,
            on_loop=trio.from_thread.run_sync,
        )
        # The last statement: what follows it here would be traced.
        debugger.set_trace(frame)

    def _stop_task(self, frame: FrameType) -> None:
        greenback = self._greenback
        if greenback is None or not greenback.has_portal():
            why = (
                "install the extra `debug` (greenback)"
                if greenback is None
                else "it is not in a task of an actor"
            )
            logger.warning(
                "a breakpoint() on the event loop is passed over: %s: %s", _at(frame), why
            )
            return
        task = trio.lowlevel.current_task()
        invocation = self._workers.running.get(task)
        turn = task if invocation is None else invocation
        talk = self._at_breakpoint(frame, self._name_of_task(task), turn)
        if talk is None:
            return

        def read_line() -> str:
            # Only a method holds up others, which wait for its worker.
            with nullcontext() if invocation is None else self._workers.waiting_inside(invocation):
                line: str = greenback.await_(talk.next_line())
                return line

        def over() -> bool:
            if invocation is None:
                return bool(getattr(task.coro, "cr_frame", None) is None)
            return self._workers.running.get(task) is not invocation

        debugger = RemotePdb(
            talk,
            read_line,
            within=lambda: _running(task),
            over=over,
            on_loop=lambda function: function(),
        )
        # The last statement, as above.
        debugger.set_trace(frame)

    def _stop_asyncio(self, frame: FrameType, run: AsyncioRun) -> None:
        task = _asyncio_task()
        assert task is not None

        async def open_talk() -> DebugConversation | None:
            return self._at_breakpoint(frame, self._name_of_task(run.task), task)

        try:
            talk: DebugConversation | None = run.call(open_talk)
        except Exception:
            # Its method has ended, and what it has started in asyncio runs on.
            logger.warning("a breakpoint() after its method's end is passed over: %s", _at(frame))
            return
        if talk is None:
            return

        def read_line() -> str:
            try:
                return str(run.call(talk.next_line))
            except Exception:
                # The method was cancelled, which has ended the conversation: the code goes on, to
                # where asyncio cancels it.
                return ""

        def on_loop(function: Callable[[], None]) -> None:
            with suppress(trio.RunFinishedError):
                # The debugger runs in a thread: what touches the method's loop runs there.
                run.token.run_sync_soon(function)

        debugger = RemotePdb(
            talk,
            read_line,
            within=lambda: _asyncio_task() is task,
            over=task.done,
            on_loop=on_loop,
        )
        # The last statement, as above.
        debugger.set_trace(frame)

    def _name_of_task(self, task: trio.lowlevel.Task) -> tuple[str, str] | None:
        """The actor that a task belongs to, and the method, or what else it is."""
        inside: trio.lowlevel.Task | None = task
        for _ in range(MOST_STEPS):
            if inside is None:
                return None
            if (named := _name_of(self._workers.running.get(inside))) is not None:
                return named
            if (owner := self._owner_of(inside)) is not None:
                return owner, "a task of its own"
            through = inside.parent_nursery
            inside = None if through is None else through.parent_task
        return None

    def _at_breakpoint(
        self, frame: FrameType, named: tuple[str, str] | None, turn: object
    ) -> DebugConversation | None:
        starting = self._starting()
        # The tasks that `on_start` has started keep its context.
        if starting is not None and not starting.started:
            named = starting.address.name, "its start"
        if named is None:
            logger.warning("a breakpoint() outside of an actor is passed over: %s", _at(frame))
            return None
        actor, what = named
        for one in self._all():
            # It was stepped to this next breakpoint, which has a debugger of its own.
            if one.state == "running" and one.turn is turn:
                one.end()
        talk = self._opened(actor, what, _at(frame), turn)
        if talk is None:
            logger.warning(
                "a breakpoint() of %s is passed over: %d debuggers are open: %s",
                actor,
                MOST_DEBUGGERS,
                _at(frame),
            )
            return None
        logger.warning(
            "%s of %s waits at a breakpoint(), %s: understudy debug %s --address %s",
            what,
            actor,
            _at(frame),
            actor,
            self.address,
        )
        return talk

    def _opened(self, actor: str, what: str, place: str, turn: object) -> DebugConversation | None:
        if len(self._all()) >= MOST_DEBUGGERS:
            return None
        self._number += 1
        now = self._environment.wall_time()
        talk = DebugConversation(self._number, actor, what, place, now, turn)
        self._open[self._number] = talk
        assert len(self._open) <= MOST_DEBUGGERS
        return talk

    def _all(self) -> list[DebugConversation]:
        for number in [number for number, one in self._open.items() if one.state == "ended"]:
            # What it printed last is read by the answer to the line that has ended it.
            del self._open[number]
        return list(self._open.values())


@contextmanager
def breakpoint_hook() -> Iterator[None]:
    """While this is open, `breakpoint()` in an actor of a debuggable node waits for `understudy
    debug`. In all other code it does what it did before.
    """
    before = sys.breakpointhook

    def hook(*args: object, **kwargs: object) -> object:
        breakpoints = OF_NODE.get(None)
        if breakpoints is None:
            return before(*args, **kwargs)
        breakpoints.stop(sys._getframe(1))
        return None

    with _installed(hook):
        yield


@contextmanager
def breakpoints_passed_over() -> Iterator[None]:
    """While this is open, `breakpoint()` is a line of the log, once for each place, and the code
    goes on: for a process that is there for a node alone which is not debuggable. Python's pdb
    would read from the terminal or the service manager of the node, and block its event loop.
    Hooks of the user's, `PYTHONBREAKPOINT` among them, stay.
    """
    before = sys.breakpointhook
    if before is not sys.__breakpointhook__ or "PYTHONBREAKPOINT" in os.environ:
        yield
        return
    logged: set[str] = set()

    def hook(*args: object, **kwargs: object) -> None:
        place = _at(sys._getframe(1))
        if place not in logged:
            logged.add(place)
            logger.warning(
                "a breakpoint() is passed over, because the node was not started with "
                "--debuggable: %s",
                place,
            )

    with _installed(hook):
        yield


@contextmanager
def _installed(hook: Callable[..., object]) -> Iterator[None]:
    before, sys.breakpointhook = sys.breakpointhook, hook
    try:
        yield
    finally:
        # Nodes of one process may close in any order.
        if sys.breakpointhook is hook:
            sys.breakpointhook = before


def _greenback() -> ModuleType | None:
    if importlib.util.find_spec("greenback") is None:
        return None
    import greenback

    return greenback


def _running(task: trio.lowlevel.Task) -> bool:
    try:
        return trio.lowlevel.current_task() is task
    except RuntimeError:
        # Between two tasks.
        return False


def _asyncio_task() -> asyncio.Task[Any] | None:
    """The task of asyncio that this thread runs."""
    # Not imported for its own sake: most nodes never need it.
    module = sys.modules.get("asyncio")
    if module is None:
        return None
    try:
        task: asyncio.Task[Any] | None = module.current_task()
    except RuntimeError:
        return None
    return task


def _name_of(invocation: Invocation | None) -> tuple[str, str] | None:
    return (
        None if invocation is None else (invocation.cell.address.name, invocation.definition.name)
    )


def _at(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _traceback(record: FailureRecord) -> TracebackType:
    trace: TracebackType | None = None
    for frame, recorded in zip(reversed(record.live), reversed(record.frames), strict=True):
        trace = TracebackType(trace, frame, max(frame.f_lasti, 0), recorded.line)
    assert trace is not None, "a failure without frames is not kept"
    return trace
