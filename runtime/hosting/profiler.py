"""Where the threads of a process spend their time, by samples of their stacks: a thread looks at
the others many times a second. Nothing is attached to the process, so no right to trace it is
needed, and a node that is busy can be looked at.

The result is a file for https://www.speedscope.app, which keeps what it shows in the browser.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import attrs

from runtime.environment import real_seconds
from runtime.hosting.loop_watch import actor_of_code, outwards
from runtime.hosting.stacks import actor_of_method
from runtime.user_errors import guarded

MOST_DEPTH = 200
"""Frames of one stack that are kept, the innermost."""

MOST_STACKS = 10_000
"""Different stacks in one profile; samples of further ones are counted as left out."""

MOST_THREADS = 100

MOST_SAMPLES = 20_000
"""Samples of one thread that are kept one by one."""

MOST_SECONDS = 300.0
"""The longest duration of one profile."""

MOST_RATE = 250
"""Samples in a second."""

SWITCH_SECONDS = 0.000_02
"""After how long a thread that runs gives up the interpreter's lock while a profile is taken;
otherwise Python's 5 ms.
"""

MOST_TEXT = 300

LEFT_OUT = "(left out: too many different stacks)"

_WAITS_IN = ("_io_epoll.py", "_io_kqueue.py", "_thread_cache.py", "stack_thread.py")

_OF_NO_USER = (threading.__file__, f"{Path(__file__).parents[1]}{os.sep}")
"""The files of a thread that runs nothing of a user's."""


@attrs.define
class _ThreadSamples:
    """The samples of one thread, in order: the number of each stack, and its seconds."""

    name: str
    stacks: list[int] = attrs.field(factory=list)
    weights: list[float] = attrs.field(factory=list)
    idle: float = 0.0
    left_out: float = 0.0

    def add(self, stack: int, seconds: float) -> None:
        """Note that the thread was in this stack for `seconds`."""
        if self.stacks and self.stacks[-1] == stack:
            # What takes long is one sample, however often it was seen.
            self.weights[-1] += seconds
        elif len(self.stacks) < MOST_SAMPLES:
            self.stacks.append(stack)
            self.weights.append(seconds)
        else:
            self.left_out += seconds


