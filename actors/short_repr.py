"""What a value looks like, for texts of errors: in bounded time and size, whatever the value is.

30 lists, each of which holds the next one twice, are 2**30 lists to `repr`, which writes for
minutes, and gigabytes. The `__repr__` of a user's class may raise anything.
"""

from __future__ import annotations

import reprlib
from collections import deque
from typing import Any, Final, cast

from actors.class_names import class_name, is_one_of, qualified_name

MOST_OBJECTS: Final = 20_000
"""Objects in containers that are written in full, each as often as it is there."""

MOST_CHARACTERS: Final = 200_000
"""Of a value, as it is written."""

_CONTAINERS: Final = frozenset({list, tuple, set, frozenset, dict, deque})
"""Exact types: what is derived from them may have any code of its own."""

_TEXTS: Final = frozenset({str, bytes, bytearray})

_SHORT: Final = reprlib.Repr()
_SHORT.maxlevel = 4


def is_boundless(value: object, most: int = MOST_OBJECTS) -> bool:
    """True for a container with more objects in it than are written in full, or that holds
    itself.
    """
    return objects_in(value, most) > most


def objects_in(value: object, most: int) -> int:
    """Return how many objects are in a container and in those within it, each as often as it is
    there; 0 for what is no container. Counts no further than to the first container with which
    there are more than `most`.
    """
    if not is_one_of(type(value), _CONTAINERS):
        return 0
    count, waiting = 0, [cast("Any", value)]
    while waiting:
        one = waiting.pop()
        count += len(one)
        if count > most:
            break
        waiting.extend(item for item in list(one) if is_one_of(type(item), _CONTAINERS))
        if type(one) is dict:
            values = list(one.values())
            waiting.extend(item for item in values if is_one_of(type(item), _CONTAINERS))
    return count


def short_repr(value: object, most: int = MOST_CHARACTERS, objects: int = MOST_OBJECTS) -> str:
    """`repr(value)`, with "..." for the most of a value that is boundless (see `is_boundless`;
    `objects`: as many are written in full), and for what comes after `most` characters. Of a value
    whose `__repr__` raises, its class and what was raised.
    """
    if is_one_of(type(value), _TEXTS):
        # Cut before it is written: a text of 100 MB takes 100 ms.
        text = cast("str", value)
        shown = repr(text[:most])
        return shown if len(text) <= most else f"{shown}..."
    try:
        shown = _SHORT.repr(value) if is_boundless(value, objects) else repr(value)
        # By `str`'s own methods: what `__repr__` returns may be of a class derived from it.
        if str.__len__(shown) <= most:
            return str.__str__(shown)
        return f"{str.__getitem__(shown, slice(0, most))}..."
    except KeyboardInterrupt:
        # It may be that of the process, which must go on.
        raise
    except BaseException as error:  # noqa: ASYNC103  no checkpoint
        # Also SystemExit: what a value says of itself ends no program.
        raised = class_name(type(error))
        return f"<a {qualified_name(type(value))} whose repr() raised {raised}>"  # noqa: ASYNC104
