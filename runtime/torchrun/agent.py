"""One agent of torch in our rendezvous. It translates the requests of torch's agent into calls of
our handler. It does not import torch.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeVar

import attrs
import trio

from actors.errors import HandshakeError
from actors.own_logger import own_logger
from runtime.elastic import guardian
from runtime.elastic.reaper import Reaper
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

logger = own_logger("understudy.rendezvous")

T = TypeVar("T")

MASTER, ALL_HERE = "master", "all are here"
"""In a round's store: the key of the address of rank 0's store, and the name of a barrier."""

FIRST_SECONDS = 60.0
"""Seconds for which an unreachable rendezvous is retried at first: it may be started at the same
time as the agents.
"""

PAUSE_SECONDS = 0.5
"""Mean seconds between two attempts to reach the rendezvous."""

GRACE_SECONDS = 1.0
"""Seconds that a wait continues after an agent was lost: what that agent wrote before may still
arrive.
"""

# The changes of one round, in the terms of torch's agent; no I/O.
#
# Torch's agent asks ten times a second how many agents wait for a new round. It does not ask for
# agents that are gone. So lost agents are counted with those that wait, and the job begins a new
# round before its workers fail because of the loss.


class AgentMembership:
    """The changes of one complete round."""

    def __init__(self) -> None:
        self._waiting = 0
        self._failure: RendezvousError | None = None
        self.closed = ""
        """Why no round will follow; "" while the rendezvous is open."""
        self.lost: tuple[str, ...] = ()
        """The agents that have left the round; this agent's own name if it was cut off."""

    def on_change(self, change: RendezvousChange) -> None:
        """The round has changed."""
        self._waiting = change.waiting
        self.closed = self.closed or change.closed
        self.lost += change.left

    def on_failed(self, failure: RendezvousError) -> None:
        """The handler reports no further changes of the round, because of this error."""
        self._failure = failure

    def reasons_for_another(self) -> int:
        """Return how many agents wait or were lost, each a reason for another round; 0 once the
        rendezvous is closed. Raises the error of `on_failed`.
        """
        if self.closed:
            return 0
        if self._failure is not None:
            raise self._failure
        return self._waiting + len(self.lost)


# Torchrun's parameters of a rendezvous, converted to ours; no I/O.


def parameters_of(
    endpoint: str,
    run_id: str,
    min_nodes: int,
    max_nodes: int,
    local_addr: str | None,
    config: Mapping[str, object],
) -> RendezvousParameters:
    """Convert torch's parameters to ours; the endpoint selects the back-end. Raises ValueError for
    a missing endpoint and for impossible numbers; unknown options raise it when a handler is made.
    """
    if not endpoint:
        raise ValueError(
            "--rdzv-endpoint is missing: HOST:PORT of a node of the cluster, an etcd:// address, "
            "or a shared directory"
        )
    # Torch always adds its own `timeout`, which means the same as `join_timeout`: what the user has
    # said counts.
    options = {
        key: value
        for key, value in config.items()
        if key != "timeout" or "join_timeout" not in config
    }
    return RendezvousParameters(
        back_end_of(endpoint), endpoint, run_id, min_nodes, max_nodes, local_addr, **options
    )


# A guardian for the workers of torch's agent, which has none of its own. With it, the workers end
# with their agent, however the agent ends.


class Guard(Reaper):
    """A reaper that marks every process that this process starts from now on, by its own
    environment: torch passes that to its workers.
    """

    def __init__(self, environment: Environment, mark: str, seconds: float) -> None:
        super().__init__(environment, mark, seconds)
        os.environ[guardian.MARK] = mark

    async def aclose(self) -> None:
        """Kill every process that still has the mark, and end the guardian. Takes bounded time;
        call it shielded.
        """
        os.environ.pop(guardian.MARK, None)
        await super().aclose()


def is_guarded() -> bool:
    """Return whether a guardian watches this process already, and kills what it has started."""
    return guardian.MARK in os.environ


class AgentLostError(RendezvousError):
    """Agents of the round are lost, so the value that a call waits for may never be written."""


class StoreServer(Protocol):
    """A store for workers, served until this object is garbage: PyTorch's `TCPStore`, which only
    `plugin` imports, because the other modules work without PyTorch.
    """

    @property
    def port(self) -> int:
        """The port on which it listens."""
        ...


@attrs.frozen
class Round:
    """A complete round. `address`, `port`: of the store for its workers, which the agent of rank 0
    serves.
    """

    info: RendezvousInfo
    store: KeyValueStore
    address: str
    port: int
    membership: AgentMembership
    broken: trio.Event
    """Set when an agent was lost."""


