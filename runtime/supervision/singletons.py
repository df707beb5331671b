"""Singletons: actors of which the cluster has exactly one, as long as one of their candidates lives. The root of a tree is one.

Every node that asks for the actor is a candidate. The claim of its name in the store elects: one transaction, tied to the lease of the node
that makes it, so there are never two. The others watch the actor, and when its node dies, leaves or loses its lease, they try again. If it
ends in any other way it has ended for all: a root supervisor that gives up is not started again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from actors.errors import CallError, NameTakenError, SpawnError, StoreError
from actors.method import Address
from actors.supervision import ExitReason

TRY_AGAIN = 0.05
AWAY = 0.5
"""Seconds between attempts while the store is away."""

MOVES = frozenset({"node died", "node left", "killed"})
"""The ends after which another candidate starts it."""

logger = logging.getLogger("understudy.supervision")


class Election(Protocol):
    """What a candidate needs of its node."""

    async def stand_for(self, name: str) -> None:
        """See `runtime.membership.promises.Promises.stand_for`."""
        ...

    async def stand_down(self, name: str) -> None:
        """See `runtime.membership.promises.Promises.stand_down`."""
        ...

    async def find(self, name: str) -> Address | None:
        """The address of the actor that has `name` now."""
        ...

    async def watch_address(self, address: Address) -> ExitReason:
        """Wait until the actor at `address` has ended, by itself or with its node."""
        ...


class Singleton:
    """One candidate for one actor. `start()` starts it here, or raises `NameTakenError`."""

    def __init__(self, name: str, election: Election, start: Callable[[], Awaitable[Address]]) -> None:
        self._name = name
        self._election = election
        self._start = start

    async def run(self, *, task_status: trio.TaskStatus[Address]) -> None:
        """Stand until the actor has ended for good. Tells where it runs as soon as it does; raises what its first start raises, if it is
        ours.
        """
        await self._election.stand_for(self._name)
        try:
            address = await self._current(None)
        except (SpawnError, CallError):
            await self._stand_down()  # noqa: ASYNC120  the error is told all the same
            raise
        task_status.started(address)
        while True:  # noqa: ASYNC913  each turn waits for an end
            ended = await self._ended(address)
            if ended.kind not in MOVES:
                break
            logger.warning("the singleton %s ended: %s; its candidates start it again", self._name, ended)
            try:
                address = await self._current(address)
            except (SpawnError, CallError) as error:
                ended = ExitReason("start failed", str(error))
                break
        logger.warning("the singleton %s has ended for good, as far as this node is concerned: %s", self._name, ended)
        await self._stand_down()

    async def _ended(self, address: Address) -> ExitReason:
        """How the actor there ended, as soon as it has."""
        while True:
            try:
                return await self._election.watch_address(address)
            except StoreError as error:
                logger.info("the singleton %s cannot be looked after: %s", self._name, error)
            await trio.sleep(AWAY)

    async def _stand_down(self) -> None:
        try:
            await self._election.stand_down(self._name)
        except StoreError as error:
            logger.info("the candidacy for %s falls with this node's lease: %s", self._name, error)

    async def _current(self, ended: Address | None) -> Address:
        """Where it runs, or now does: here, if nobody else was faster. `ended`: an incarnation of it that does not count."""
        while True:
            try:
                return await self._start()
            except NameTakenError:
                found = await self._election.find(self._name)
                if found is not None and (ended is None or found.epoch != ended.epoch):
                    return found
            except StoreError as error:
                if ended is None:
                    raise
                logger.info("nobody can be elected for %s: %s", self._name, error)
            # Its name falls with the lease of the node that had it.
            await trio.sleep(TRY_AGAIN)
