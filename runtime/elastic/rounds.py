"""An agent's way into a round: the rendezvous, then the ranks of all workers, then the address of
rank 0; and following the round after that.
"""

from __future__ import annotations

import math
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Literal

import attrs
import trio

from actors.errors import HandshakeError
from actors.own_logger import own_logger
from runtime.elastic import ranks
from runtime.elastic.budget import (
    RestartDecision,
    RestartHistory,
    WorkerFailure,
    ask,
    decode_failure,
    decode_history,
    encode_failure,
    encode_history,
    in_order,
)
from runtime.elastic.machine import AgentLost, Join, JoinFailed, MembershipChanged
from runtime.elastic.ranks import RankAssignment, RankedAgent
from runtime.elastic.settings import ElasticSettings
from runtime.environment import Environment
from runtime.rendezvous.interface import (
    KeyValueStore,
    RendezvousChange,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)
from runtime.rendezvous.parameters import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousFinishedError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
    RoundOverError,
    StoreTimeoutError,
)

logger = own_logger("understudy.elastic")

# Records that the agents of a job share across rounds, in the job's store: restarts, failures, and
# which agents have finished.
#
# The store may be away when there is something to write. Failures and restarts wait for it for at
# most `RECORD_SECONDS`. After that, a failure is known only to this agent, and a restart is
# refused.

RECORD_SECONDS = 5.0
"""Seconds for one read or write of these records."""


MAX_FAILURES = 64
"""How many failures are kept and read for a report: the latest ones."""


RESTARTS = "elastic/restarts"
"""The key of the `RestartHistory`."""


FAILURE_COUNT = "elastic/failures/count"
"""The key of a counter: the number of the latest failure."""

MEMBER, PLACES = "elastic/members/{}", "elastic/places"
"""Keys of a round: the description of an agent, by its rank in the rendezvous; all ranks."""

ROLL_CALL, PRESENT = "elastic/roll-call", "elastic/here/{}"
"""Keys of a round: an agent asks for a roll call; the answer of an agent, by its rank."""

CUT_OFF_SECONDS = 3.0
"""Seconds for which a handler that cannot reach its store is retried before this agent counts as
cut off. Shorter than a lease, so that workers stop before others may replace them.
"""

PAUSE_SECONDS = 0.5
"""Seconds between two attempts to follow a round, and between two equal changes of it."""

FIRST_DELAY, LONGEST_DELAY = 0.2, 5.0
"""Seconds between two attempts to join: doubled from the first to the longest."""

OpenHandler = Callable[[], RendezvousHandler]
"""Makes a handler for the job. If it is an asynchronous context manager, leaving it leaves the
rendezvous.
"""


