"""trio on a virtual clock, with one seed for the order of tasks, and processes that can be stopped
between two steps.

Everything in here that is not a process of the simulation (the network, the faults, the scenario)
belongs to none and is never stopped.

This is the only module that uses private names of trio, so that there is one place to look when
they change: the flag that makes the order of tasks depend on a seed, the queue of tasks that are
ready, the order in which what is cancelled together is, and the part that waits for the operating
system, which a simulation never does. `check_trio` names what is missing.
"""

from __future__ import annotations

import gc
import heapq
import itertools
import math
import os
import random
import sys
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import attrs
import trio
from trio._core import _run

from runtime.user_errors import is_interrupt

T = TypeVar("T")

POLL_EVERY = 1_000
"""Rounds between two polls of the operating system, so that Ctrl-C works."""

PROCESS: ContextVar[Stoppable | None] = ContextVar("PROCESS", default=None)
"""The process that a task belongs to. Tasks inherit it from the task that starts them."""

MARK = "understudy_simulates"


@attrs.define(eq=False)
class Stoppable:
    """The tasks of one simulated process. While it is `stopped`, none of them takes a step,
    whatever wakes them, as after SIGSTOP.
    """

    stopped: bool = False
    held: list[trio.lowlevel.Task] = attrs.field(factory=list)

    def stop(self) -> None:
        """Stop: no task takes another step, not even those that are ready."""
        self.stopped = True
        # A new queue from the old one, so that tasks which are ready already are held as well.
        runner = _runner()
        runner.runq = _ReadyTask(runner.runq)

    def resume(self) -> None:
        """Go on: tasks that were woken meanwhile run now, the others when they are woken."""
        assert self.stopped or not self.held, "only tasks of a stopped process are held"
        self.stopped = False
        held, self.held = self.held, []
        # `extend` of a deque does not call `append`; nothing of this process is held any more.
        _runner().runq.extend(held)


@contextmanager
def belonging_to(process: Stoppable | None) -> Iterator[None]:
    """Let tasks that are started in this block belong to `process`."""
    token = PROCESS.set(process)
    try:
        yield
    finally:
        PROCESS.reset(token)