class Profile:
    """Samples of stacks, bounded. Pure: stack frames and seconds in, plain data out. `actor`: only
    what runs for this actor counts, if it is not "".
    """

    def __init__(self, actor: str = "") -> None:
        self._actor = actor
        self._frames: dict[CodeType, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._threads: dict[int, _ThreadSamples] = {}
        self._left_out = self._add_stack((-1,))
        self.samples = 0
        """How often all threads were looked at."""

    def _add_stack(self, stack: tuple[int, ...]) -> int:
        return self._stacks.setdefault(stack, len(self._stacks))

    def add(
        self, frames: Mapping[int, FrameType], names: Mapping[int, str], own: int, seconds: float
    ) -> None:
        """Add one sample of all threads but `own`, which stands for so many `seconds`."""
        self.samples += 1
        for ident, innermost in frames.items():
            if ident == own:
                continue
            thread = self._threads.get(ident)
            if thread is None:
                if len(self._threads) >= MOST_THREADS:
                    continue
                name = names.get(ident, f"thread {ident}")[:MOST_TEXT]
                thread = self._threads[ident] = _ThreadSamples(name)
            if _is_idle(innermost):
                thread.idle += seconds
                continue
            if self._actor and self._actor not in _actors_of(innermost):
                continue
            thread.add(self._number_of(innermost), seconds)

    def _number_of(self, innermost: FrameType) -> int:
        codes: list[int] = []
        for frame in outwards(innermost):
            if len(codes) == MOST_DEPTH:
                break
            codes.append(self._frames.setdefault(frame.f_code, len(self._frames)))
        stack = tuple(reversed(codes))
        known = self._stacks.get(stack)
        if known is not None:
            return known
        return self._add_stack(stack) if len(self._stacks) < MOST_STACKS else self._left_out

    def speedscope(self, name: str) -> dict[str, Any]:
        """The file; see https://www.speedscope.app/file-format-schema.json. One profile for each
        thread that ran something.
        """
        frames = [_frame(code) for code in self._frames]
        stacks = {number: list(stack) for stack, number in self._stacks.items()}
        stacks[self._left_out] = [len(frames)]
        frames.append({"name": LEFT_OUT})
        return {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "name": name,
            "exporter": "understudy",
            "activeProfileIndex": 0,
            "shared": {"frames": frames},
            "profiles": [
                {
                    "type": "sampled",
                    "name": thread.name,
                    "unit": "seconds",
                    "startValue": 0,
                    "endValue": sum(thread.weights),
                    "samples": [stacks[stack] for stack in thread.stacks],
                    "weights": thread.weights,
                }
                for thread in sorted(self._threads.values(), key=lambda one: -sum(one.weights))
                if thread.stacks
            ],
        }

    def facts(self) -> dict[str, Any]:
        """Return the number of samples, and the seconds that each thread was busy and idle."""
        return {
            "samples": self.samples,
            "threads": [
                {
                    "thread": thread.name,
                    "busy": sum(thread.weights),
                    "idle": thread.idle,
                    "left_out": thread.left_out,
                }
                for thread in self._threads.values()
            ],
        }


def _frame(code: CodeType) -> dict[str, Any]:
    return {
        "name": code.co_qualname[:MOST_TEXT],
        "file": code.co_filename[-MOST_TEXT:],
        "line": code.co_firstlineno,
    }


def _is_idle(innermost: FrameType) -> bool:
    """True for an event loop that waits, and for a thread that is kept for later use or waits for
    such: they take no processor time.
    """
    if innermost.f_code.co_filename.endswith(_WAITS_IN):
        # A loop that has tasks to run looks for events without waiting.
        return bool(innermost.f_locals.get("timeout", 1.0))
    caller = innermost.f_back
    if caller is not None and caller.f_code.co_filename.endswith("_thread_cache.py"):
        return True
    if innermost.f_code.co_filename != threading.__file__:
        return False
    # A thread of the runtime that waits for work, as the one that writes to stderr. What waits in a
    # plain method is shown: it is why the method takes long.
    return all(frame.f_code.co_filename.startswith(_OF_NO_USER) for frame in outwards(innermost))


def _actors_of(innermost: FrameType) -> set[str]:
    """The actors whose code runs in this stack."""
    found: set[str] = set()
    for frame in outwards(innermost):
        # The thread goes on meanwhile: variables come and go. They are the user's, too.
        found.add(guarded(partial(_actor_of, frame), lambda error: ""))
    return found - {""}


def _actor_of(frame: FrameType) -> str:
    return actor_of_code(frame) or actor_of_method(frame)


def sample(
    seconds: float,
    rate: int,
    actor: str,
    stop: threading.Event,
    current: Callable[[], Mapping[int, FrameType]] = sys._current_frames,
) -> Profile:
    """Look at all threads of this process, `rate` times a second, until `stop` is set or the time
    is over. To be called in a thread of its own.
    """
    profile = Profile(actor)
    interval = 1 / min(max(rate, 1), MOST_RATE)
    own = threading.get_ident()
    began = before = real_seconds()
    switched = sys.getswitchinterval()
    try:
        # Without this, the interpreter's lock comes to this thread when another gives it up by
        # itself: a busy event loop would seem to spend its time where it looks for events.
        sys.setswitchinterval(SWITCH_SECONDS)
        # A look that comes late, because the interpreter was busy, counts for the time since the
        # last.
        while not stop.wait(interval) and before - began < min(seconds, MOST_SECONDS):
            now = real_seconds()
            names = {thread.ident or 0: thread.name for thread in threading.enumerate()}
            profile.add(current(), names, own, now - before)
            before = now
    finally:
        sys.setswitchinterval(switched)
    return profile


def packed_profile(seconds: float, rate: int, actor: str, stop: threading.Event) -> bytes:
    """Sample, and return the file and the facts as JSON, compressed: `{"file": ..., "facts": ...}`.
    To be called in a thread of its own.
    """
    profile = sample(seconds, rate, actor, stop)
    answer = {"file": profile.speedscope(actor), "facts": profile.facts()}
    return zlib.compress(json.dumps(answer).encode())
