"""Orphans: actors whose supervisor is gone for good, on a node that lives. They are stopped, for nobody else would.

A supervisor that ends in order stops its children. One that dies with its node leaves those on other nodes behind: the next incarnation
adopts them, if somebody starts one. Where nobody does, because nobody supervises the supervisor, or not any more, each node stops those
that it hosts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import trio

from actors.errors import CallError, StoreError
from actors.supervision import ExitReason

LOOK_EVERY = 5.0
"""Seconds between looks. Nothing is lost by a late one: orphans only take up room."""

logger = logging.getLogger("understudy.supervision")


class Family(Protocol):
    """The supervised actors of a node."""

    def supervisors(self) -> set[str]:
        """The names of the supervisors, elsewhere, of actors that live here."""
        ...

    def children_of(self, supervisor: str) -> Iterable[tuple[str, int]]:
        """Names and epochs of those that live here."""
        ...

    async def stop(self, name: str, epoch: int, reason: ExitReason) -> object:
        """Stop one of them."""
        ...


class Orphans:
    """Looks after the actors of one node, for ever. `is_supervised(name)`: somebody has this supervisor's name, or will have it."""

    def __init__(self, family: Family, is_supervised: Callable[[str], Awaitable[bool]]) -> None:
        self._family = family
        self._is_supervised = is_supervised
        self._missing: set[str] = set()

    async def run(self) -> None:
        """A supervisor that is missing at two looks in a row does not come back."""
        while True:  # noqa: ASYNC913  each turn waits
            await trio.sleep(LOOK_EVERY)
            try:
                await self._look()
            except (StoreError, CallError):
                # Nobody can say who is there. Next time.
                self._missing.clear()

    async def _look(self) -> None:
        missing: set[str] = set()
        for supervisor in sorted(self._family.supervisors()):
            if await self._is_supervised(supervisor):
                continue
            if supervisor not in self._missing:
                missing.add(supervisor)
                continue
            reason = ExitReason("parent stopped", f"{supervisor} is gone, and nobody starts it again")
            for name, epoch in tuple(self._family.children_of(supervisor)):
                logger.warning("%s has no supervisor any more: %s", name, reason)
                await self._family.stop(name, epoch, reason)
        self._missing = missing