class VirtualClock(trio.abc.Clock):
    """Seconds since the run began. Time passes only when no task can take a step; then it jumps to
    the next deadline or scheduled call.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Call a function at a time, between the steps of tasks, ordered by time and then by the
        order of these requests.
        """
        heapq.heappush(self._due, (when, next(self._order), action))

    def advance(self, until: float) -> None:
        """Advance the clock to the next scheduled call, but not beyond `until`, and make the
        call.
        """
        due = self._due
        if due and due[0][0] < until:
            until = max(due[0][0], self.now)
        assert until >= self.now, "virtual time never goes back"
        self.now = until
        while due and due[0][0] <= until:
            heapq.heappop(due)[2]()

    @property
    def is_idle(self) -> bool:
        """True if no call is scheduled."""
        return not self._due

    def start_clock(self) -> None:
        """Nothing to start."""

    def current_time(self) -> float:
        """The virtual time, in seconds."""
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return the virtual seconds from now to `deadline`."""
        return deadline - self.now


class _ReadyTask(deque[trio.lowlevel.Task]):
    """The queue of ready tasks without those of stopped processes. It replaces trio's own queue
    when the first task is ready.
    """

    def __init__(self, tasks: Iterable[trio.lowlevel.Task]) -> None:
        super().__init__()
        for task in tasks:
            self.append(task)

    def append(self, task: trio.lowlevel.Task, /) -> None:
        process = task.context.get(PROCESS)
        if process is not None and process.stopped:
            process.held.append(task)
        else:
            super().append(task)


class _Outside:
    """Replaces trio's wait for the operating system. Nothing comes from there, so the clock
    advances instead.
    """

    def __init__(
        self, real: Any, runner: Any, clock: VirtualClock, pump: Callable[[], None] | None
    ) -> None:
        self._real = real
        self._runner = runner
        self._clock = clock
        self._pump = pump
        self._rounds = 0
        # Asked for in each round, so not by way of `__getattr__`.
        self.process_events = real.process_events

    def get_events(self, timeout: float) -> Any:
        clock = self._clock
        if self._pump is not None:
            self._pump()
            if self._runner.runq:
                # The call has made tasks ready. They must run before time passes.
                timeout = 0.0
        if timeout > 0:
            until = self._runner.deadlines.next_deadline()
            if until == math.inf and clock.is_idle:
                # Nothing will happen by itself any more. trio's own end asks to be woken through
                # the operating system.
                return self._real.get_events(timeout)
            # Jump to the deadline itself: adding differences could miss it by a rounding error.
            clock.advance(until if until - clock.now <= timeout else clock.now + timeout)
        else:
            clock.advance(clock.now)
        self._rounds += 1
        if self._rounds % POLL_EVERY == 0:
            return self._real.get_events(0)
        return []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def check_trio() -> None:
    """Check that this module can drive the installed trio. Raises RuntimeError if not."""
    names = (
        "_ALLOW_DETERMINISTIC_SCHEDULING",
        "_r",
        "GLOBAL_RUN_CONTEXT",
        "CancelStatus",
        "Deadlines",
    )
    missing = [name for name in names if not hasattr(_run, name)]
    missing += [name for name in ("_abort_func", "_attempt_abort") if not hasattr(_run.Task, name)]
    if missing:
        raise RuntimeError(
            f"trio {trio.__version__} cannot run simulations: it has no {', '.join(missing)}; "
            "install a version that this release names"
        )


@contextmanager
def ordered_by(seed: int) -> Iterator[None]:
    """Let the run of trio that begins in this block order the steps of its tasks by `seed`, and
    what is cancelled together by its begin. Raises RuntimeError for a trio that it cannot drive.
    """
    check_trio()
    with _seeded(seed), _in_order():
        yield


def run(
    seed: int,
    main: Callable[[VirtualClock], Awaitable[T]],
    pump: Callable[[], None] | None = None,
) -> T:
    """Run `main(clock)` on a virtual clock; the order in which tasks take their steps depends
    only on `seed`.

    Real time, threads, sockets and processes must not be used in there. Garbage is collected before
    and after, never meanwhile: when that happens would depend on what ran earlier in this process.
    Tracebacks name files by the paths that modules have below the directories of `sys.path`.
    `pump` is called before time passes, and may start tasks that come from outside; while it
    blocks, the simulation stands still. Ctrl-C is raised as a bare `KeyboardInterrupt`.
    """
    clock = VirtualClock()

    async def within() -> T:
        runner = _runner()
        runner.io_manager = _Outside(runner.io_manager, runner, clock, pump)
        return await main(clock)

    with ordered_by(seed), _no_garbage(), _portable_paths():
        try:
            return trio.run(within, clock=clock)
        except BaseExceptionGroup as group:
            # Ctrl-C, which trio raises in its main task, in the groups of our nurseries: pytest,
            # for one, would take it for a failure of the test, and go on with the next.
            if is_interrupt(group):
                raise KeyboardInterrupt from group
            raise


def interrupt_wait(task: trio.lowlevel.Task, interrupt: Callable[[], object]) -> bool:
    """Let `interrupt` raise its error where the task waits, as trio does to its main task on
    Ctrl-C. False if it does not wait, or may not be interrupted there.
    """
    waiting: Any = task
    if waiting._abort_func is None:
        return False
    waiting._attempt_abort(interrupt)
    return waiting._abort_func is None


def _runner() -> Any:
    context: Any = _run.GLOBAL_RUN_CONTEXT
    return context.runner


class _RandomOfThread:
    """trio's random numbers during a simulation: those of the seed in the thread that simulates,
    and others in all other threads. An event loop in another thread, such as that of
    `runtime.blocking`, would otherwise take numbers away, at times that real clocks decide.
    """

    def __init__(self, seed: int, elsewhere: random.Random) -> None:
        self._seeded = random.Random(seed)
        self._elsewhere = elsewhere

    def shuffle(self, batch: list[Any]) -> None:
        """Shuffle the tasks of one round. Most rounds have one, which takes no number."""
        if len(batch) > 1:
            (self._seeded if _simulates() else self._elsewhere).shuffle(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._seeded if _simulates() else self._elsewhere, name)


def _simulates() -> bool:
    # trio's record of the run of this thread. `run` marks it; trio clears it when the run ends.
    return hasattr(_run.GLOBAL_RUN_CONTEXT, MARK)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    scheduler: Any = _run
    allowed, usual = scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    scheduler._r = _RandomOfThread(seed, usual)
    setattr(_run.GLOBAL_RUN_CONTEXT, MARK, True)
    try:
        yield
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = allowed
        scheduler._r = usual
        if _simulates():
            delattr(_run.GLOBAL_RUN_CONTEXT, MARK)


class _OrderedSet(dict[Any, None]):
    """A set, as far as trio needs one, that keeps insertion order."""

    # Methods of the dict itself: trio adds and removes a task at each border of a cancel scope.
    add = dict.setdefault
    remove = dict.__delitem__


@contextmanager
def _in_order() -> Iterator[None]:
    """Cancel tasks that are cancelled together, or at the same time, in the order in which they
    began. trio keeps them in sets, and breaks ties in a heap by addresses of objects, so the memory
    layout of the process would decide.
    """
    status: Any = _run.CancelStatus
    deadlines: Any = _run.Deadlines
    begin, children, add = status.__attrs_post_init__, status.children, deadlines.add
    ties = itertools.count()

    def begin_in_order(self: Any) -> None:
        self._children, self._tasks = _OrderedSet(), _OrderedSet()
        begin(self)

    def add_in_order(self: Any, deadline: float, scope: trio.CancelScope) -> None:
        heapq.heappush(self._heap, (deadline, next(ties), scope))
        self._active += 1

    status.__attrs_post_init__, status.children = (
        begin_in_order,
        property(lambda self: tuple(self._children)),
    )
    deadlines.add = add_in_order
    try:
        yield
    finally:
        status.__attrs_post_init__, status.children = begin, children
        deadlines.add = add


@contextmanager
def _no_garbage() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _portable_paths() -> Iterator[None]:
    """Let the texts of tracebacks name files by their paths below the directories that modules are
    imported from: `runtime/node/node.py`.

    Actors' exceptions travel with their tracebacks. Where the files lie would decide how long the
    messages are, and with that what is acknowledged when: a seed would break a promise in one
    directory and keep it in another.
    """
    summary: Any = traceback.StackSummary
    usual = summary.format_frame_summary
    # The innermost of two directories that are in each other.
    places = sorted(_import_places(), key=len, reverse=True)

    def format_portably(self: object, frame: traceback.FrameSummary, **options: object) -> str:
        text: str = usual(self, frame, **options)
        place = next(filter(frame.filename.startswith, places), "")
        return text.replace(frame.filename, frame.filename[len(place) :], 1)

    summary.format_frame_summary = format_portably
    try:
        yield
    finally:
        summary.format_frame_summary = usual


def _import_places() -> set[str]:
    own = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    places = {os.path.abspath(place) for place in (own, *sys.path)}
    return {os.path.join(place, "") for place in places if os.path.dirname(place) != place}
