"""Singletons: actors of which the cluster has exactly one, as long as one of their candidates
lives. The root of a tree is one.

Every node that asks for the actor is a candidate. The claim of its name in the store elects: one
transaction, tied to the lease of the node that makes it, so there are never two. All watch the
actor, and when it crashes, or its node dies or leaves, they try again: at once after the first
death of a node, with back-off after crashes and starts that fail. If it ends normally it has ended
for all: one that was stopped, or a root supervisor that gave up, is not started again.

The candidates may have been given different arguments, with which each starts the actor, but not
different classes: one that finds an actor of another class under the name is no candidate for it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import trio

from actors.actor import Actor
from actors.errors import (
    CallError,
    ClassMismatchError,
    NameTakenError,
    NodeDrainingError,
    SpawnError,
    StoreError,
)
from actors.method import Address
from actors.own_logger import own_logger
from actors.restart_intensity import RestartDelay
from actors.supervision import ExitKind, ExitReason, RestartBackoff
from runtime.calls.arguments import StartRequest
from runtime.environment import Environment
from runtime.supervision.child_start import NOT_ITS_FAULT
from runtime.supervision.spawner import ActorSpawner

logger = own_logger("understudy.supervision")


CLAIM_RETRY_SECONDS = 0.05
"""Seconds between attempts to claim the name of the singleton while an ended actor still has it."""


SUCCESSOR_LOOK_SECONDS = 0.2
"""Seconds between checks whether another candidate has started the singleton, during the pause
before a restart.
"""


STORE_RETRY_SECONDS = 0.5
"""Seconds between attempts while the store cannot be reached."""


STAND_DOWN_SECONDS = 2.0
"""Seconds for which a candidate whose first start has failed tries to withdraw its candidacy, which
ends with its node's lease otherwise.
"""


RESTARTED = frozenset(
    {"node died", "node left", "raised", "exit code", "signal", "start failed", "not placed"}
)
"""The kinds of ends after which a candidate starts it again. "killed" is not among them, because a
stop by request that took too long ends in this way.
"""


BACKOFF = RestartBackoff()
"""The delays between its restarts. It has no supervisor, so their number is not limited."""


@attrs.define(eq=False)
class NodeCandidacy:
    """The candidacy of this node for one singleton: one key in the store, however many candidates
    share it. `candidates`: those that stand. `tasks`: with those that are about to end. `lock`: of
    those that write or withdraw the key.
    """

    candidates: int = 0
    tasks: int = 0
    lock: trio.Lock = attrs.field(factory=trio.Lock)


class Singleton:
    """One candidate for one actor, of class `cls`. `start()` starts it here, or raises
    `NameTakenError`. `candidacies`: those of its node, by the names of the singletons; this one is
    among them while it runs.
    """

    def __init__(
        self,
        name: str,
        cls: type[Actor],
        spawner: ActorSpawner,
        start: Callable[[], Awaitable[Address]],
        environment: Environment,
        candidacies: dict[str, NodeCandidacy],
    ) -> None:
        self._name = name
        self._cls = cls
        self._spawner = spawner
        self._start = start
        self._environment = environment
        self._candidacies = candidacies
        self._delay = RestartDelay()

    async def run(self, *, task_status: trio.TaskStatus[Address]) -> None:
        """Stand as a candidate until the actor has ended and is not restarted. Reports where it
        runs as soon as it does; raises what its first start raises, if it is ours, and
        `ClassMismatchError` if the actor that others have started is not of this class.
        """
        candidacy = self._candidacies.setdefault(self._name, NodeCandidacy())
        candidacy.tasks += 1
        try:
            address = await self._stand()
            task_status.started(address)
            await self._keep(address)
        finally:
            candidacy.tasks -= 1
            if not candidacy.tasks:
                del self._candidacies[self._name]

    @property
    def _candidacy(self) -> NodeCandidacy:
        return self._candidacies[self._name]

    async def _stand(self) -> Address:
        self._candidacy.candidates += 1
        try:
            async with self._candidacy.lock:
                await self._spawner.stand_for(self._name)
            address = await self._current(None)
            self._check_class(address)
            return address
        except BaseException:
            # Whatever the start has raised, and also if the caller was cancelled: lookups of the
            # name wait as long as there is a candidacy for it. A candidacy whose answer was lost
            # may be in the store, too.
            with trio.move_on_after(STAND_DOWN_SECONDS, shield=True):
                await self._stand_down(for_good=False)
            raise

    def _check_class(self, address: Address) -> None:
        """Raise `ClassMismatchError` for an actor of another class: this candidate would start its
        own class in the other's place, though its caller was refused.
        """
        self._spawner.handle(address, self._cls)

    async def _keep(self, address: Address) -> None:
        """Start it again whenever it ends by a failure, until it ends for good."""
        while True:  # noqa: ASYNC913  each turn waits for an end
            since = self._environment.now()
            ended = await self._ended(address)
            if ended.kind not in RESTARTED:
                break
            self._delay.on_ran(self._environment.now() - since, BACKOFF)
            try:
                again = await self._again(address, ended)
                if again is not None:
                    self._check_class(again)
            except (NodeDrainingError, ClassMismatchError) as error:
                # This candidate's own node is leaving as well, or the name is another actor's now.
                logger.info(
                    "this node no longer stands for the singleton %s: %s", self._name, error
                )
                await self._stand_down(for_good=False)
                return
            if again is None:
                break
            address = again
        level = logging.INFO if ended.is_normal or not ended.is_failure else logging.WARNING
        logger.log(
            level,
            "the singleton %s has ended for good, as far as this node is concerned: %s",
            self._name,
            ended,
        )
        await self._stand_down(for_good=True)

    async def _again(self, before: Address, ended: ExitReason) -> Address | None:
        """Return where it runs now, started by this candidate or by another. None if it has ended
        meanwhile and is not restarted.
        """
        while True:  # noqa: ASYNC913  each turn waits, or ends
            delay = self._delay.next(ended, BACKOFF, self._environment.random)
            level = logging.INFO if ended.kind == "node left" else logging.WARNING
            logger.log(
                level,
                "the singleton %s ended: %s; its candidates start it again, this one in %.1f s",
                self._name,
                ended,
                delay,
            )
            until = self._environment.now() + delay
            try:
                while (now := self._environment.now()) < until:
                    # Each candidate has a delay of its own. If another one starts the singleton
                    # during the delay, this one watches it at once, so that it does not miss its
                    # end.
                    await trio.sleep(min(SUCCESSOR_LOOK_SECONDS, until - now))
                    found = await self._spawner.find(self._name)
                    if found is not None and found.epoch != before.epoch:
                        return found
                if delay and not await self._spawner.is_promised(self._name):
                    return None
                return await self._current(before)
            except StoreError as error:
                logger.info(
                    "the singleton %s cannot be started now; the next attempt follows: %s",
                    self._name,
                    error,
                )
                await trio.sleep(STORE_RETRY_SECONDS)
            except NodeDrainingError:
                raise
            except (SpawnError, CallError) as error:
                kind: ExitKind = (
                    "not placed" if isinstance(error, NOT_ITS_FAULT) else "start failed"
                )
                ended = ExitReason(kind, str(error))

    async def _ended(self, address: Address) -> ExitReason:
        """Wait until the actor there has ended, and return the reason."""
        while True:
            try:
                return await self._spawner.watch_address(address)
            except StoreError as error:
                logger.info(
                    "the singleton %s cannot be watched now; the next attempt follows: %s",
                    self._name,
                    error,
                )
            await trio.sleep(STORE_RETRY_SECONDS)

    async def _stand_down(self, *, for_good: bool) -> None:
        # Before the lock, for which the time may not suffice.
        self._candidacy.candidates -= 1
        try:
            async with self._candidacy.lock:
                # Others of this node stand by the same key. They see the same end of the actor,
                # or have begun after it, and then it is started anew.
                if not self._candidacy.candidates:
                    await self._spawner.stand_down(self._name, for_good=for_good)
        except StoreError as error:
            logger.info(
                "could not withdraw the candidacy for %s; it ends with this node's lease: %s",
                self._name,
                error,
            )

    async def _current(self, ended: Address | None) -> Address:
        """Return where it runs, after starting it here if no other candidate was faster. `ended`:
        an epoch of it that does not count.
        """
        while True:
            try:
                return await self._start()
            except NameTakenError:
                found = await self._spawner.find(self._name)
                if found is not None and (ended is None or found.epoch != ended.epoch):
                    return found
            except StoreError as error:
                if ended is None:
                    raise
                logger.info(
                    "the singleton %s cannot be started now; the next attempt follows: %s",
                    self._name,
                    error,
                )
            # The name is released with the lease of the node that had it.
            await trio.sleep(CLAIM_RETRY_SECONDS)


class Candidacies:
    """The singletons that a node stands for."""

    def __init__(self, spawner: ActorSpawner, environment: Environment) -> None:
        self._spawner = spawner
        self._environment = environment
        self._nursery: trio.Nursery | None = None
        self._candidacies: dict[str, NodeCandidacy] = {}
        """The candidacies by the singletons' names."""

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps: for tests and simulations."""
        assert all(0 <= one.candidates <= one.tasks > 0 for one in self._candidacies.values())

    def run_in(self, nursery: trio.Nursery) -> None:
        """Run the candidates in `nursery`, from when the node begins to serve until it leaves."""
        self._nursery = nursery

    async def stand(self, request: StartRequest) -> Address:
        """Make this node a candidate for the singleton that `request` names, and return its address
        once it runs on any node. Raises what its first start on this node raises, and
        `ClassMismatchError` if an actor of another class runs.
        """
        name = request.options.name
        assert name is not None
        assert self._nursery is not None, "the node serves"
        start = partial(self._spawner.start_candidate, request)
        candidate = Singleton(
            name, request.cls, self._spawner, start, self._environment, self._candidacies
        )
        address: Address = await self._nursery.start(candidate.run, name=f"candidate for {name}")
        return address
