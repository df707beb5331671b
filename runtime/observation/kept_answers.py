"""An answer that costs much is kept, so that those who ask for it again and again share it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

REST = 100
"""An answer is kept for so many times as long as it took to make. So all dashboards together take
at most a hundredth of a node's event loop.
"""

CHEAP = 0.005
"""Seconds. An answer that took less is made anew each time: that of a node with few actors is never
old.
"""


class KeptAnswer:
    """One such answer. `make` returns it, and the seconds that it took of the event loop. `now` is
    a clock.
    """

    def __init__(
        self, make: Callable[[], Awaitable[tuple[dict[str, Any], float]]], now: Callable[[], float]
    ) -> None:
        self._make = make
        self._now = now
        self._lock = trio.Lock()
        self._kept: dict[str, Any] = {}
        self._keep_until = 0.0

    async def read(self) -> dict[str, Any]:
        """The answer, which may be `REST` times as old as it took to make."""
        # Those who come while it is made wait for it, instead of making another one.
        async with self._lock:
            if not self._kept or self._now() >= self._keep_until:
                # If this is cancelled or raises, the next in the queue makes the answer.
                self._kept, spent = await self._make()
                assert spent >= 0, "a clock that goes back would keep answers for no time"
                self._keep_until = self._now() + (REST * spent if spent > CHEAP else 0.0)
            return self._kept
