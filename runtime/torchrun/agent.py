"""One agent of torch in our rendezvous: what it asks for, in the terms of our handler. Nothing of
torch is needed for it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeVar

import attrs
import trio

from actors.errors import HandshakeError
from runtime.elastic import guardian
from runtime.elastic.workers import Reaper
from runtime.environment import Environment, unwrap
from runtime.rendezvous.interface import (
    KeyValueStore,
    RendezvousChange,
    RendezvousHandler,
    RendezvousInfo,
)
from runtime.rendezvous.parameters import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousParameters,
    RendezvousTimeoutError,
    RoundOverError,
    StoreTimeoutError,
    back_end_of,
)
from runtime.rendezvous.registry import OpenableHandler

# What has happened to one round, in the terms of torch's agent; no I/O.
#
# Torch's agent asks ten times a second whether it is to begin a new round. It has no question for
# agents that are gone; so they count here as a reason like agents that wait, and a job hears of a
# loss before its workers run into it.


class AgentMembership:
    """One round that is complete. `name`: that of this agent in it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting = 0
        self._trouble: RendezvousError | None = None
        self.closed = ""
        """Why no round will follow, if none will."""
        self.lost: tuple[str, ...] = ()
        """Who was in the round and is not any more; this agent's own name if it was cut off."""

    def tell(self, change: RendezvousChange) -> None:
        """Something has happened to the round."""
        self._waiting = change.waiting
        self.closed = self.closed or change.closed
        self.lost += change.left

    def fail(self, trouble: RendezvousError) -> None:
        """Nothing more will be heard of the round."""
        self._trouble = trouble

    @property
    def is_cut_off(self) -> bool:
        """Whether others take this agent for dead, or may do so any moment now."""
        return self._name in self.lost

    def reasons_for_another(self) -> int:
        """How many agents have come or gone, if another round is to begin for them; none does once
        the rendezvous is closed.

        Raises what went wrong with the rendezvous.
        """
        if self.closed:
            return 0
        if self._trouble is not None:
            raise self._trouble
        return self._waiting + len(self.lost)


# What torchrun says of a rendezvous, as our handlers want it: pure.


def parameters_of(
    endpoint: str,
    run_id: str,
    min_nodes: int,
    max_nodes: int,
    local_addr: str | None,
    config: Mapping[str, object],
) -> RendezvousParameters:
    """Ours. Raises ValueError for what cannot be met; unknown options are refused when a handler is
    made.
    """
    if not endpoint:
        raise ValueError(
            "--rdzv-endpoint is missing: HOST:PORT of a node of the cluster, an etcd:// address, "
            "or a shared directory"
        )
    # Torch adds a timeout of its own, which is another name of this one, to whatever was said.
    kept = {
        key: value
        for key, value in config.items()
        if key != "timeout" or "join_timeout" not in config
    }
    return RendezvousParameters(
        back_end_of(endpoint), endpoint, run_id, min_nodes, max_nodes, local_addr, **kept
    )


# A guardian for the workers of an agent of torch, which does not have one: they end with their
# agent, in whatever way that ends.


class Guard(Reaper):
    """Whatever this process starts from now on carries the mark: torch gives its own environment to
    its workers.
    """

    def __init__(self, environment: Environment, mark: str, seconds: float) -> None:
        super().__init__(environment, mark, seconds)
        os.environ[guardian.MARK] = mark

    async def aclose(self) -> None:
        """Have everything killed that carries the mark still, and end the guardian. Bounded."""
        os.environ.pop(guardian.MARK, None)
        await super().aclose()


def is_guarded() -> bool:
    """Whether another process guards this one, and kills all that it starts."""
    return guardian.MARK in os.environ


T = TypeVar("T")


MASTER, ALL_HERE = "master", "all are here"


FIRST_SECONDS = 60.0
"""So long a rendezvous that is not there yet is waited for: it may be started at the same time as
the agents.
"""


PAUSE_SECONDS = 0.5


GRACE_SECONDS = 1.0
"""What an agent wrote before it went has arrived by then."""


logger = logging.getLogger("understudy.rendezvous")


class AgentLostError(RendezvousError):
    """Agents of the round are gone, so what is waited for may never come."""


class StoreServer(Protocol):
    """A store for workers, served until this object is garbage: PyTorch's `TCPStore`, which only
    `plugin` imports, because the rest works without PyTorch.
    """

    @property
    def port(self) -> int:
        """On which it listens."""
        ...


