"""The event loop of a process's doors: one thread, which is started at the first use and ends with
the program, however that ends.

An `OpenBlock` is one block that is entered in it, such as that of `open_node`, with a portal for
what is asked of it from other threads.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Generic, TypeVar

import trio

from actors.errors import ForkedProcessError, NotAMemberError
from runtime.doors.handoff import Handoff
from runtime.doors.portal import Portal

T = TypeVar("T")

LOOP = "the event loop of this process's connections"

NEEDS_SPARE_THREADS: Final = (3, 12, 0) <= sys.version_info[:3] <= (3, 12, 1)
"""These versions of Python start no thread once the main thread has ended, and that is when open
connections are closed. Later versions start threads until the last thread that is no daemon has
ended (python/cpython#113964).
"""

SPARE_THREADS = 4
"""Threads that are kept for the end of a program: for the store on disk, `on_stop`s that are plain
functions, and the like.
"""

SPARE_SECONDS = 5.0
"""Between two uses of the spare threads: trio ends those that were idle for ten seconds."""


def keep_spare_threads() -> None:
    """Have trio keep threads for `to_thread.run_sync` for ten seconds more, some of which are new
    if need be. Does not wait for them.
    """
    # Each needs a thread of its own, for none of them returns before all are there.
    all_there = threading.Barrier(SPARE_THREADS)
    for _ in range(SPARE_THREADS):
        try:
            trio.lowlevel.start_thread_soon(
                lambda: all_there.wait(SPARE_SECONDS), lambda outcome: None, "understudy spare"
            )
        except RuntimeError:
            # The main thread has ended, and one of the threads has work.
            all_there.abort()
            return


class DoorLoop:
    """A trio run in a thread. The thread, and one that waits for the program's end, keep the
    interpreter from exiting until all sessions are closed.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._sessions: set[OpenBlock[Any]] = set()
        self._stopping: trio.Event
        self._stopped: trio.Event
        self._portal: Portal
        self._begun = threading.Event()
        # No daemon thread: the interpreter stops those in the middle of a step when it exits. Then
        # the node would not leave, and the cluster would wait until its lease has run out.
        self._thread = threading.Thread(target=self._run, name="understudy loop")
        self._watcher = threading.Thread(target=self._watch, name="understudy exit")

    def start(self) -> None:
        """Start the threads; called once. Returns when requests are taken."""
        self._thread.start()
        self._begun.wait()
        # After the loop's thread, whose portal it uses.
        self._watcher.start()

    @property
    def portal(self) -> Portal:
        """The portal for requests that belong to no session, such as opening one."""
        return self._portal

    def add(self, session: OpenBlock[T]) -> None:
        """Enter a session that is to be closed, at the latest, at the program's end. Raises
        NotAMemberError if the program is ending. Call it in the loop's thread.
        """
        if self._stopping.is_set():
            raise NotAMemberError("the program is ending, so no more connections can be opened")
        self._sessions.add(session)

    def discard(self, session: OpenBlock[T]) -> None:
        """Remove a session that is closed. Call it in the loop's thread."""
        self._sessions.discard(session)
        self._end_if_idle()

    def blocks(self) -> tuple[OpenBlock[Any], ...]:
        """The sessions that are open now. From any thread."""
        # One step under the interpreter's lock, though the loop's thread changes the set meanwhile.
        return tuple(self._sessions)

    def _run(self) -> None:
        try:
            trio.run(self._main)
        finally:
            # Also if the loop could not begin: `start` must not wait for ever.
            self._begun.set()

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            self._stopping, self._stopped = trio.Event(), trio.Event()
            self._portal = Portal(trio.lowlevel.current_trio_token(), nursery, LOOP)
            self._begun.set()
            try:
                await self._stopping.wait()
                self._end_if_idle()
                # Each is bounded by itself.
                await self._stopped.wait()
            finally:
                self._portal.close()

    def _end_if_idle(self) -> None:
        if self._stopping.is_set() and not self._sessions:
            self._stopped.set()

    def _watch(self) -> None:
        # `atexit` would come too late: from Python 3.12 on no thread can be started any more then,
        # and closing may need one. This is when `threading` waits for the threads of the program.
        # Those may use their connections for as long as they run.
        main = threading.main_thread()
        _wait_for(main)
        while others := [
            thread
            for thread in threading.enumerate()
            if not thread.daemon and thread not in (main, self._thread, self._watcher)
        ]:
            _wait_for(others[0])
        self._portal.soon(self._stop)

    def _stop(self) -> None:
        # No session comes after this: see `add`.
        self._stopping.set()
        for session in tuple(self._sessions):
            session.ask_to_close()


def _wait_for(thread: threading.Thread) -> None:
    while NEEDS_SPARE_THREADS and thread.is_alive():
        keep_spare_threads()
        thread.join(SPARE_SECONDS)
    thread.join()


class ProcessLoop:
    """The one `DoorLoop` of this process. Each process forked from it gets one of its own."""

    def __init__(self) -> None:
        self._loop: DoorLoop | None = None
        # Reentrant: a signal handler may connect, and may interrupt the thread that has it.
        self._lock = threading.RLock()
        os.register_at_fork(after_in_child=self._forked)

    def loop(self) -> DoorLoop:
        """The thread, started if need be. Raises NotAMemberError while the interpreter exits."""
        with self._lock:
            if self._loop is None:
                if sys.is_finalizing() or not threading.main_thread().is_alive():
                    raise NotAMemberError(
                        "the program is ending, so no more connections can be opened"
                    )
                loop = DoorLoop()
                loop.start()
                # Only now: what a signal handler interrupts leaves no thread half started.
                self._loop = loop
            return self._loop

    def blocks(self) -> tuple[OpenBlock[Any], ...]:
        """Return the blocks that are open in this process. Starts nothing."""
        return () if self._loop is None else self._loop.blocks()

    def _forked(self) -> None:
        # The lock may be held by a thread that the child does not have.
        self._lock = threading.RLock()
        self._loop = None


PROCESS_LOOP: Final = ProcessLoop()
"""A process has one: connections share its thread, whatever opens them."""


class OpenBlock(Generic[T]):
    """One open block in the loop of this process. `opening()` enters it; `what` names it in errors.
    `over` returns, with the reason as a part of a sentence, when what was opened has ended by
    itself: then the block is left at once, and not at the next use. `handoff`: for its portal.

    Call its functions in the loop's thread, through the loop's portal; `begin`, `check` and
    `give_up` may be called in any thread.
    """

    def __init__(
        self,
        opening: Callable[[], AbstractAsyncContextManager[T]],
        what: str,
        over: Callable[[T], Awaitable[str]],
        handoff: Handoff | None = None,
    ) -> None:
        self._opening = opening
        self._what = what
        self._over = over
        self._handoff = handoff
        self._why = ""
        self._pid = os.getpid()
        self._closing = trio.Event()
        self._ended = trio.Event()
        self._error: BaseException | None = None
        self.loop: DoorLoop
        self.opened: T
        """The object that the block has opened. Only after `open`."""
        self.portal: Portal
        """Runs what is asked of it. Only after `open`."""

    @property
    def what(self) -> str:
        """The name of the block in errors."""
        return self._what

    def begin(self) -> Portal:
        """Start the loop if need be; returns its portal, through which to `open` and `close`."""
        self.loop = PROCESS_LOOP.loop()
        return self.loop.portal

    def check(self) -> None:
        """Raises ForkedProcessError in a process that was forked after this was opened."""
        if self._pid != os.getpid():
            raise ForkedProcessError(
                f"{self._what} belongs to process {self._pid}, of which this process, "
                f"{os.getpid()}, is a fork; connect again in this process, for example in the "
                "hook that your server runs after its fork"
            )

    def give_up(self) -> None:
        """Request that the block is left, or not entered. Does not wait, and may be called in any
        thread.
        """
        try:
            self.loop.portal.soon(self._closing.set)
        except NotAMemberError:
            pass

    async def open(self) -> None:
        """Enter the block. Raises what entering raises."""
        await self.loop.portal.nursery.start(self._stay_open)

    def ask_to_close(self) -> None:
        """Leave the block soon, also if it is about to be entered. Asking twice is asking once."""
        self._closing.set()

    async def close(self) -> None:
        """Leave the block, and wait until it is left. Raises what leaving raises, once."""
        self._closing.set()
        await self._ended.wait()
        error, self._error = self._error, None
        if error is not None:
            raise error

    async def _stay_open(self, *, task_status: trio.TaskStatus[None]) -> None:
        # Before the block is entered: the end of the program waits for this, or refuses it.
        self.loop.add(self)
        started = False
        try:
            async with self._opening() as opened, trio.open_nursery() as nursery:
                self.opened = opened
                self.portal = Portal(
                    self.loop.portal.token,
                    nursery,
                    self._what,
                    handoff=self._handoff,
                    without_tasks=True,
                )
                try:
                    started = True
                    nursery.start_soon(self._watch_end, opened)
                    task_status.started()
                    await self._closing.wait()
                finally:
                    # Before the block is left: what is under way is cancelled where it runs.
                    self.portal.close()
        except Exception as error:
            if not started:
                raise
            # Kept for the thread that closes the block: no task waits for this one. If the block
            # had ended by itself, every use of it says so, and closing it is no failure.
            if not self._why:
                self._error = error
        finally:
            # Set before the block is discarded, which may end the loop, and with it all tasks that
            # still wait in `close`.
            self._ended.set()
            self.loop.discard(self)

    async def _watch_end(self, opened: T) -> None:
        # The reason is set before the block is left: requests that are refused from then on name
        # it.
        self._why = self.portal.why = await self._over(opened)
        self._closing.set()
