"""A time limit for code that blocks: every wait of the blocking door within it ends in time."""

from __future__ import annotations

import math
import sys
from collections.abc import Awaitable, Callable
from contextlib import ContextDecorator
from contextvars import ContextVar
from numbers import Real
from typing import TypeVar

import trio

from actors.short_repr import short_repr
from runtime.environment import SystemEnvironment

T = TypeVar("T")

_now = SystemEnvironment().stopwatch

_ENDS: ContextVar[tuple[float, ...]] = ContextVar("_ENDS", default=(math.inf,))
"""When the limits of this thread are over, the innermost last: none ends after those around it."""


A_CALL = "the call that was under way was cancelled, and may have run"

A_START = "the start that was under way was cancelled; what has started is stopped again"

ANYTHING = "what was under way was cancelled"


class TimeLimit(ContextDecorator):
    """A time limit for a `with` block. It keeps nothing, so that the same one may be used again:
    its time begins with each block.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        ends = _ENDS.get()
        _ENDS.set((*ends, min(ends[-1], _now() + self._seconds)))

    def __exit__(self, *error: object) -> None:
        _ENDS.set(_ENDS.get()[:-1])


def fail_after(seconds: float) -> TimeLimit:
    """Let everything that blocks in the `with` block take no more than `seconds` in all: calls,
    `connect`, `lookup`, `spawn`, streams, references and the rest.

    What is under way when the time is over raises TimeoutError, and is cancelled where it runs: a
    call may have run. The time travels with calls as their deadline. Limits may be nested; they
    hold in the thread that set them. Raises TypeError for what is no number, and ValueError for a
    time below zero.
    """
    text = f"a time limit must be a number of seconds, 0 or more, not {short_repr(seconds)}"
    given: object = seconds
    if isinstance(given, bool) or not isinstance(given, Real):
        raise TypeError(text)
    # An int may be larger than any float, to which it is about to be added.
    if not (0 <= seconds <= sys.float_info.max or seconds == math.inf):
        raise ValueError(text)
    return TimeLimit(float(seconds))


def within_limit(
    function: Callable[[], Awaitable[T]], what_ended: str = ANYTHING
) -> Callable[[], Awaitable[T]]:
    """The function itself, or one that raises TimeoutError when the limit of this thread is over.
    To be awaited in trio. `what_ended`: the end of the error's text.
    """
    ends = _ENDS.get()[-1]
    if ends == math.inf:
        return function

    async def limited() -> T:
        # Measured when it begins: the loop may have been busy meanwhile.
        with trio.move_on_after(max(0.0, ends - _now())):
            return await function()
        raise TimeoutError(f"the time limit of `fail_after` has passed; {what_ended}")

    return limited