class Records:
    """Reads and writes these records for one agent. `store` is set with the first round."""

    def __init__(self, environment: Environment, limit: int, window: float) -> None:
        self.store: KeyValueStore | None = None
        self._environment = environment
        self._limit = limit
        self._window = window
        self._seen = 0
        self._seen_at: float | None = None
        self._own: list[WorkerFailure] = []

    async def restarts(self) -> int:
        """Return the number of restarts that the job has had."""
        return (await self._history()).granted

    async def ask_restart(self, incident: str, agent: str) -> tuple[bool, str]:
        """Ask for a restart; return whether it is granted, and if not, why."""
        why = (
            f"the job's store did not answer the request for a restart within {RECORD_SECONDS:g} s"
        )
        try:
            with trio.move_on_after(RECORD_SECONDS):
                decision = await self._ask(incident, agent)
                if decision.granted:
                    return True, ""
                if not self._limit:
                    return False, "no restart is allowed (--max-restarts 0)"
                within = "" if self._window == float("inf") else f" within {self._window:g} s"
                return (
                    False,
                    f"no restart is left: the job has used {decision.recent} of {self._limit} "
                    f"allowed{within} (--max-restarts)",
                )
        except RendezvousError as error:
            why = str(error)
        return False, f"no restart: {why}"

    async def add_failure(self, failure: WorkerFailure) -> WorkerFailure:
        """Write a failure to the store. Returns it with its number from the store, which orders the
        failures of all agents.
        """
        numbered = failure
        try:
            with trio.move_on_after(RECORD_SECONDS):
                if self.store is not None:
                    number = await self.store.add(FAILURE_COUNT, 1)
                    numbered = attrs.evolve(failure, number=number)
                    await self.store.set(_failure_key(number), encode_failure(numbered))
        except RendezvousError:
            # The store is away, so only this agent reports the failure.
            pass
        self._own.append(numbered)
        del self._own[:-MAX_FAILURES]
        assert len(self._own) <= MAX_FAILURES, "failures are bounded"
        return numbered

    async def failures(self, from_round: int) -> list[WorkerFailure]:
        """Return the failures of all agents since a round began, in the order in which they were
        seen.
        """
        found = [failure for failure in self._own if failure.round >= from_round]
        try:
            with trio.move_on_after(RECORD_SECONDS):
                if self.store is not None:
                    count = int(await self.store.peek(FAILURE_COUNT) or b"0")
                    for number in range(max(1, count - MAX_FAILURES + 1), count + 1):
                        value = await self.store.peek(_failure_key(number))
                        failure = decode_failure(value) if value is not None else None
                        if failure is not None and failure.round >= from_round:
                            found.append(failure)
        except (RendezvousError, ValueError):
            # The store is away: report what is known here.
            pass
        return in_order(found)

    async def mark_done(self, agent: str, *, failed: bool) -> None:
        """Record that all workers of an agent have ended. Raises `RendezvousError`."""
        if self.store is not None:
            await self.store.set(_done_key(agent), b"failed" if failed else b"finished")

    async def done(self, agents: Sequence[str]) -> dict[str, bool]:
        """Return which of these agents are done, each with whether one of its workers failed for
        good. Raises `RendezvousError`.
        """
        found: dict[str, bool] = {}
        if self.store is not None:
            for agent in agents:
                value = await self.store.peek(_done_key(agent))
                if value is not None:
                    found[agent] = value == b"failed"
        return found

    async def _history(self) -> RestartHistory:
        history = (
            decode_history(await self.store.peek(RESTARTS))
            if self.store is not None
            else RestartHistory()
        )
        self._look_at(history)
        return history

    def _look_at(self, history: RestartHistory) -> None:
        """Note when the last entry of the list was first seen. Its age is measured from then on by
        this agent's clock, because clocks of hosts are never compared.
        """
        total = history.dropped + len(history.counted)
        if total != self._seen:
            self._seen, self._seen_at = total, self._environment.now()

    async def _ask(self, incident: str, agent: str) -> RestartDecision:
        if self.store is None:
            raise RendezvousStateError(
                "the job's store is not known before the first round; join a round first"
            )
        # Repeated only when another agent has written the list in between; `ask_restart` bounds
        # the time.
        while True:
            before = await self.store.peek(RESTARTS)
            history = decode_history(before)
            self._look_at(history)
            gap = 0.0 if self._seen_at is None else self._environment.now() - self._seen_at
            decision = ask(history, incident, agent, gap, self._limit, self._window)
            if decision.history == history:
                return decision
            done, _ = await self.store.compare_set(
                RESTARTS, before, encode_history(decision.history)
            )
            if done:
                self._look_at(decision.history)
                return decision


def _failure_key(number: int) -> str:
    return f"elastic/failures/{number}"


def _done_key(agent: str) -> str:
    return f"elastic/done/{agent}"


class RoundJoinError(Exception):
    """There is no round; `event` has the reason."""

    def __init__(self, event: JoinFailed) -> None:
        super().__init__(event.text)
        self.event = event

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.event,), vars(self)


