"""What the error of a lookup says of names that are like the one that is not there."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

import attrs
import trio

from actors.errors import ActorNotFoundError, UnderstudyError
from runtime.membership.names import Names
from runtime.near_names import likeliest, nearest

READ_SECONDS: Final = 1.0
"""Seconds at least between two reads of the names, and seconds at most that one may take."""

NAMES_COMPARED: Final = 500
"""Names among which one is looked for."""

PAIRS_COMPARED: Final = 200_000
"""Pairs of characters of a name and of those that it is compared with: on the event loop, in 4 to
8 ms with names of 20 to 250 characters. All names of 20 are compared, and of those of 60 the
likeliest 55.
"""

KEPT_SECONDS: Final = 10.0
"""Seconds for which the suggestion for a name is used again: programs that look the same name up
until it is there do not cause a read each second.
"""

MOST_KEPT: Final = 100
"""Names whose suggestions are kept."""


@attrs.frozen
class _Suggestion:
    read_at: float
    near: list[str]


class NameSuggestions:
    """The suggestions of one node. Programs may look names up in a loop: all of them together cost
    one read of the names each second at most, and errors between the reads have no suggestion
    unless one is kept.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._read_at = -math.inf
        """When the last read began."""
        self._kept: OrderedDict[str, _Suggestion] = OrderedDict()
        """By the name that was looked up; the oldest first."""

    async def added(self, error: ActorNotFoundError, name: str) -> ActorNotFoundError:
        """Return the error of a lookup of `name` with the nearest name there is, if one is like it
        and the names may be read now.
        """
        near = await self._near(name)
        if not near:
            return error
        return ActorNotFoundError(f"{error}; did you mean {near[0]!r}?", actor=name)

    async def _near(self, name: str) -> list[str]:
        now = trio.current_time()
        kept = self._kept.get(name)
        if kept is not None and now - kept.read_at < KEPT_SECONDS:
            return kept.near
        if now - self._read_at < READ_SECONDS:
            return []
        # Before the read, without an await between: lookups that fail together cause one read.
        self._read_at = now
        names: list[str] | None = None
        with trio.move_on_after(READ_SECONDS):
            try:
                names = await self._names.to_compare(name, NAMES_COMPARED)
            except UnderstudyError:
                # That there is no such actor is known, and all that the caller has asked.
                return []
        if names is None:
            return []
        # An actor of this very name may have started since it was looked up.
        others = likeliest(name, (one for one in names if one != name), PAIRS_COMPARED)
        near = nearest(name, others)
        self._kept.pop(name, None)
        self._kept[name] = _Suggestion(now, near)
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        assert len(self._kept) <= MOST_KEPT
        return near
