"""Singletons: actors of which the cluster has exactly one, as long as one of their candidates lives. The root of a tree is one.

Every node that asks for the actor is a candidate. The claim of its name in the store elects: one transaction, tied to the lease of the node
that makes it, so there are never two. All watch the actor, and when it crashes, or its node dies or leaves, they try again: at once after
the first death of a node, with back-off after crashes and starts that fail. If it ends normally it has ended for all: one that was stopped,
or a root supervisor that gave up, is not started again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from actors.errors import CallError, NameTakenError, NodeDrainingError, SpawnError, StoreError
from actors.intensity import RestartDelay
from actors.method import Address
from actors.supervision import ExitKind, ExitReason, RestartBackoff
from runtime.environment import Environment
from runtime.supervision.starts import NOT_ITS_FAULT

TRY_AGAIN = 0.05
LOOK_AGAIN = 0.2
AWAY = 0.5
"""Seconds between attempts while the store is away."""

RESTARTED = frozenset({"node died", "node left", "raised", "exit code", "signal", "start failed", "not placed"})
"""The ends after which a candidate starts it again. "killed" is not among them: that is how a stop by request ends that took too long."""

BACKOFF = RestartBackoff()
"""Between its restarts. Nobody supervises it, so there is no limit to how many there are."""

logger = logging.getLogger("understudy.supervision")


class Election(Protocol):
    """What a candidate needs of its node."""

    async def stand_for(self, name: str) -> None:
        """See `runtime.membership.promises.Promises.stand_for`."""
        ...

    async def stand_down(self, name: str, *, for_good: bool) -> None:
        """See `runtime.membership.promises.Promises.stand_down`."""
        ...

    async def is_promised(self, name: str) -> bool:
        """True if a candidate stands for it, and it has not ended for good."""
        ...

    async def find(self, name: str) -> Address | None:
        """The address of the actor that has `name` now."""
        ...

    async def watch_address(self, address: Address) -> ExitReason:
        """Wait until the actor at `address` has ended, by itself or with its node."""
        ...


class Singleton:
    """One candidate for one actor. `start()` starts it here, or raises `NameTakenError`."""

    def __init__(self, name: str, election: Election, start: Callable[[], Awaitable[Address]], environment: Environment) -> None:
        self._name = name
        self._election = election
        self._start = start
        self._environment = environment
        self._delay = RestartDelay()

    async def run(self, *, task_status: trio.TaskStatus[Address]) -> None:
        """Stand until the actor has ended for good. Tells where it runs as soon as it does; raises what its first start raises, if it is
        ours.
        """
        await self._election.stand_for(self._name)
        try:
            address = await self._current(None)
        except (SpawnError, CallError):
            await self._stand_down(for_good=False)  # noqa: ASYNC120  the error is told all the same
            raise
        task_status.started(address)
        while True:  # noqa: ASYNC913  each turn waits for an end
            since = self._environment.now()
            ended = await self._ended(address)
            if ended.kind not in RESTARTED:
                break
            self._delay.ran(self._environment.now() - since, BACKOFF)
            try:
                again = await self._again(address, ended)
            except NodeDrainingError as error:
                # This candidate is leaving as well, in order.
                logger.info("the singleton %s is left to others: %s", self._name, error)
                await self._stand_down(for_good=False)
                return
            if again is None:
                break
            address = again
        level = logging.INFO if ended.is_normal or not ended.is_failure else logging.WARNING
        logger.log(level, "the singleton %s has ended for good, as far as this node is concerned: %s", self._name, ended)
        await self._stand_down(for_good=True)

    async def _again(self, before: Address, ended: ExitReason) -> Address | None:
        """Where it runs now, started by this candidate or by another. None if that one has ended for good meanwhile."""
        while True:  # noqa: ASYNC913  each turn waits, or ends
            delay = self._delay.next(ended, BACKOFF, self._environment.random)
            level = logging.INFO if ended.kind == "node left" else logging.WARNING
            logger.log(level, "the singleton %s ended: %s; its candidates start it again, this one in %.1f s", self._name, ended, delay)
            until = self._environment.now() + delay
            try:
                while (now := self._environment.now()) < until:
                    # Each candidate waits for itself. What another has started is watched at once: else its end would be missed.
                    await trio.sleep(min(LOOK_AGAIN, until - now))
                    found = await self._election.find(self._name)
                    if found is not None and found.epoch != before.epoch:
                        return found
                if delay and not await self._election.is_promised(self._name):
                    return None
                return await self._current(before)
            except StoreError as error:
                logger.info("nobody can be elected for %s: %s", self._name, error)
                await trio.sleep(AWAY)
            except NodeDrainingError:
                raise
            except (SpawnError, CallError) as error:
                kind: ExitKind = "not placed" if isinstance(error, NOT_ITS_FAULT) else "start failed"
                ended = ExitReason(kind, str(error))

    async def _ended(self, address: Address) -> ExitReason:
        """How the actor there ended, as soon as it has."""
        while True:
            try:
                return await self._election.watch_address(address)
            except StoreError as error:
                logger.info("the singleton %s cannot be looked after: %s", self._name, error)
            await trio.sleep(AWAY)

    async def _stand_down(self, *, for_good: bool) -> None:
        try:
            await self._election.stand_down(self._name, for_good=for_good)
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
