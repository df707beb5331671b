"""Orphans: actors whose supervisor is gone for good, on a node that lives. They are stopped here,
because no supervisor would stop them.

A supervisor that ends in order stops its children. One that dies with its node leaves those on
other nodes behind: the next incarnation adopts them, if one is started. If none is, because the
supervisor has no supervisor, or none any more, each node stops those that it hosts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from actors.errors import CallError, StoreError
from actors.identifiers import ActorId
from actors.own_logger import own_logger
from actors.supervision import ExitReason
from runtime.hosting.host import ActorHost

ORPHAN_LOOK_SECONDS = 5.0
"""Seconds between checks for orphans. A late check loses nothing: orphans only use memory."""

logger = own_logger("understudy.supervision")


class Orphans:
    """Stops the orphans of one node, until cancelled. `is_supervised(name)`: an actor has this
    supervisor's name, or will have it.
    """

    def __init__(self, host: ActorHost, is_supervised: Callable[[str], Awaitable[bool]]) -> None:
        self._host = host
        self._is_supervised = is_supervised
        self._missing: set[str] = set()

    async def run(self) -> None:
        """Check every `ORPHAN_LOOK_SECONDS`. A supervisor that is missing at two checks in a row
        is taken for gone: between its end and its restart it may be missing once.
        """
        while True:  # noqa: ASYNC913  each turn waits
            await trio.sleep(ORPHAN_LOOK_SECONDS)
            try:
                await self._look()
            except (StoreError, CallError):
                # The store does not answer: two checks in a row count from the next one on.
                self._missing.clear()

    async def _look(self) -> None:
        missing: set[str] = set()
        for supervisor in sorted(self._supervisors_elsewhere()):
            if await self._is_supervised(supervisor):
                continue
            if supervisor not in self._missing:
                missing.add(supervisor)
                continue
            reason = ExitReason(
                "parent stopped", f"its supervisor {supervisor} has ended and is not restarted"
            )
            for name, epoch in self._children_of(supervisor):
                self._host.counts.orphans += 1
                logger.warning("stopping %s, which has lost its supervisor: %s", name, reason)
                await self._host.stop(name, epoch, reason)
        self._missing = missing

    def _supervisors_elsewhere(self) -> set[str]:
        """Return the supervisors on other nodes that actors here have. Those whose names begin with
        "@" are left out: they belong to the runtime and cannot be missing.
        """
        host = self._host
        return {
            name
            for name in host.supervisors.values()
            if name not in host.cells and not name.startswith("@")
        }

    def _children_of(self, supervisor: str) -> list[ActorId]:
        host = self._host
        return [
            ActorId(name, host.cells[name].address.epoch)
            for name, started_for in host.supervisors.items()
            if started_for == supervisor and name in host.cells
        ]
