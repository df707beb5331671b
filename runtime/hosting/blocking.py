"""What blocks an event loop: for how long it has stood still, as seen from beside it, and whose code it is running.

Pure: times and stack frames in, seconds and texts out. `runtime.membership.stand_by` looks from a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any

from runtime.hosting import stopping
from runtime.hosting.home import Home
from runtime.hosting.host import Host
from runtime.hosting.workers import Workers

BEAT_SECONDS = 0.5
"""How often the loop says that it runs."""

LOOK_SECONDS = 0.25
"""How often it is looked at."""

LATE_SECONDS = 1.0
"""A look that is later than this says nothing of the loop: the process was stopped, or the machine is too busy to tell."""

FRAMES_SHOWN = 6
"""Of the stack, the innermost."""


class LoopWatch:
    """How long a loop has stood still. `beat` is called in it and `look` beside it, perhaps in another thread; `now` on one clock."""

    def __init__(self, now: float) -> None:
        self._beat = now
        self._looked = now
        self._since = now

    def beat(self, now: float) -> None:
        """The loop runs."""
        self._beat = now

    def look(self, now: float) -> float:
        """Seconds for which it has not run, though this was looked at in time; 0 if it runs."""
        if now - self._looked > LOOK_SECONDS + LATE_SECONDS:
            # Both stood still, as after SIGSTOP: the time before counts for nothing.
            self._since = now
        self._looked = now
        return max(0.0, now - max(self._beat, self._since) - BEAT_SECONDS)


def running_code(innermost: FrameType | None) -> tuple[str, str]:
    """What a loop's thread runs: whose code it is, for people, and the innermost lines of the stack.

    The frames of the runtime's own functions say for which actor they run. Their variables are only read; the thread goes on meanwhile, so
    what has not been set yet, or is gone already, is passed over.
    """
    if innermost is None:
        return "code that cannot be told", ""
    lines: list[str] = []
    who = "code outside of all actors"
    for frame in _outwards(innermost):
        describe = _ACTORS_CODE.get(frame.f_code)
        if describe is not None:
            with suppress(KeyError, AttributeError):
                who = describe(frame.f_locals)
                break
        lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}")
    stack = "".join(f"\n  {line}" for line in reversed(lines[:FRAMES_SHOWN]))
    return (f"{who} ({lines[0]})" if lines else who), stack


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


_ACTORS_CODE: dict[CodeType, Callable[[dict[str, Any]], str]] = {
    Workers._run.__code__: lambda found: f"{found['job'].cell.address.name}.{found['job'].definition.name}",
    Host.begin.__code__: lambda found: f"on_start of {found['address'].name}",
    stopping.run_on_stop.__code__: lambda found: f"on_stop of {found['cell'].address.name}",
    Home.run.__code__: lambda found: f"a task of {found['self'].name}",
}
"""The functions of the runtime in which users' code runs, and how their variables tell whose it is."""
