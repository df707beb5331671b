"""Looking at all actors of a node without stopping it: a slice at a time, between which the other
tasks of the event loop have their turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import trio

T = TypeVar("T")

SLICE = 500
"""What is looked at before the event loop goes on: about a millisecond's work."""


async def in_slices(
    items: Sequence[T], look: Callable[[Sequence[T]], None], now: Callable[[], float]
) -> float:
    """Give all items to `look`, at most `SLICE` at a time; returns the seconds that it took, by the
    clock `now`, without those in which other tasks ran.
    """
    # The items are a copy that the caller has made at once: between two slices, in the turns of
    # other tasks, actors start and end. What has ended is looked at as it was last.
    spent = 0.0
    for start in range(0, len(items), SLICE):
        began = now()
        look(items[start : start + SLICE])
        spent += now() - began
        await trio.lowlevel.checkpoint()
    return spent
