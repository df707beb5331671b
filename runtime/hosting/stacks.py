"""What the tasks and threads of an event loop are doing, line by line, without stopping it.

Everything is read in the loop's own thread, from the coroutines that its tasks wait in: nothing is
attached to the process, so no right to trace it is needed. What is read is bounded, because a node
may have a hundred thousand tasks and code may recurse.

`stackscope` reads stacks of trio as well, and more of them. It is not used, because a plain install
must be able to answer: you cannot add a package to a node that misbehaves.
"""

from __future__ import annotations

import gc
import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any, cast

import attrs
import trio

from actors.actor import Actor
from actors.class_names import class_name
from runtime.hosting.cell import ActorCell, Invocation
from runtime.hosting.lazy_nursery import LazyNursery
from runtime.hosting.loop_watch import outwards, running_code
from runtime.hosting.orderly_stop import on_stop_of, run_on_stop
from runtime.hosting.own_context import STEPPED_BY_HAND
from runtime.hosting.starts import STARTING
from runtime.source_lines import known_line, module_of
from runtime.user_errors import guarded, is_machinery

MOST_FRAMES = 40
"""Frames of one stack in an answer: the outermost and the innermost, as many of each."""

MOST_TASKS = 500
"""Tasks in one answer."""

MOST_THREADS = 200

MOST_LINE = 200
"""Characters of a source line in an answer."""

_NURSERY_CODE = LazyNursery.run.__code__

_TRAPS = trio.lowlevel.wait_task_rescheduled.__code__.co_filename

_OPAQUE = frozenset(
    {"async_generator_asend", "async_generator_athrow", "coroutine_wrapper", "anext_awaitable"}
)

_WAY_IN = ("runtime.", "actors.", "greenback.", "outcome.", "trio.")
_DEBUGGER = frozenset({"runtime.hosting.breakpoints", "runtime.hosting.remote_pdb"})


@attrs.frozen
class StackLine:
    """One frame of a stack. `source`: the text of its line, empty if the file cannot be read."""

    file: str
    line: int
    function: str
    source: str

    def plain(self) -> list[object]:
        """Return the frame as plain data."""
        return [self.file, self.line, self.function, self.source]


class StackReader:
    """Reads the stacks of the loop that calls it. `running`: which invocation runs in which
    task; `starting`: which actor a task starts.
    """

    def __init__(
        self,
        running: Mapping[trio.lowlevel.Task, Invocation],
        starting: Mapping[trio.lowlevel.Task, ActorCell],
        now: float,
    ) -> None:
        self._running = running
        self._starting = starting
        self._now = now

    def tasks(
        self, actor: str | None, root: trio.lowlevel.Task | None = None
    ) -> tuple[list[dict[str, object]], int]:
        """The tasks of the loop, or those that work for one actor, each with its stack; and how
        many were left out. Tasks of actors come first. `root`: only those below this one.
        """
        root = root or trio.lowlevel.current_root_task()
        found = [] if root is None else list(self._all_tasks(root))
        chosen = [one for one in found if actor is None or one[1] == actor]
        chosen.sort(key=lambda one: one[1] == "")
        listed = [self._plain_task(*one) for one in chosen[:MOST_TASKS]]
        return listed, len(chosen) - len(listed)

    def _all_tasks(
        self, root: trio.lowlevel.Task
    ) -> Iterator[tuple[trio.lowlevel.Task, str, Invocation | None]]:
        """Each task with the actor it works for, "" for the runtime's own, and its invocation.

        A task that a method started in a nursery works for the method's actor, too.
        """
        waiting: list[tuple[trio.lowlevel.Task, str]] = [(root, "")]
        while waiting:
            task, actor = waiting.pop()
            invocation = self._running.get(task)
            start = self._start_in(task)
            if start is not None:
                actor = start.address.name
            elif invocation is not None and not invocation.cell.system:
                actor = invocation.cell.address.name
            elif not actor:
                actor = _owner_of_nursery(task)
            yield task, actor, invocation
            for nursery in task.child_nurseries:
                waiting.extend(
                    # A task has the context of the code that has begun it: those that were begun
                    # before the start are not the actor's.
                    (child, actor if start is None or child.context.get(STARTING) is start else "")
                    for child in nursery.child_tasks
                )

    def _start_in(self, task: trio.lowlevel.Task) -> ActorCell | None:
        """The actor whose constructor the task waits for, or whose `on_start` it runs."""
        cell = self._starting.get(task)
        return None if cell is None or cell.system else cell

    def _plain_task(
        self, task: trio.lowlevel.Task, actor: str, invocation: Invocation | None
    ) -> dict[str, object]:
        since = None
        if invocation is not None and invocation.suspended_at:
            since = self._now - invocation.suspended_at
        method = "" if invocation is None else invocation.definition.name
        if self._start_in(task) is not None:
            # It may run a method of a service at the same time, which starts the actor.
            method = "on_start"
        return {
            "task": task.name,
            "actor": actor,
            "method": method,
            "seconds": since,
            # What a task awaits may be an object of the user's.
            "stack": guarded(lambda: _plain(stack_of(task.coro)), lambda error: []),
        }


