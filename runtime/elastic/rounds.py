"""How an agent comes into a round: the rendezvous, then the ranks of all workers, then where rank 0 listens; and what happens then."""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Literal, Protocol

import attrs
import trio

from actors.errors import HandshakeError
from runtime.elastic import ranks
from runtime.elastic.machine import Join, JoinFailed, Lost, MembershipChanged
from runtime.elastic.ranks import Member, Placement
from runtime.elastic.records import Records
from runtime.elastic.settings import Settings
from runtime.environment import Environment
from runtime.rendezvous.errors import (
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
from runtime.rendezvous.interface import RendezvousChange, RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

logger = logging.getLogger("understudy.elastic")

MEMBER, PLACES = "elastic/members/{}", "elastic/places"
ROLL_CALL, HERE = "elastic/roll-call", "elastic/here/{}"
CUT_OFF_SECONDS = 3.0
"""So long a handler that cannot reach its store is asked again, before this agent counts as cut off: less than a lease."""
PAUSE_SECONDS = 0.5
FIRST_DELAY, LONGEST_DELAY = 0.2, 5.0


class JoinError(Exception):
    """There is no round; `event` says why."""

    def __init__(self, event: JoinFailed) -> None:
        super().__init__(event.text)
        self.event = event

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.event,), vars(self)


class OpenHandler(Protocol):
    """Makes a handler for the job. If it is an asynchronous context manager, leaving it leaves the rendezvous."""

    def __call__(self) -> RendezvousHandler:
        """A new one."""
        ...


@attrs.define
class Reservation:
    """A port of rank 0. As long as the socket is open nobody is given the port who asks for any; who asks for just this one gets it."""

    port: int
    sockets: list[socket.socket]

    def close(self) -> None:
        """Give it back."""
        for each in self.sockets:
            each.close()


def reserve_port(port: int = 0) -> Reservation:
    """Bind a port on all addresses without listening, so that a worker can listen there (both with SO_REUSEADDR). Raises OSError."""
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
    raise OSError("no port can be had: there is neither IPv6 nor IPv4 here")


