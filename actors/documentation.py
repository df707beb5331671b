"""What users read of functions: one text for what several classes promise, and a name that they
know for coroutines of the runtime.

The same method exists on a node, at the blocking door and at that of asyncio. `help()` and the
reference show the whole text everywhere, and it is written once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])


def documented_as(source: object) -> Callable[[T], T]:
    """Decorate a function or class whose docstring goes on with that of `source`: first what is
    particular here, then what holds for all of them. Changes only `__doc__`.
    """

    def append(target: T) -> T:
        parts = (inspect.getdoc(target), inspect.getdoc(source))
        target.__doc__ = "\n\n".join(part for part in parts if part)
        return target

    return append


A_CALL = "call of an actor"
"""What Python names in its warning if a program does not await a call."""


def shown_as(name: str) -> Callable[[F], F]:
    """Decorate an `async def` whose coroutines programs hold: Python says "coroutine ... was never
    awaited" with this name. It is read when a coroutine is made, so a call costs nothing more.
    """

    def rename(function: F) -> F:
        function.__qualname__ = name
        return function

    return rename
