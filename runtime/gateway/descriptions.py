"""The descriptions that a gateway gives, as bytes: each is made once for all requests that ask for
it meanwhile, and kept for a few seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import trio

from runtime.gateway.problems import Problem

KEPT_SECONDS = 3.0
"""How old a description may be. Actors come and go, and to describe a thousand of them takes their
node and the gateway a second each.
"""

MOST_KEPT = 4
"""Descriptions that are kept; each may have many megabytes."""

MOST_MADE = 4
"""Descriptions that are made at once. More than one, since a silent node holds up each that is
about its actors.
"""

Names = frozenset[str] | None
"""The actors that a description is about; None for all that have names."""

Make = Callable[[Names], Awaitable[bytes | Problem]]
"""Makes a description, or says why there is none."""


@attrs.frozen
class _KeptDescription:
    """A description, and when it was asked for."""

    at: float
    data: bytes


class _DescriptionUnderWay:
    """A description that one request makes, and others wait for."""

    __slots__ = ("ended", "made")

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.made: bytes | Problem | None = None
        """None at the end as well, where the request that made it was cancelled."""


class Descriptions:
    """Gives descriptions that `make` makes. `now` gives seconds."""

    def __init__(self, make: Make, now: Callable[[], float]) -> None:
        self._make = make
        self._now = now
        self._kept: dict[Names, _KeptDescription] = {}
        self._under_way: dict[Names, _DescriptionUnderWay] = {}
        self._makers = trio.CapacityLimiter(MOST_MADE)

    async def of(self, names: Names) -> bytes | Problem:
        """The description of these actors, or the problem because of which there is none. A
        problem is shared as well, but not kept.
        """
        while True:
            kept = self._kept.get(names)
            if kept is not None and self._now() - kept.at < KEPT_SECONDS:
                return kept.data
            # No await from this look to the entry that `_made` makes: of two requests that come at
            # once, one makes the description and the other waits for it.
            under_way = self._under_way.get(names)
            if under_way is None:
                return await self._made(names)
            await under_way.ended.wait()
            if under_way.made is not None:
                return under_way.made
            # Its request was cancelled: this one makes it, or another that has waited.

    async def _made(self, names: Names) -> bytes | Problem:
        under_way = self._under_way[names] = _DescriptionUnderWay()
        try:
            async with self._makers:
                began = self._now()
                made = await self._make(names)
            if isinstance(made, bytes):
                self._keep(names, _KeptDescription(began, made))
            under_way.made = made
            return made
        finally:
            del self._under_way[names]
            under_way.ended.set()

    def _keep(self, names: Names, made: _KeptDescription) -> None:
        now = self._now()
        others = [
            (name, one)
            for name, one in self._kept.items()
            if name != names and now - one.at < KEPT_SECONDS
        ]
        self._kept = dict([*others, (names, made)][-MOST_KEPT:])
