"""Measure for how long an event loop has stood still, and find which code blocks it.

Pure: times and stack frames in, seconds and texts out. `runtime.membership.stand_by` calls it from
a thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any

from runtime.hosting.authorization import is_allowed
from runtime.hosting.host import ActorHost
from runtime.hosting.lazy_nursery import LazyNursery
from runtime.hosting.orderly_stop import run_on_stop
from runtime.hosting.workers import TaskWorkers
from runtime.wire import codec

FRAMES_SHOWN = 6
"""The number of stack frames that a report shows, the innermost ones."""

LATE_BEATS = 4
"""For so many beats a late one is remembered."""

OUTSIDE = "code outside of all actors"

RULE = "authorize"
"""The name of the application's rule about calls."""

_WIRE = os.path.dirname(codec.__file__)

_LOOK_THROUGH = frozenset(
    os.path.join(os.path.dirname(_WIRE), *place)
    for place in (("calls", "spawnable.py"), ("plain_calls", "plain_values.py"))
)
"""Further files of the runtime that look through whole messages on the event loop. By their paths:
rooms above this one.
"""

_ACTORS: dict[CodeType, Callable[[dict[str, Any]], str]] = {
    TaskWorkers._run.__code__: lambda found: found["invocation"].cell.address.name,
    ActorHost.begin.__code__: lambda found: found["address"].name,
    run_on_stop.__code__: lambda found: found["cell"].address.name,
    LazyNursery.run.__code__: lambda found: found["self"].name,
}

_ACTORS_CODE: dict[CodeType, Callable[[dict[str, Any]], str]] = {
    TaskWorkers._run.__code__: lambda found: found["invocation"].full_name,
    ActorHost.begin.__code__: lambda found: f"on_start of {found['address'].name}",
    run_on_stop.__code__: lambda found: f"on_stop of {found['cell'].address.name}",
    LazyNursery.run.__code__: lambda found: f"a task of {found['self'].name}",
    is_allowed.__code__: lambda found: (
        f"{RULE}, asked about {found['call'].actor}.{found['call'].method}"
    ),
}
"""The functions of the runtime that run users' code, and how to name that code from their
variables.
"""


class LoopWatch:
    """Measures how long a loop has stood still.

    `beat` is called in the loop, and `look` outside of it, perhaps in another thread; `now`:
    seconds on one clock. `every`: seconds between two beats. `gap`: a look that comes this many
    seconds after the previous one says nothing about the loop, because the whole process was
    stopped or the machine is too busy.
    """

    def __init__(self, now: float, every: float, gap: float) -> None:
        self._every = every
        self._gap = gap
        self._beat = now
        self._looked = now
        self._since = now
        self._late: tuple[float, float] = (0.0, now)

    def beat(self, now: float) -> None:
        """Note that the loop runs at this time."""
        late = now - self._beat - self._every
        worst, noted = self._late
        # The worst of the last beats: one that is in time says little about a loop whose passes
        # take long.
        if late >= worst or now - noted > LATE_BEATS * self._every:
            self._late = late, now
        self._beat = now

    def late(self, now: float) -> float:
        """Return how many seconds late the worst of the last beats came: about how long one pass of
        a loop takes that runs, but has too much to do. 0 if the loop has not beaten for long.
        """
        # One attribute, read once: the loop may write it meanwhile.
        worst, noted = self._late
        return worst if now - noted <= LATE_BEATS * self._every else 0.0

    def look(self, now: float) -> float:
        """Return for how many seconds the loop has stood still while looks came in time; 0 if it
        runs.
        """
        if now - self._looked > self._gap:
            # Loop and watcher both stood still, as after SIGSTOP: the time before does not count.
            self._since = now
        self._looked = now
        return max(0.0, now - max(self._beat, self._since) - self._every)


def running_code(innermost: FrameType | None) -> tuple[str, str]:
    """Describe what a loop's thread runs: whose code it is, for people, and the innermost lines of
    the stack.

    The frames of the runtime's own functions say for which actor they run. Their variables are only
    read.
    """
    if innermost is None:
        return "unknown code", ""
    lines: list[str] = []
    who = OUTSIDE
    for frame in outwards(innermost):
        describe = _ACTORS_CODE.get(frame.f_code)
        if describe is not None:
            # The other thread goes on meanwhile: a variable may not be set yet, or may be gone.
            with suppress(KeyError, AttributeError):
                who = describe(frame.f_locals)
                break
        lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}")
    stack = "".join(f"\n  {line}" for line in reversed(lines[:FRAMES_SHOWN]))
    return (f"{who} ({lines[0]})" if lines else who), stack


def remedy(innermost: FrameType | None, who: str) -> str:
    """Return the advice for a blocked event loop, as a sentence. `who`: the text of
    `running_code`.
    """
    file = "" if innermost is None else innermost.f_code.co_filename
    if os.path.dirname(file) == _WIRE or file in _LOOK_THROUGH:
        return (
            "It writes or reads a large message: send bulk as bytes or numpy arrays, which are not "
            "looked through, or in several calls"
        )
    if who.startswith(f"{RULE}, "):
        return f"Each call waits for {RULE}: let it look at what was read beforehand"
    if who.startswith(OUTSIDE):
        return "Run it in a thread: `await trio.to_thread.run_sync(...)`"
    return 'Make it a plain `def`, which runs in a thread, or give the actor isolation="process"'


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frame, its caller, and so on to the outermost."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def actor_of_code(frame: FrameType) -> str:
    """The actor whose code this frame of the runtime runs; "" for any other frame. Raises KeyError
    or AttributeError if its variables are not set yet, or are gone.
    """
    find = _ACTORS.get(frame.f_code)
    return str(find(frame.f_locals)) if find is not None else ""