class Rounds:
    """One agent's rendezvous. `master_address`: under which others reach this machine."""

    def __init__(
        self, open_handler: OpenHandler, settings: Settings, records: Records, environment: Environment, master_address: str
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
        self.info: RendezvousInfo | None = None
        self.name = ""

    async def _open(self, nursery: trio.Nursery) -> None:
        """Have a handler, held by a task in `nursery`. Raises what making one raises."""
        self._handler = await nursery.start(self._hold)

    async def aclose(self) -> None:
        """Leave, without closing it for others. Can be called again."""
        if self._reservation is not None:
            self._reservation.close()
            self._reservation = None
        if self._handler is not None:
            self._release.set()
            await self._released.wait()
            self._handler = None

    async def _hold(self, *, task_status: trio.TaskStatus[RendezvousHandler]) -> None:
        """Keep a handler open until it is to be left: in a task of its own, because it is left from other places than it was entered.

        Shielded until then: whoever cancels the agent has its workers killed first, and only then may others take their places.
        """
        self._release, self._released = trio.Event(), trio.Event()
        released = self._released
        try:
            handler = self._open_handler()
            async with AsyncExitStack() as stack:
                if isinstance(handler, AbstractAsyncContextManager):
                    await stack.enter_async_context(handler)
                task_status.started(handler)
                with trio.CancelScope(shield=True):
                    await self._release.wait()
        finally:
            released.set()

    async def close(self, reason: str, *, finished: bool = False) -> None:
        """No round is to follow, for anybody."""
        if self._handler is not None:
            await self._handler.set_closed(reason, finished=finished)

    async def join(self, order: Join, before: Placement | None, nursery: trio.Nursery) -> Placement:
        """Take part in the next round, with a handler that a task in `nursery` holds. Raises `JoinError`, and ValueError for a handler that
        cannot be made.
        """
        if order.behind_spares:
            # As somebody new: whoever waited has the place first.
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
                raise JoinError(JoinFailed("spare", str(error))) from error
            except RendezvousClosedError as error:
                kind: Literal["finished", "closed"] = "finished" if isinstance(error, RendezvousFinishedError) else "closed"
                raise JoinError(JoinFailed(kind, str(error))) from error
            except RendezvousStateError as error:
                raise JoinError(JoinFailed("other", str(error))) from error
            except RendezvousConnectionError as error:
                if self._handler is None and (self.info is None or isinstance(error.__cause__, HandshakeError)):
                    # It was never there, and has been waited for; or it is somebody else: waiting changes nothing.
                    raise JoinError(JoinFailed("other", str(error))) from error
                if not order.patient or self._environment.now() >= deadline:
                    raise JoinError(JoinFailed("lost", str(error))) from error
                logger.warning("%s; trying again", error)
            except RendezvousTimeoutError as error:
                raise JoinError(JoinFailed("timeout", str(error))) from error
            except RendezvousError as error:
                # The round came to an end before its ranks were known.
                if self._environment.now() >= deadline:
                    raise JoinError(JoinFailed("timeout", str(error))) from error
                logger.info("%s; on to the next round", error)
            await trio.sleep(delay * (0.5 + self._environment.random()))
            delay = min(2 * delay, LONGEST_DELAY)

    async def follow(self) -> AsyncIterator[MembershipChanged | Lost]:
        """What happens to the round; the last is `Lost` if this agent is cut off."""
        assert self.info is not None
        told: MembershipChanged | None = None
        away_since: float | None = None
        while True:
            try:
                event = await self._next_change(self.info)
            except RendezvousStateError as error:
                yield Lost(str(error))
                return
            except RendezvousError as error:
                now = self._environment.now()
                away_since = now if away_since is None else away_since
                if now - away_since >= CUT_OFF_SECONDS:
                    yield Lost(str(error))
                    return
                await trio.sleep(PAUSE_SECONDS)
                continue
            away_since = None
            if event == told:
                # A handler that repeats itself is not to keep this agent busy.
                await trio.sleep(PAUSE_SECONDS)
                continue
            told = event if isinstance(event, MembershipChanged) else None
            yield event
            if isinstance(event, Lost):
                return

    async def _next_change(self, info: RendezvousInfo) -> MembershipChanged | Lost:
        assert self._handler is not None
        change = self._early.pop(0) if self._early else await self._handler.wait_change(info.round)
        if self.name in change.left:
            return Lost("this agent is no part of the round any more: its lease could not be renewed in time")
        done = await self._records.done(info.participants)
        left = tuple(name for name in change.left if name not in done)
        # Where somebody has finished the job nears its end, and those that wait were let in by the place that this made free.
        waiting = change.waiting if not done else 0
        return MembershipChanged(left, waiting, change.closed, change.finished)

    async def roll_call(self) -> None:
        """Wait until all agents of the round have said, after this moment, that they are there, or are done. For ever if one is lost."""
        assert self.info is not None
        store, everyone = self.info.store, [HERE.format(rank) for rank in range(self.info.world_size)]
        while True:
            try:
                await store.set(ROLL_CALL, b"")
                await store.wait(everyone, timeout=math.inf)
                return
            except RendezvousError as error:
                # What has happened to the round or to the store is told by `follow`.
                logger.debug("a roll call in round %d: %s", self.info.round, error)
                await trio.sleep(PAUSE_SECONDS)

    async def answer_roll_calls(self, is_well: Callable[[], bool]) -> None:
        """Say, when that is asked for, that this agent is there; unless what it answers for is not. One roll call a round is enough:
        each ends in another round, or in the end of the job.
        """
        assert self.info is not None
        store, rank = self.info.store, self.info.rank
        while True:
            try:
                await store.get(ROLL_CALL, timeout=math.inf)
                if is_well():
                    await store.set(HERE.format(rank), b"")
                return
            except RendezvousError as error:
                logger.debug("roll calls of round %d: %s", self.info.round, error)
                await trio.sleep(PAUSE_SECONDS)

    async def answer_in_advance(self) -> None:
        """Say so before it is asked for: this agent is done, and about to go. Raises `RendezvousError`."""
        assert self.info is not None
        try:
            await self.info.store.set(HERE.format(self.info.rank), b"")
        except RoundOverError:
            # Nobody asks any more.
            pass

    async def _join(self, before: Placement | None) -> Placement:
        assert self._handler is not None
        info = await self._handler.next_rendezvous()
        self.info = info
        self.name = info.participants[info.rank] if info.participants else str(info.rank)
        self._records.store = info.job_store if info.job_store is not None else info.store
        self._early.clear()
        placement: Placement | None = None
        trouble: RendezvousError = StoreTimeoutError(f"round {info.round} has ended before its ranks were known")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_placing, info.round, nursery.cancel_scope)
            try:
                placement = await self._place(info, before)
            except RendezvousError as error:
                trouble = error
            nursery.cancel_scope.cancel()
        if placement is None:
            raise trouble
        return placement

    async def _watch_placing(self, round_: int, placing: trio.CancelScope) -> None:
        """Cancel `placing` if an agent that it may be waiting for is gone. What else happens to the round is kept for `follow`."""
        assert self._handler is not None
        try:
            while True:
                change = await self._handler.wait_change(round_)
                if change.left or change.closed:
                    placing.cancel()
                    return
                if not self._early:
                    self._early.append(change)
                await trio.sleep(PAUSE_SECONDS)
        except RendezvousError:
            # Whoever places this agent meets the same trouble, and deals with it.
            pass

    async def _place(self, info: RendezvousInfo, before: Placement | None) -> Placement:
        """The ranks of the round: each agent says what it has, the first decides for all."""
        timeout = self._settings.join_timeout
        previous = before.own.group_rank if before is not None else None
        own = Member(self.name, self._settings.role, self._settings.local_world_size, previous)
        await info.store.set(MEMBER.format(info.rank), ranks.encode_member(own))
        if info.rank == 0:
            values = await info.store.multi_get([MEMBER.format(rank) for rank in range(info.world_size)], timeout=timeout)
            places = ranks.assign([ranks.decode_member(value) for value in values])
            await info.store.set(PLACES, ranks.encode_places(places, await self._records.restarts()))
        placement = ranks.decode_places(await info.store.get(PLACES, timeout=timeout), info.round, self.name)
        rules = self._settings.rules
        if self._reservation is not None and (placement.own.group_rank != 0 or (rules.policy == "group" and not rules.notify)):
            # All workers start anew: with a port of their own, nothing of an earlier round can disturb them.
            self._reservation.close()
            self._reservation = None
        if placement.own.group_rank == 0:
            where = await RendezvousStoreInfo.build(0, info.store, self._master_address, self._reserve())
        else:
            where = await RendezvousStoreInfo.build(placement.own.group_rank, info.store, timeout=timeout)
        return placement.at(where.master_addr, where.master_port)

    def _reserve(self) -> int:
        """The port of rank 0: bound here before anybody hears of it, and kept for as long as this agent has rank 0."""
        if self._reservation is None:
            if self._settings.master_port:
                return self._settings.master_port
            self._reservation = reserve_port()
        return self._reservation.port