def named_runs(tasks: Iterable[Mapping[str, Any]]) -> list[str]:
    """Say what code of users runs in tasks, as `StackReader.tasks` describes them: each method, own
    task and `on_stop` of an actor once, with the line of the user's at which it waits.
    """
    found: dict[str, None] = {}
    for task in tasks:
        if not (actor := task["actor"]):
            continue
        what = f"{actor}.{task['method']}" if task["method"] else f"a task of {actor}"
        if task["task"] == on_stop_of(actor):
            what = f"{actor}.on_stop"
        own = [one for one in task["stack"] if one[0] and not is_machinery(one[0])]
        found[f"{what} ({own[-1][0]}:{own[-1][1]})" if own else what] = None
    return list(found)


def _owner_of_nursery(task: trio.lowlevel.Task) -> str:
    """The actor in whose own nursery (`self.nursery`) the task runs, or whose `on_stop` does; "" if
    there is none.
    """
    coroutine: object | None = task.coro
    frame, following = _step(coroutine)
    while frame is not None and _is_portal(frame):
        coroutine = frame.f_locals.get("orig_coro", following)
        frame, following = _step(coroutine)
    if frame is not None and frame.f_code is _NURSERY_CODE:
        return str(getattr(frame.f_locals.get("self"), "name", ""))
    if frame is not None and frame.f_code is run_on_stop.__code__:
        cell = frame.f_locals.get("cell")
        return cell.address.name if type(cell) is ActorCell else ""
    return ""


def stack_of(awaitable: object) -> list[StackLine]:
    """Return the lines at which a suspended coroutine waits, the outermost first. For a method that
    the runtime steps by hand, only the method's own lines.
    """
    frames: list[FrameType] = []
    seen = 0
    inner: object | None = awaitable
    # A coroutine cannot wait for itself, but what looks like one may be anything of the user's.
    while inner is not None and seen < 10_000:
        seen += 1
        frame, following = _step(inner)
        if frame is not None and _is_portal(frame):
            inside, following = _through_portal(frame, following)
            frames += inside
        elif frame is not None and frame.f_code is STEPPED_BY_HAND:
            frames.clear()
            following = frame.f_locals.get("coroutine")
        elif frame is not None:
            frames.append(frame)
        inner = following
    while frames and frames[-1].f_code.co_filename == _TRAPS:
        # How trio suspends a task: the same lines below everything that waits.
        frames.pop()
    return _lines(frames)


def _step(awaitable: object) -> tuple[FrameType | None, object | None]:
    """Return the frame of an awaitable, and the awaitable that it waits for itself."""
    # By the type itself: what looks like one may have a `__class__` of the user's.
    if type(awaitable) is CoroutineType:
        return awaitable.cr_frame, awaitable.cr_await
    if type(awaitable) is GeneratorType:
        return awaitable.gi_frame, awaitable.gi_yieldfrom
    if type(awaitable) is AsyncGeneratorType:
        return awaitable.ag_frame, awaitable.ag_await
    # What `__anext__` of an asynchronous generator returns, and the wrapper of `__await__`, do not
    # say what they wait for; the collector of garbage knows.
    if class_name(type(awaitable)) in _OPAQUE:
        for referent in gc.get_referents(awaitable):
            if type(referent) in (CoroutineType, AsyncGeneratorType, GeneratorType):
                return None, referent
    return None, None


def _is_portal(frame: FrameType) -> bool:
    """Whether the frame is greenback's, below which it runs a task's coroutine in a greenlet: so
    that plain code there can await. All tasks of actors have one in debuggable nodes.
    """
    # By name: greenback is not always installed, and a node that has not loaded it needs none.
    return module_of(frame) == "greenback._impl"