@attrs.define
class Reservation:
    """A reserved port for rank 0. While the socket is open, the kernel gives the port only to
    processes that ask for exactly this port, and to none that ask for any free port.
    """

    port: int
    sockets: list[socket.socket]

    def close(self) -> None:
        """Close the sockets, which frees the port."""
        for each in self.sockets:
            each.close()


def reserve_port(port: int = 0) -> Reservation:
    """Bind a port on all addresses without listening, so that a worker can listen there (both with
    SO_REUSEADDR). Raises OSError.
    """
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            bound = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            bound.bind((address, port))
        except OSError:
            bound.close()
            if family == socket.AF_INET:
                raise
            continue
        return Reservation(bound.getsockname()[1], [bound])
    raise OSError("cannot bind a port: this machine has neither IPv6 nor IPv4")


class Rounds:
    """One agent's rendezvous. `master_address`: the address at which others reach this machine."""

    def __init__(
        self,
        open_handler: OpenHandler,
        settings: ElasticSettings,
        records: Records,
        environment: Environment,
        master_address: str,
    ) -> None:
        self._open_handler = open_handler
        self._settings = settings
        self._records = records
        self._environment = environment
        self._master_address = master_address
        self._handler: RendezvousHandler | None = None
        self._release = trio.Event()
        self._released = trio.Event()
        self._reservation: Reservation | None = None
        self._early: list[RendezvousChange] = []
        """A change that came before `follow` began; at most one."""
        self.info: RendezvousInfo | None = None
        self.name = ""

    async def _open(self, nursery: trio.Nursery) -> None:
        """Make a handler, held by a task in `nursery`. Raises what making one raises."""
        self._handler = await nursery.start(self._hold)

    async def aclose(self) -> None:
        """Leave the rendezvous without closing it for others. May be called again."""
        if self._reservation is not None:
            self._reservation.close()
            self._reservation = None
        if self._handler is not None:
            self._release.set()
            await self._released.wait()
            self._handler = None

    async def _hold(self, *, task_status: trio.TaskStatus[RendezvousHandler]) -> None:
        """Keep a handler open until `aclose`.

        It runs in its own task, because a handler must be left in the task that entered it. It is
        shielded until `aclose`: if the agent is cancelled, its workers are killed first, and only
        then may other agents take their places.
        """
        self._release, self._released = trio.Event(), trio.Event()
        # By its own name: the attributes are replaced when another handler is opened.
        released = self._released
        try:
            handler = self._open_handler()
            async with AsyncExitStack() as stack:
                if isinstance(handler, AbstractAsyncContextManager):
                    await stack.enter_async_context(handler)
                task_status.started(handler)
                # A handler is left in the task that entered it, and only once it was released: also
                # when the agent is being cancelled, it may still have to close the rendezvous.
                with trio.CancelScope(shield=True):
                    await self._release.wait()
        finally:
            released.set()

    async def close(self, reason: str, *, finished: bool = False) -> None:
        """Close the rendezvous: no round follows for any agent."""
        if self._handler is not None:
            await self._handler.set_closed(reason, finished=finished)

    async def join(
        self, order: Join, before: RankAssignment | None, nursery: trio.Nursery
    ) -> RankAssignment:
        """Take part in the next round, with a handler that a task in `nursery` holds. Raises
        `RoundJoinError`, and ValueError for a handler that cannot be made.
        """
        if order.behind_spares:
            # Join again as a new agent, so that agents which have waited get the place first.
            await self.aclose()
            before = None
        delay = FIRST_DELAY
        deadline = self._environment.now() + self._settings.join_timeout
        while True:
            try:
                if self._handler is None:
                    await self._open(nursery)
                return await self._join(before)
            except RendezvousGracefulExitError as error:
                raise RoundJoinError(JoinFailed("spare", str(error))) from error
            except RendezvousClosedError as error:
                kind: Literal["finished", "closed"] = (
                    "finished" if isinstance(error, RendezvousFinishedError) else "closed"
                )
                raise RoundJoinError(JoinFailed(kind, str(error))) from error
            except RendezvousStateError as error:
                raise RoundJoinError(JoinFailed("other", str(error))) from error
            except RendezvousConnectionError as error:
                if self._handler is None and (
                    self.info is None or isinstance(error.__cause__, HandshakeError)
                ):
                    # The store was never reached although this agent waited for it, or another
                    # program answers at its address. Waiting longer changes nothing.
                    raise RoundJoinError(JoinFailed("other", str(error))) from error
                if not order.patient or self._environment.now() >= deadline:
                    raise RoundJoinError(JoinFailed("lost", str(error))) from error
                logger.warning("%s; trying again", error)
            except RendezvousTimeoutError as error:
                raise RoundJoinError(JoinFailed("timeout", str(error))) from error
            except RendezvousError as error:
                # The round ended before its ranks were known.
                if self._environment.now() >= deadline:
                    raise RoundJoinError(JoinFailed("timeout", str(error))) from error
                logger.info("%s; joining the next round", error)
            await trio.sleep(delay * (0.5 + self._environment.random()))
            delay = min(2 * delay, LONGEST_DELAY)

    async def follow(self) -> AsyncIterator[MembershipChanged | AgentLost]:
        """Yield the changes of the round. The last one is `AgentLost` if this agent is cut off."""
        assert self.info is not None
        last: MembershipChanged | None = None
        away_since: float | None = None
        while True:
            try:
                event = await self._next_change(self.info)
            except RendezvousStateError as error:
                yield AgentLost(str(error))
                return
            except RendezvousError as error:
                now = self._environment.now()
                away_since = now if away_since is None else away_since
                if now - away_since >= CUT_OFF_SECONDS:
                    yield AgentLost(str(error))
                    return
                await trio.sleep(PAUSE_SECONDS)
                continue
            away_since = None
            if event == last:
                # A handler that reports the same change again and again must not keep this agent
                # busy.
                await trio.sleep(PAUSE_SECONDS)
                continue
            last = event if isinstance(event, MembershipChanged) else None
            yield event
            if isinstance(event, AgentLost):
                return

    async def _next_change(self, info: RendezvousInfo) -> MembershipChanged | AgentLost:
        assert self._handler is not None
        change = self._early.pop(0) if self._early else await self._handler.wait_change(info.round)
        if self.name in change.left:
            return AgentLost(
                "this agent is no longer part of the round: it could not renew its lease in time"
            )
        done = await self._records.done(info.participants)
        left = tuple(name for name in change.left if name not in done)
        # When an agent has finished, the job is about to end. Agents that wait then were only let
        # in for the place of the finished agent, so they are no reason for a new round.
        waiting = change.waiting if not done else 0
        return MembershipChanged(left, waiting, change.closed, change.finished)

    async def roll_call(self) -> None:
        """Wait until each other agent of the round has reported, after this moment, that it is
        alive or done. Never returns if one of them is lost.
        """
        assert self.info is not None
        store, everyone = (
            self.info.store,
            [PRESENT.format(rank) for rank in range(self.info.world_size)],
        )
        while True:
            try:
                await store.set(ROLL_CALL, b"")
                # Without a time-out: the caller has one, and a lost agent ends the round.
                await store.wait(everyone, timeout=math.inf)
                return
            except RendezvousError as error:
                # `follow` reports changes of the round and errors of the store.
                logger.debug(
                    "the roll call in round %d failed, trying again: %s", self.info.round, error
                )
                await trio.sleep(PAUSE_SECONDS)

    async def answer_roll_calls(self, is_well: Callable[[], bool]) -> None:
        """Answer a roll call: report that this agent is alive, unless `is_well` says that its
        workers were killed.

        One roll call a round is enough, because each ends in another round or in the end of the
        job.
        """
        assert self.info is not None
        store, rank = self.info.store, self.info.rank
        while True:
            try:
                await store.get(ROLL_CALL, timeout=math.inf)
                if is_well():
                    await store.set(PRESENT.format(rank), b"")
                return
            except RendezvousError as error:
                logger.debug(
                    "could not answer roll calls of round %d, trying again: %s",
                    self.info.round,
                    error,
                )
                await trio.sleep(PAUSE_SECONDS)

    async def answer_in_advance(self) -> None:
        """Answer the roll call in advance, because this agent is done and about to leave. Raises
        `RendezvousError`.
        """
        assert self.info is not None
        try:
            await self.info.store.set(PRESENT.format(self.info.rank), b"")
        except RoundOverError:
            # The round is over, so no agent asks any more.
            pass

    async def _join(self, before: RankAssignment | None) -> RankAssignment:
        assert self._handler is not None
        info = await self._handler.next_rendezvous()
        self.info = info
        self.name = info.participants[info.rank] if info.participants else str(info.rank)
        self._records.store = info.job_store if info.job_store is not None else info.store
        self._early.clear()
        placement: RankAssignment | None = None
        failure: RendezvousError = StoreTimeoutError(
            f"round {info.round} has ended before its ranks were known"
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_assignment, info.round, nursery.cancel_scope)
            try:
                placement = await self._place(info, before)
            except RendezvousError as error:
                # Raised after the nursery, which would put it into a group.
                failure = error
            nursery.cancel_scope.cancel()
        if placement is None:
            raise failure
        return placement

    async def _watch_assignment(self, round_: int, scope: trio.CancelScope) -> None:
        """Cancel `scope` if an agent that it may wait for has gone. The first other change is kept
        for `follow`; later ones are contained in what the handler reports next.
        """
        assert self._handler is not None
        try:
            while True:
                change = await self._handler.wait_change(round_)
                if change.left or change.closed:
                    scope.cancel()
                    return
                if not self._early:
                    self._early.append(change)
                assert len(self._early) == 1
                await trio.sleep(PAUSE_SECONDS)
        except RendezvousError:
            # The task that waits for the placement gets the same error, and handles it.
            pass

    async def _place(self, info: RendezvousInfo, before: RankAssignment | None) -> RankAssignment:
        """Agree on the ranks of the round: each agent writes its description, and the first one
        assigns all ranks.
        """
        timeout = self._settings.join_timeout
        previous = before.own.group_rank if before is not None else None
        own = RankedAgent(self.name, self._settings.role, self._settings.local_world_size, previous)
        # Before anything is waited for: the first agent waits for the descriptions of all.
        await info.store.set(MEMBER.format(info.rank), ranks.encode_member(own))
        if info.rank == 0:
            values = await info.store.multi_get(
                [MEMBER.format(rank) for rank in range(info.world_size)], timeout=timeout
            )
            places = ranks.assign([ranks.decode_member(value) for value in values])
            await info.store.set(
                PLACES, ranks.encode_places(places, await self._records.restarts())
            )
        placement = ranks.decode_places(
            await info.store.get(PLACES, timeout=timeout), info.round, self.name
        )
        rules = self._settings.rules
        if self._reservation is not None and (
            placement.own.group_rank != 0 or (rules.policy == "group" and not rules.notify)
        ):
            # All workers start anew. With a new port, processes of an earlier round cannot disturb
            # them.
            self._reservation.close()
            self._reservation = None
        if placement.own.group_rank == 0:
            where = await RendezvousStoreInfo.build(
                0, info.store, self._master_address, self._reserve()
            )
        else:
            where = await RendezvousStoreInfo.build(
                placement.own.group_rank, info.store, timeout=timeout
            )
        return placement.at(where.master_addr, where.master_port)

    def _reserve(self) -> int:
        """Return the port of rank 0. It is bound here before other agents learn it, and kept while
        this agent has rank 0.
        """
        if self._reservation is None:
            if self._settings.master_port:
                return self._settings.master_port
            self._reservation = reserve_port()
        return self._reservation.port
