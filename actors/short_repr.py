"""What a value looks like, for texts of errors: in bounded time, whatever containers it is of.

30 lists, each of which holds the next one twice, are 2**30 lists to `repr`, which writes for
minutes, and gigabytes.
"""

from __future__ import annotations

import reprlib
from collections import deque
from typing import Any, Final, cast

MOST_OBJECTS: Final = 20_000
"""Objects in containers that are written in full, each as often as it is there."""

_CONTAINERS: Final = frozenset({list, tuple, set, frozenset, dict, deque})
"""Exact types: what is derived from them may have any code of its own."""

_SHORT: Final = reprlib.Repr()
_SHORT.maxlevel = 4


def is_boundless(value: object) -> bool:
    """True for a container with more objects in it than are written in full, or that holds
    itself.
    """
    if type(value) not in _CONTAINERS:
        return False
    left, waiting = MOST_OBJECTS, [cast("Any", value)]
    while waiting:
        one = waiting.pop()
        left -= len(one)
        if left < 0:
            return True
        waiting.extend(item for item in list(one) if type(item) in _CONTAINERS)
        if type(one) is dict:
            waiting.extend(item for item in list(one.values()) if type(item) in _CONTAINERS)
    return False


def short_repr(value: object) -> str:
    """`repr(value)`, with "..." for the most of a value that is boundless."""
    return _SHORT.repr(value) if is_boundless(value) else repr(value)
