"""The queue of constructors that wait for a thread, several of which run in one visit to it.

A constructor of a few lines takes a microsecond, and the way to a thread and back a hundred. So one
that comes while another one runs waits in a queue, and a thread that has run one goes on with the
next. A constructor that blocks holds up the others for a moment only: those that wait behind
it get further threads, twice as many after each millisecond.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any

import trio

from runtime.environment import Environment
from runtime.hosting.start_scope import StartScope
from runtime.user_errors import Ran

LOOK_SECONDS = 0.001
"""How often the queue is looked at while threads run constructors: whether it moves, and what has
ended.
"""

FEW_ENDED = 8
"""Constructors that have ended between two looks, at the most, where those that wait get further
threads: they take longer than the way to a thread and back.
"""


class _Construction:
    """A constructor in the queue, with the context and the task that it belongs to."""

    __slots__ = ("context", "function", "ran", "task")

    def __init__(self, function: Callable[[], Any], task: trio.lowlevel.Task) -> None:
        self.function = function
        self.context: Context = copy_context()
        self.task: trio.lowlevel.Task | None = task
        """None once it goes on, perhaps because it was cancelled."""
        self.ran: Ran[Any] | None = None

    @trio.lowlevel.enable_ki_protection
    def wake(self) -> None:
        """Let its task go on, unless it does already."""
        task, self.task = self.task, None
        if task is not None:
            trio.lowlevel.reschedule(task)


class _Visit:
    """A visit to a thread. `begun` and `ran`, the constructors that it has run, are set there, and
    `abandoned` on the loop.
    """

    __slots__ = ("abandoned", "begun", "ran")

    def __init__(self) -> None:
        self.begun = False
        self.abandoned = False
        self.ran = 0


class ConstructorQueue:
    """Runs constructors in threads, `limiter` of them at most. All but `_work` is called on the
    loop. The queue is looked at every `look_seconds`. Visits belong to tasks of `nursery`: once
    that is cancelled, each constructor has a thread of its own.
    """

    def __init__(
        self,
        environment: Environment,
        nursery: trio.Nursery,
        limiter: trio.CapacityLimiter,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._environment = environment
        self._nursery = nursery
        self._look_seconds = look_seconds
        self._limiter = limiter
        # A visit runs constructors of several tasks, and has the context of none of them.
        self._context = copy_context()
        self._alone = 0
        """Constructors that run in a thread of their own, because no other one ran."""
        # Both are used by the loop and by threads, each at one end: their steps are atomic.
        self._waiting: deque[_Construction] = deque()
        self._ended: deque[_Construction] = deque()
        self._delivered = 0
        self._visits: set[_Visit] = set()
        self._shared = False
        """True if the last visit to end has run several: the next one is likely to come with others
        again, and waits for them.
        """
        self._looked_after = False

    async def run(self, function: Callable[[], Any], scope: StartScope) -> Any:
        """Return what `function` returns in a thread. Raises what it raises. It is abandoned when
        cancelled, by `scope` or otherwise, and not begun if it still waits.
        """
        # While there are visits, their tasks notice that the node ends, and give back what waits.
        if self._visits or (
            (self._alone or self._shared) and not self._nursery.cancel_scope.cancel_called
        ):
            return await self._run_in_turn(function, scope)
        return await self._run_alone(function, scope)

    async def _run_alone(self, function: Callable[[], Any], scope: StartScope) -> Any:
        scope.enter()
        self._alone += 1
        try:
            return await self._environment.in_thread(function, self._limiter, abandon=True)
        finally:
            self._alone -= 1

    @trio.lowlevel.enable_ki_protection
    async def _run_in_turn(self, function: Callable[[], Any], scope: StartScope) -> Any:
        await trio.lowlevel.checkpoint_if_cancelled()
        waiting = _Construction(function, trio.lowlevel.current_task())
        self._waiting.append(waiting)
        if not self._visits:
            self._begin_visit()

        def abort(raise_cancel: Callable[[], object]) -> trio.lowlevel.Abort:
            waiting.task = None
            return trio.lowlevel.Abort.SUCCEEDED

        scope.wake_by(waiting.wake)
        await trio.lowlevel.wait_task_rescheduled(abort)
        if waiting.ran is None:
            # Its node has ended meanwhile, and no visit will take it; or the scope was cancelled,
            # and is entered now: the next checkpoint raises, before the function begins.
            return await self._run_alone(function, scope)
        return waiting.ran.value()

    def _begin_visit(self) -> None:
        visit = _Visit()
        self._visits.add(visit)
        self._start(self._visit, visit)
        if not self._looked_after:
            self._looked_after = True
            self._start(self._look_after)

    def _start(self, function: Callable[..., Awaitable[None]], *args: object) -> None:
        self._context.run(partial(self._nursery.start_soon, function, *args, name="constructors"))

    async def _visit(self, visit: _Visit) -> None:
        token = trio.lowlevel.current_trio_token()
        try:
            await self._environment.in_thread(
                lambda: self._work(visit, token), self._limiter, abandon=True
            )
        except Exception as error:
            # The system grants no more threads; code of users has not run.
            self._refuse_waiting(error)
        except trio.Cancelled:
            # The node ends. The thread goes on with the constructor that it runs, and with no other
            # one. Some of those that wait belong to tasks which are not cancelled.
            visit.abandoned = True
            self._give_back_waiting()
            raise
        finally:
            self._visits.discard(visit)
            self._shared = visit.ran > 1
            self._deliver()
        # Perhaps one came when the thread was about to end.
        if self._waiting and self._all_begun():
            self._begin_visit()

    def _all_begun(self) -> bool:
        return all(visit.begun for visit in self._visits)

    def _refuse_waiting(self, error: Exception) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            waiting.ran = Ran(lambda: _raise(error))
            self._ended.append(waiting)

    def _give_back_waiting(self) -> None:
        while self._waiting:
            self._waiting.popleft().wake()

    def _work(self, visit: _Visit, token: trio.lowlevel.TrioToken) -> None:
        """In the thread."""
        visit.begun = True
        while not visit.abandoned:
            try:
                waiting = self._waiting.popleft()
            except IndexError:
                return
            if waiting.task is not None:
                visit.ran += 1
                waiting.ran = waiting.context.run(Ran, waiting.function)
                self._ended.append(waiting)
        # No task of the queue is left that would deliver it.
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(self._deliver)

    def _deliver(self) -> None:
        while self._ended:
            ended = self._ended.popleft()
            self._delivered += 1
            # A task that was cancelled meanwhile goes on already.
            ended.wake()

    async def _look_after(self) -> None:
        while self._visits:
            before = self._delivered
            await trio.sleep(self._look_seconds)
            self._deliver()
            # A visit that has no thread yet, because of the limit or of the system, will take the
            # next one; more of them would only wait with it. Twice as many each time, and not as
            # many as wait: perhaps the threads only wait for a processor.
            if self._delivered - before <= FEW_ENDED and self._all_begun():
                for _ in range(min(len(self._waiting), len(self._visits))):
                    self._begin_visit()
        self._looked_after = False


def _raise(error: Exception) -> None:
    raise error