def _through_portal(
    frame: FrameType, following: object | None
) -> tuple[list[FrameType], object | None]:
    """What waits below a frame of greenback's: the frames of plain code that waits there, if it
    does, and what is awaited next.
    """
    coroutine = frame.f_locals.get("orig_coro")
    if following is not None or coroutine is None:
        # Its outer frame, which awaits an inner one.
        return [], following
    if not getattr(coroutine, "cr_running", False):
        return [], coroutine
    # The coroutine has called plain code, which waits in the middle of a step: the frames of all
    # of it are those of the greenlet.
    innermost = getattr(frame.f_locals.get("resume_greenlet"), "gr_frame", None)
    frames = list(outwards(innermost))[::-1]
    # The runtime's way in, and what a debugger does at a breakpoint(), are not the user's.
    inside = itertools.dropwhile(lambda one: module_of(one).startswith(_WAY_IN), frames)
    return list(itertools.takewhile(lambda one: module_of(one) not in _DEBUGGER, inside)), None


def _plain(lines: list[StackLine]) -> list[object]:
    return [line.plain() for line in lines]


def _lines(frames: list[FrameType], source: bool = True) -> list[StackLine]:
    described = partial(_line, source=source)
    if len(frames) > MOST_FRAMES:
        half = MOST_FRAMES // 2
        left = len(frames) - 2 * half
        cut = StackLine("", 0, f"{left} frames are left out", "")
        return [*map(described, frames[:half]), cut, *map(described, frames[-half:])]
    return [*map(described, frames)]


def _line(frame: FrameType, source: bool) -> StackLine:
    code = frame.f_code
    number = frame.f_lineno or 0
    text = known_line(code.co_filename, number, frame.f_globals)[:MOST_LINE] if source else ""
    return StackLine(code.co_filename[-MOST_LINE:], number, code.co_qualname[:MOST_LINE], text)


def stacks_of_threads(
    current: Callable[[], Mapping[int, FrameType]] = sys._current_frames,
) -> tuple[list[dict[str, object]], int]:
    """Return the busy threads of this process, each with its stack and the actor whose plain method
    it runs, "" if it runs none; and how many were left out. The calling thread and idle threads of
    trio's cache are not among them.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    listed: list[dict[str, object]] = []
    for ident, innermost in current().items():
        frames = list(outwards(innermost))
        if ident == own or _is_parked(frames):
            continue
        frames.reverse()
        listed.append(
            {
                "thread": names.get(ident, str(ident)),
                "actor": _actor_of(frames),
                "stack": _plain(_lines(frames)),
            }
        )
    return listed[:MOST_THREADS], max(0, len(listed) - MOST_THREADS)


def _actor_of(frames: list[FrameType]) -> str:
    for frame in frames:
        if name := guarded(partial(actor_of_method, frame), lambda error: ""):
            return name
    return ""


def actor_of_method(frame: FrameType) -> str:
    """The actor of whose method this is a frame; "" if it is of none. Looks at objects of the
    user's, which may raise anything.
    """
    # The thread goes on meanwhile: variables come and go.
    instance: object = frame.f_locals.get("self")
    if issubclass(type(instance), Actor):
        found = cast("Actor", instance)
        if frame.f_code.co_name in type(found).__methods__:
            return str(found.name)
    return ""


def blocked_report(
    innermost: FrameType | None, seconds: float, source: bool = True
) -> dict[str, Any]:
    """Describe, as plain data, a thread whose event loop has been blocked for `seconds`: whose code
    it runs, and its stack. Called in another thread. `source`: with the text of the lines, for
    which files are read.
    """
    frames = list(outwards(innermost))[::-1]
    return {
        "seconds": seconds,
        "who": running_code(innermost)[0][: 2 * MOST_LINE],
        "stack": _plain(_lines(frames, source)),
    }


def _is_parked(frames: list[FrameType]) -> bool:
    """True if the thread is idle in trio's cache of threads."""
    innermost = itertools.islice(frames, 2)
    return any(frame.f_code.co_filename.endswith("_thread_cache.py") for frame in innermost)


def read_stacks(
    running: Mapping[trio.lowlevel.Task, Invocation],
    starting: Mapping[trio.lowlevel.Task, ActorCell],
    now: float,
    actor: str | None,
) -> dict[str, Any]:
    """Return the stacks of a node's tasks and threads, or the tasks of one actor, as plain data.
    `now`: seconds on the node's clock.
    """
    tasks, left_out = StackReader(running, starting, now).tasks(actor)
    threads, threads_left_out = stacks_of_threads()
    return {
        "tasks": tasks,
        "tasks_left_out": left_out,
        "threads": threads,
        "threads_left_out": threads_left_out,
    }
