"""The one way in which tests wait for what sets no event: other processes, tables of the product,
logs, and what an outsider can only ask for.

What a test itself makes happen sets a `trio.Event`, and is waited for there.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

import trio

T = TypeVar("T")

SECONDS = 60.0
"""Longer than anything takes on a loaded machine, and shorter than a test may take: who waits in
vain is told for what.
"""


@overload
async def until(
    ask: Callable[[], Awaitable[T]],
    what: str,
    is_so: Callable[[T], object] = bool,
    *,
    seconds: float = SECONDS,
    every: float = 0.005,
) -> T: ...


@overload
async def until(
    ask: Callable[[], T],
    what: str,
    is_so: Callable[[T], object] = bool,
    *,
    seconds: float = SECONDS,
    every: float = 0.005,
) -> T: ...


async def until(
    ask: Callable[[], Any],
    what: str,
    is_so: Callable[[Any], object] = bool,
    *,
    seconds: float = SECONDS,
    every: float = 0.005,
) -> Any:
    """Ask again and again until the answer is so, and return it.

    On whichever clock the test runs. Raises AssertionError with `what` and the last answer if it is
    not so within `seconds`. `every` 0 asks at each turn of the event loop.
    """
    found: Any = "none"
    with trio.move_on_after(seconds):
        while True:
            answer = ask()
            found = await answer if inspect.isawaitable(answer) else answer
            if is_so(found):
                return found
            if every:
                await trio.sleep(every)
            else:
                await trio.lowlevel.checkpoint()
    raise AssertionError(f"after {seconds:g} s, still not so: {what}; the last answer: {found!r}")


def until_blocking(
    ask: Callable[[], T],
    what: str | Callable[[], str],
    is_so: Callable[[T], object] = bool,
    *,
    seconds: float = SECONDS,
    every: float = 0.01,
) -> T:
    """Like `until`, outside of event loops and by the clock of the machine. `what` may be a
    function that describes what has come instead.
    """
    end = time.monotonic() + seconds
    while True:
        found = ask()
        if is_so(found):
            return found
        if time.monotonic() >= end:
            text = what if isinstance(what, str) else what()
            raise AssertionError(f"after {seconds:g} s, still not so: {text}; the last: {found!r}")
        time.sleep(every)
