"""`breakpoint()` in an actor's method, and debuggers of failures that are kept: only in nodes that
were opened with `debuggable`. `understudy debug` talks to them.

A plain method waits in its thread. An `async def` method waits in its task, while the event loop
goes on: greenback lets plain code inside a task await something. A breakpoint that cannot wait, or
that is one too many, is a line of the log, and the code goes on.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import FrameType, ModuleType, TracebackType
from typing import Final

import trio

from runtime.environment import Environment
from runtime.hosting.cell import ActorCell, Invocation
from runtime.hosting.debug_conversation import DebugConversation
from runtime.hosting.post_mortem import FailureRecord
from runtime.hosting.remote_pdb import RemotePdb
from runtime.hosting.threads import THREAD_TURN
from runtime.hosting.workers import TaskWorkers
from runtime.user_errors import guarded

MOST_DEBUGGERS: Final = 16
"""Debuggers of one node that are open at once."""

STOPPED: ContextVar[DebugConversation] = ContextVar("STOPPED")
"""In a thread that has waited at a breakpoint: the conversation of the last one. A thread is used
for others later, and their context has none.
"""

OF_NODE: ContextVar[Breakpoints] = ContextVar("OF_NODE")
"""The breakpoints of the node whose actor runs."""

logger = logging.getLogger("understudy.debug")


class Breakpoints:
    """The debuggers of one node. `starting()`: the actor that the running code starts. `address`:
    where `understudy debug` finds the node.
    """

    def __init__(
        self,
        environment: Environment,
        nursery: trio.Nursery,
        workers: TaskWorkers,
        starting: Callable[[], ActorCell | None],
        address: str,
    ) -> None:
        self._environment = environment
        self._nursery = nursery
        self._workers = workers
        self._starting = starting
        self.address = address
        self._number = 0
        self._open: dict[int, DebugConversation] = {}
        self._greenback = _greenback()

    async def prepare(self) -> None:
        """Let plain code in the running task await: once for each task that runs methods."""
        if self._greenback is not None:
            await self._greenback.ensure_portal()

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
        try:
            talk = trio.from_thread.run_sync(self._at_breakpoint, frame, THREAD_TURN.get(None))
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
                else "it is not in a method, but in a task of your own"
            )
            logger.warning(
                "a breakpoint() on the event loop is passed over: %s: %s", _at(frame), why
            )
            return
        task = trio.lowlevel.current_task()
        job = self._workers.running.get(task)
        talk = None if job is None else self._at_breakpoint(frame, job)
        if job is None or talk is None:
            return

        def read_line() -> str:
            with self._workers.waiting_inside(job):
                line: str = greenback.await_(talk.next_line())
                return line

        debugger = RemotePdb(
            talk,
            read_line,
            within=lambda: _running(task),
            over=lambda: self._workers.running.get(task) is not job,
            on_loop=lambda function: function(),
        )
        # The last statement, as above.
        debugger.set_trace(frame)

    def _at_breakpoint(self, frame: FrameType, job: Invocation | None) -> DebugConversation | None:
        starting = self._starting()
        if starting is not None:
            actor, what = starting.address.name, "its start"
        elif job is not None:
            actor, what = job.cell.address.name, job.definition.name
        else:
            logger.warning("a breakpoint() outside of a method is passed over: %s", _at(frame))
            return None
        for one in self._all():
            # It was stepped to this next breakpoint, which has a debugger of its own.
            if one.state == "running" and one.turn is job:
                one.end()
        talk = self._opened(actor, what, _at(frame), job)
        if talk is None:
            logger.warning(
                "a breakpoint() of %s is passed over: %d debuggers are open: %s",
                *(actor, MOST_DEBUGGERS, _at(frame)),
            )
            return None
        logger.warning(
            "%s of %s waits at a breakpoint(), %s: understudy debug %s --address %s",
            *(what, actor, _at(frame), actor, self.address),
        )
        return talk

    def _opened(
        self, actor: str, what: str, place: str, turn: Invocation | None
    ) -> DebugConversation | None:
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

    sys.breakpointhook = hook
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


def _at(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _traceback(record: FailureRecord) -> TracebackType:
    trace: TracebackType | None = None
    for frame, told in zip(reversed(record.live), reversed(record.frames), strict=True):
        trace = TracebackType(trace, frame, max(frame.f_lasti, 0), told.line)
    assert trace is not None, "a failure without frames is not kept"
    return trace