@attrs.frozen
class Round:
    """A round that is complete. `address`, `port`: where the store for its workers is, at the agent
    of rank 0.
    """

    info: RendezvousInfo
    store: KeyValueStore
    address: str
    port: int
    membership: AgentMembership
    broken: trio.Event
    """Set when an agent has gone."""


class TorchAgent:
    """`run` it in a task; the other methods are for calls beside it, one at a time but for those of
    the store.

    `open_handler` makes handlers, not opened yet. `serve` starts a store for workers at an address,
    and may block. `address`: under which others reach this machine. `fence_seconds`: if the process
    does not run for so long, its workers are killed.
    """

    def __init__(
        self,
        open_handler: Callable[[], OpenableHandler],
        serve: Callable[[str], StoreServer],
        environment: Environment,
        address: str,
        join_timeout: float,
        fence_seconds: float,
    ) -> None:
        self._open_handler = open_handler
        self._serve = serve
        self._environment = environment
        self._address = address
        self._join_timeout = join_timeout
        self._fence_seconds = fence_seconds
        self._nursery: trio.Nursery | None = None
        self._handler: RendezvousHandler | None = None
        self._release = trio.Event()
        self._released = trio.Event()
        self._guard: Guard | None = None
        self._server: StoreServer | None = None
        self._round: Round | None = None
        self._following = trio.CancelScope()
        self._is_troubled = False

    async def run(self, stopping: trio.Event) -> None:
        """Until that is set; then leave the rendezvous, which is not closed by that."""
        async with trio.open_nursery() as self._nursery:
            try:
                await stopping.wait()
            finally:
                with trio.CancelScope(shield=True):
                    await self._leave()
                    if self._guard is not None:
                        await self._guard.aclose()
                self._nursery.cancel_scope.cancel()

    async def next_round(self) -> Round:
        """Leave the round that this agent is in, if any, and take part in the next. Raises like
        `RendezvousHandler.next_rendezvous`.

        Returns when all agents of the round are known to be here: an agent that is lost before that
        costs another attempt, and no failure.
        """
        self._forget_round()
        try:
            self._round = await self._next_round()
        except RendezvousError:
            self._is_troubled = True
            raise
        self._is_troubled = False
        return self._round

    async def waiting(self) -> int:
        """How many agents are a reason to begin another round; see
        `AgentMembership.reasons_for_another`. The store is not asked.
        """
        if self._round is None:
            return 0
        try:
            return self._round.membership.reasons_for_another()
        except RendezvousError:
            self._is_troubled = True
            raise

    async def is_closed(self) -> bool:
        """See `RendezvousHandler.is_closed`."""
        return await (await self._opened()).is_closed()

    async def set_closed(self) -> None:
        """See `RendezvousHandler.set_closed`."""
        await (await self._opened()).set_closed("it was closed by an agent of torch")

    async def shut_down(self) -> bool:
        """Leave, and close the rendezvous for all, unless this agent ends because of the
        rendezvous: then the others go on without it.

        False if it could not be closed.
        """
        is_closed = True
        if self._handler is not None and not self._is_troubled:
            is_closed = await self._handler.shutdown()
        await self._leave()
        return is_closed

    async def store_call(self, round_: Round, ask: Callable[[KeyValueStore], Awaitable[T]]) -> T:
        """Something that the store of a round does, or waits for: until an agent of the round is
        gone.

        Raises what `ask` raises, and `AgentLostError`.
        """
        answers: list[T] = []
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._cancel_when_lost, round_, nursery.cancel_scope)
                answers.append(await ask(round_.store))
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            error = unwrap(group)
            if isinstance(error, RendezvousError) and not isinstance(error, StoreTimeoutError):
                self._is_troubled = True
            raise error from error.__cause__
        if answers:
            return answers[0]
        self._is_troubled = True
        raise AgentLostError(
            f"stopped waiting: {', '.join(round_.membership.lost)} of this round is gone, and its "
            "answer may never come"
        )

    async def _cancel_when_lost(self, round_: Round, scope: trio.CancelScope) -> None:
        await round_.broken.wait()
        await trio.sleep(GRACE_SECONDS)
        scope.cancel()

    async def _next_round(self) -> Round:
        deadline = self._environment.now() + self._join_timeout
        while True:
            await trio.lowlevel.checkpoint()
            try:
                handler = await self._opened()
                info = await handler.next_rendezvous()
                return await self._agreed(handler, info, deadline - self._environment.now())
            except RendezvousConnectionError as error:
                # One that was there may come back; `_opened` has waited for one that was not.
                if self._handler is None or self._environment.now() >= deadline:
                    raise
                self._forget_round()
                logger.warning("%s; trying again", error)
                await trio.sleep(PAUSE_SECONDS * (0.5 + self._environment.random()))
            except (AgentLostError, RoundOverError, StoreTimeoutError) as error:
                self._forget_round()
                if self._environment.now() >= deadline:
                    raise RendezvousTimeoutError(
                        f"no round became complete and lasted within {self._join_timeout:g} s: "
                        f"{error}; trying again is safe"
                    ) from error
                logger.info("a round ended before it began: %s; joining the next one", error)

    async def _agreed(
        self, handler: RendezvousHandler, info: RendezvousInfo, seconds: float
    ) -> Round:
        """Where the workers of the round meet, once all of its agents are here and have nothing to
        do but to begin.
        """
        assert self._nursery is not None
        self._guard_workers(self._nursery)
        membership, broken = AgentMembership(info.participants[info.rank]), trio.Event()
        self._following = trio.CancelScope()
        self._nursery.start_soon(
            self._follow, handler, info.round, membership, broken, self._following
        )
        round_ = Round(info, info.store.prefixed("torch"), self._address, 0, membership, broken)
        return await self.store_call(
            round_, lambda _: self._meet(round_, info.store.prefixed("torchrun"), seconds)
        )

    async def _meet(self, round_: Round, store: KeyValueStore, seconds: float) -> Round:
        if round_.info.rank == 0:
            # A port of its own for each round: nothing that an earlier one has left disturbs it,
            # and no other process can have it.
            self._server = await self._environment.in_thread(lambda: self._serve(self._address))
            await store.set(MASTER, f"{self._address} {self._server.port}".encode())
        await store.barrier(ALL_HERE, round_.info.world_size, timeout=max(1.0, seconds))
        address, _, port = (await store.get(MASTER)).decode().rpartition(" ")
        return attrs.evolve(round_, address=address, port=int(port))

    async def _follow(
        self,
        handler: RendezvousHandler,
        number: int,
        membership: AgentMembership,
        broken: trio.Event,
        scope: trio.CancelScope,
    ) -> None:
        with scope:
            try:
                # Not only at checkpoints: a handler that is on its way into another round refuses
                # to be asked for this one.
                while not scope.cancel_called:
                    change = await handler.wait_change(number)
                    membership.tell(change)
                    if change.left:
                        logger.info("round %d has lost agents: %s", number, ", ".join(change.left))
                        broken.set()
            except RendezvousError as error:
                membership.fail(error)

    def _guard_workers(self, nursery: trio.Nursery) -> None:
        if self._guard is None and not is_guarded():
            self._guard = Guard(
                self._environment, self._environment.token(12).hex(), self._fence_seconds
            )
            nursery.start_soon(self._guard.beat)

    async def _opened(self) -> RendezvousHandler:
        """The handler, opened by now. Raises `RendezvousConnectionError`."""
        assert self._nursery is not None
        deadline = self._environment.now() + min(FIRST_SECONDS, self._join_timeout)
        while self._handler is None:
            try:
                self._handler = await self._nursery.start(self._hold)
            except RendezvousConnectionError as error:
                # Another protocol does not become ours by waiting.
                if (
                    isinstance(error.__cause__, HandshakeError)
                    or self._environment.now() >= deadline
                ):
                    raise
                logger.warning("%s; trying again", error)
                await trio.sleep(PAUSE_SECONDS * (0.5 + self._environment.random()))
        return self._handler

    async def _hold(self, *, task_status: trio.TaskStatus[RendezvousHandler]) -> None:
        """Keep a handler open until it is to be left, in a task of its own: it is left from other
        places than it was entered.
        """
        self._release, self._released = trio.Event(), trio.Event()
        released = self._released
        try:
            async with self._open_handler() as handler:
                task_status.started(handler)
                with trio.CancelScope(shield=True):
                    await self._release.wait()
        finally:
            released.set()

    def _forget_round(self) -> None:
        self._following.cancel()
        self._server = self._round = None

    async def _leave(self) -> None:
        self._forget_round()
        if self._handler is not None:
            self._handler = None
            self._release.set()
            await self._released.wait()
