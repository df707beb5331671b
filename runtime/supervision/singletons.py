"""Singletons: actors of which the cluster has exactly one, as long as one of their candidates
lives. The root of a tree is one.

Every node that asks for the actor is a candidate. The claim of its name in the store elects: one
transaction, tied to the lease of the node that makes it, so there are never two. All watch the
actor, and when it crashes, or its node dies or leaves, they try again: at once after the first
death of a node, with back-off after crashes and starts that fail, and before its end if a node has
room again that had none. If it ends normally it has ended
for all: one that was stopped, or a root supervisor that gave up, is not started again.

The candidates may have been given different arguments, with which each starts the actor, but not
different classes: one that finds an actor of another class under the name is no candidate for it.
Classes that compare more than that derive from `CandidateComparison`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod

import attrs
import trio

from actors.errors import (
    CallError,
    ClassMismatchError,
    NameTakenError,
    NodeDrainingError,
    NoPlacementError,
    SpawnError,
    StoreError,
)
from actors.handle import Handle
from actors.method import Address
from actors.own_logger import own_logger
from actors.restart_intensity import RestartDelay
from actors.supervision import ExitKind, ExitReason, RestartBackoff
from runtime.calls.arguments import StartRequest
from runtime.environment import Environment
from runtime.hosting.starts import EndedInStartError
from runtime.membership.restart_intents import RESTARTED
from runtime.supervision.child_start import NO_ROOM, is_its_fault
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


BACKOFF = RestartBackoff()
"""The delays between its restarts. It has no supervisor, so their number is not limited."""


class CandidateComparison(ABC):
    """A base of actor classes of which one instance may not take the place of any other: candidates
    compare more than the class.
    """

    @classmethod
    @abstractmethod
    async def compare(cls, running: Handle, args: tuple[object, ...]) -> None:
        """Ask the singleton that runs what it is. Raises `ClassMismatchError` if it is another one
        than these arguments of a constructor make, and `CallError` if it does not say so.
        """


@attrs.define(eq=False)
class NodeCandidacy:
    """The candidacy of this node for one singleton: one key in the store, however many candidates
    share it. `candidates`: those that stand. `tasks`: with those that are about to end. `lock`: of
    those that write or withdraw the key. `ended`: the latest epoch that ended for good, and how.
    """

    candidates: int = 0
    tasks: int = 0
    ended: tuple[int, ExitReason] | None = None
    lock: trio.Lock = attrs.field(factory=trio.Lock)


class Singleton:
    """One candidate for the actor that `request` names. `candidacies`: those of its node, by the
    names of the singletons; this one is among them while it runs.
    """

    def __init__(
        self,
        request: StartRequest,
        spawner: ActorSpawner,
        environment: Environment,
        candidacies: dict[str, NodeCandidacy],
    ) -> None:
        assert request.options.name is not None, "a singleton has a name"
        self._name = request.options.name
        self._request = request
        self._spawner = spawner
        self._environment = environment
        self._candidacies = candidacies
        self._delay = RestartDelay()

    async def run(self, *, task_status: trio.TaskStatus[Address]) -> None:
        """Stand as a candidate until the actor has ended and is not restarted. Reports where it
        runs as soon as it does; raises what its first start raises, if it is ours, and
        `ClassMismatchError` if the actor that others have started is another one, see `_check`.
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
            address = await self._first()
            await self._check(address)
            return address
        except BaseException:
            # Whatever the start has raised, and also if the caller was cancelled: lookups of the
            # name wait as long as there is a candidacy for it. A candidacy whose answer was lost
            # may be in the store, too.
            with trio.move_on_after(STAND_DOWN_SECONDS, shield=True):
                await self._stand_down(for_good=False)
            raise

    async def _first(self) -> Address:
        try:
            address = await self._current(None)
            assert address is not None, "no epoch has ended that counts"
            return address
        except NoPlacementError as error:
            why, node = str(error), error.node
        raise NoPlacementError(
            f"{why}. A singleton is started by nodes that ask for it, each on itself: ask for "
            f"{self._name} on a node that its options fit",
            actor=self._name,
            node=node,
        )

    async def _check(self, address: Address) -> None:
        """Raise `ClassMismatchError` for an actor of another class, or one that differs as
        `CandidateComparison` says: this candidate would start its own in the other's place, though
        its caller was refused.
        """
        cls = self._request.cls
        running = self._spawner.handle(address, cls)
        if issubclass(cls, CandidateComparison):
            await self._compare(cls, running, address)

    async def _compare(
        self, cls: type[CandidateComparison], running: Handle, address: Address
    ) -> None:
        refusal: ClassMismatchError | None = None
        async with trio.open_nursery() as nursery:

            async def give_up() -> None:
                # A call to it waits for its successor, which this candidate has to start, perhaps.
                await self._ended(address)
                nursery.cancel_scope.cancel()

            nursery.start_soon(give_up)
            try:
                await cls.compare(running, self._request.args)
            except ClassMismatchError as error:
                # Not raised in here, where it would be raised in a group.
                refusal = error
            except CallError as error:
                # It has ended, or moves: its end is seen next, and its successor is compared.
                logger.info("the singleton %s does not say what it is: %s", self._name, error)
            nursery.cancel_scope.cancel()
        if refusal is not None:
            try:
                raise refusal
            finally:
                # No circle with this frame, which the traceback has.
                del refusal

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
                    await self._check(again)
            except (NodeDrainingError, ClassMismatchError) as error:
                # This candidate's own node is leaving as well, or the name is another actor's now.
                logger.info(
                    "this node no longer stands for the singleton %s: %s", self._name, error
                )
                await self._stand_down(for_good=False)
                return
            if again is None:
                # How a later epoch has ended, which this candidate has not seen.
                ended = self._ended_for_good(address) or ended
                break
            address = again
        level = logging.INFO if ended.is_normal or not ended.is_failure else logging.WARNING
        logger.log(
            level,
            "the singleton %s has ended for good, as far as this node is concerned: %s",
            self._name,
            ended,
        )
        if self._ended_for_good(address) is None:
            self._candidacy.ended = (address.epoch, ended)
        await self._stand_down(for_good=True)

    def _ended_for_good(self, before: Address) -> ExitReason | None:
        """Return how the singleton has ended for good after `before`, as another candidate of this
        node has seen. None if none has.
        """
        ended = self._candidacy.ended
        return ended[1] if ended is not None and ended[0] > before.epoch else None

    async def _again(self, before: Address, ended: ExitReason) -> Address | None:
        """Return where it runs now, started by this candidate or by another. None if it has ended
        meanwhile and is not restarted.
        """
        unplaced: ExitReason | None = None
        lacks_room, seen = False, 0
        while True:  # noqa: ASYNC913  each turn waits, or ends
            delay = self._delay.next(ended, BACKOFF, self._environment.random)
            # A lack of room is one for hours, perhaps: it is logged again when it is another one.
            is_known = ended.kind == "node left" or ended == unplaced
            level = logging.INFO if is_known else logging.WARNING
            unplaced = ended if ended.kind == "not placed" else None
            logger.log(
                level,
                "the singleton %s ended: %s; its candidates start it again, this one in %.1f s",
                self._name,
                ended,
                delay,
            )
            until = self._environment.now() + delay
            try:
                has_room = False
                while (now := self._environment.now()) < until and not has_room:
                    # Each candidate has a delay of its own. If another one starts the singleton
                    # during the delay, this one watches it at once, so that it does not miss its
                    # end.
                    seconds = min(SUCCESSOR_LOOK_SECONDS, until - now)
                    if lacks_room:
                        options = self._request.options
                        has_room = await self._spawner.wait_for_room_here(options, seen, seconds)
                    else:
                        await trio.sleep(seconds)
                    found = await self._spawner.find(self._name)
                    if found is not None and found.epoch != before.epoch:
                        await self._forget_unstarted()
                        return found
                if delay and not await self._spawner.is_promised(self._name):
                    return None
                seen = self._spawner.room.changes
                current = await self._current(before)
                await self._forget_unstarted()
                return current
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
                cause = error.__cause__
                if isinstance(cause, EndedInStartError) and cause.reason.kind not in RESTARTED:
                    # It was stopped while this candidate started it.
                    self._candidacy.ended = (cause.epoch, cause.reason)
                    return None
                kind: ExitKind = "start failed" if is_its_fault(error) else "not placed"
                ended, lacks_room = ExitReason(kind, str(error)), isinstance(error, NO_ROOM)
                await self._record_unstarted(str(error))

    async def _record_unstarted(self, why: str) -> None:
        """Record why it does not run, for those that wait for it."""
        try:
            await self._spawner.record_unstarted(self._name, why)
        except StoreError as error:
            logger.debug("why %s does not run could not be recorded: %s", self._name, error)

    async def _forget_unstarted(self) -> None:
        """It runs, or this node does not stand for it any more."""
        try:
            await self._spawner.forget_unstarted(self._name)
        except StoreError as error:
            logger.debug("why %s did not run is deleted later: %s", self._name, error)

    async def _ended(self, address: Address) -> ExitReason:
        """Wait until the actor there has ended, and return the reason: "no such actor" if its node
        does not have it, nor knows its end, and the name is free or another epoch's.
        """
        while True:
            try:
                reason = await self._spawner.watch_address(address)
                if reason.kind != "no such actor":
                    return reason
                # The name is claimed before the actor is there. If the answer to the claim is lost,
                # the start has failed, and the name is released soon.
                found = await self._spawner.find(self._name)
                if found is None or found.epoch != address.epoch:
                    return reason
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
        if not self._candidacy.candidates:
            await self._forget_unstarted()
        try:
            async with self._candidacy.lock:
                # Others of this node stand by the same key. They see the same end of the actor, or
                # find it in `NodeCandidacy.ended`, or have begun after it, and then it is started
                # anew.
                if not self._candidacy.candidates:
                    await self._spawner.stand_down(self._name, for_good=for_good)
        except StoreError as error:
            logger.info(
                "could not withdraw the candidacy for %s; it ends with this node's lease: %s",
                self._name,
                error,
            )

    async def _current(self, ended: Address | None) -> Address | None:
        """Return where it runs, after starting it here if no other candidate was faster. `ended`:
        an epoch of it that does not count. None if a later epoch has ended for good.
        """
        while ended is None or self._ended_for_good(ended) is None:
            try:
                return await self._spawner.start_candidate(self._request)
            except NameTakenError:
                found = await self._other(ended)
                if found is not None:
                    return found
            except NoPlacementError:
                # It may run on another node. This one stands for it all the same: there may be
                # room when it is needed here.
                found = await self._other(ended)  # noqa: ASYNC120  decides whether it is an error
                if found is not None:
                    return found
                raise
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
            if not await self._spawner.is_promised(self._name):
                if ended is not None:
                    # That was a later epoch, which has ended for good.
                    return None
                # It had ended for good when this candidate came: it is started anew.
                async with self._candidacy.lock:
                    await self._spawner.stand_for(self._name)
        return None

    async def _other(self, ended: Address | None) -> Address | None:
        """Return where another epoch of it than `ended` runs; None if there is none."""
        found = await self._spawner.find(self._name)
        return (
            found if found is not None and (ended is None or found.epoch != ended.epoch) else None
        )


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

    def end(self) -> None:
        """Start no singleton here any more: this node stops its actors, and then leaves. Its
        candidates stand down when they would start one.
        """
        self._spawner.start_no_candidates()

    async def stand(self, request: StartRequest) -> Address:
        """Make this node a candidate for the singleton that `request` names, and return its address
        once it runs on any node. Raises what its first start on this node raises, and
        `ClassMismatchError` if another actor runs under the name.
        """
        name = request.options.name
        assert self._nursery is not None, "the node serves"
        candidate = Singleton(request, self._spawner, self._environment, self._candidacies)
        address: Address = await self._nursery.start(candidate.run, name=f"candidate for {name}")
        return address
