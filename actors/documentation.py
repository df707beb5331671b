"""One text for what several classes promise: the docstring of one serves the others as well.

The same method exists on a node, at the blocking door and at that of asyncio. `help()` and the
reference show the whole text everywhere, and it is written once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def documented_as(source: object) -> Callable[[T], T]:
    """Decorate a function or class whose docstring goes on with that of `source`: first what is
    particular here, then what holds for all of them. Changes nothing but `__doc__`.
    """

    def append(target: T) -> T:
        parts = (inspect.getdoc(target), inspect.getdoc(source))
        target.__doc__ = "\n\n".join(part for part in parts if part)
        return target

    return append