class TorchAgent:
    """Torch's agent in a rendezvous. `run` must run in a task; call the other methods beside it,
    one at a time, except `store_call`.

    `open_handler` makes handlers that are not opened yet. `serve` starts a store for workers at an
    address, and may block. `address`: under which other agents reach this machine. `join_timeout`:
    seconds for `next_round`. `fence_seconds`: if this process does not run for this long, its
    workers are killed.
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
        self._has_failed = False
        """Whether the latest call failed because of the rendezvous, and not of this agent."""

    async def run(self, stopping: trio.Event) -> None:
        """Run until `stopping` is set, then leave the rendezvous without closing it."""
        async with trio.open_nursery() as self._nursery:
            try:
                await stopping.wait()
            finally:
                # Both steps bound their own time.
                with trio.CancelScope(shield=True):
                    await self._leave()
                    if self._guard is not None:
                        await self._guard.aclose()
                self._nursery.cancel_scope.cancel()

    async def next_round(self) -> Round:
        """Leave the round that this agent is in, if any, and take part in the next. Raises like
        `RendezvousHandler.next_rendezvous`.

        Returns when all agents of the round have arrived at its barrier. If one is lost before
        that, this joins another round instead of failing.
        """
        self._forget_round()
        try:
            self._round = await self._next_round()
        except RendezvousError:
            self._has_failed = True
            raise
        self._has_failed = False
        return self._round

    async def waiting(self) -> int:
        """Return how many agents wait or were lost, as `AgentMembership.reasons_for_another` does,
        without a request to the store. Raises the error with which the round failed.
        """
        if self._round is None:
            return 0
        try:
            return self._round.membership.reasons_for_another()
        except RendezvousError:
            self._has_failed = True
            raise

    async def is_closed(self) -> bool:
        """Return whether the rendezvous is closed for all agents. Raises
        `RendezvousConnectionError`.
        """
        return await (await self._opened()).is_closed()

    async def set_closed(self) -> None:
        """Close the rendezvous for all agents. Raises `RendezvousTimeoutError` if the store has not
        confirmed it in time.
        """
        await (await self._opened()).set_closed("it was closed by an agent of torch")

    async def shut_down(self) -> bool:
        """Leave, and close the rendezvous for all agents; returns False if it could not be closed.
        If this agent ends because its rendezvous failed, it only leaves, and the others continue.
        """
        is_closed = True
        if self._handler is not None and not self._has_failed:
            is_closed = await self._handler.shutdown()
        await self._leave()
        return is_closed

    async def store_call(self, round_: Round, ask: Callable[[KeyValueStore], Awaitable[T]]) -> T:
        """Call `ask` with the store of a round, and return its result. Raises what `ask` raises,
        and `AgentLostError` if an agent of the round is lost while it waits.
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
                self._has_failed = True
            raise error from error.__cause__
        # An answer that came in the same moment as the loss counts.
        if answers:
            return answers[0]
        self._has_failed = True
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
                # A store that was reached before may come back. For one that was never reached,
                # `_opened` has waited already.
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
        """Return the round with the address of its store for workers, once all its agents have
        arrived at the barrier.
        """
        assert self._nursery is not None
        self._guard_workers(self._nursery)
        membership, broken = AgentMembership(), trio.Event()
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
            # A new port for each round: workers of an earlier round that still run cannot disturb
            # it. The store listens before other agents learn the port, so it cannot be taken.
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
                # Checked before each call: a handler that is joining another round refuses to wait
                # for changes of this one, and raises before its first checkpoint.
                while not scope.cancel_called:
                    change = await handler.wait_change(number)
                    membership.on_change(change)
                    if change.left:
                        logger.info("round %d has lost agents: %s", number, ", ".join(change.left))
                        broken.set()
            except RendezvousError as error:
                membership.on_failed(error)

    def _guard_workers(self, nursery: trio.Nursery) -> None:
        if self._guard is None and not is_guarded():
            self._guard = Guard(
                self._environment, self._environment.token(12).hex(), self._fence_seconds
            )
            nursery.start_soon(self._guard.beat)

    async def _opened(self) -> RendezvousHandler:
        """Return the handler, opened. Raises `RendezvousConnectionError` after `FIRST_SECONDS`."""
        assert self._nursery is not None
        deadline = self._environment.now() + min(FIRST_SECONDS, self._join_timeout)
        while self._handler is None:
            try:
                self._handler = await self._nursery.start(self._hold)
            except RendezvousConnectionError as error:
                # Another program answers there: waiting does not change that.
                if (
                    isinstance(error.__cause__, HandshakeError)
                    or self._environment.now() >= deadline
                ):
                    raise
                logger.warning("%s; trying again", error)
                await trio.sleep(PAUSE_SECONDS * (0.5 + self._environment.random()))
        return self._handler

    async def _hold(self, *, task_status: trio.TaskStatus[RendezvousHandler]) -> None:
        """Keep a handler open until `_leave`. It runs in its own task, because a handler must be
        left in the task that entered it.
        """
        self._release, self._released = trio.Event(), trio.Event()
        # By its own name: the attributes are replaced when another handler is opened.
        released = self._released
        try:
            async with self._open_handler() as handler:
                task_status.started(handler)
                # As in `Rounds`: the handler is left only once it was released, also if this is
                # cancelled.
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
