"""One agent's part in a rendezvous over a coordination store: it carries out what the machine
decides.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import TracebackType

import trio

from actors.errors import (
    HandshakeError,
    HandshakeTimeoutError,
    JoinError,
    LeaseLostError,
    ProtocolError,
    StoreDataError,
    StoreError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
    UnderstudyError,
)
from actors.own_logger import own_logger
from runtime.environment import Environment, raise_alone
from runtime.rendezvous import machine
from runtime.rendezvous.interface import RendezvousChange, RendezvousInfo
from runtime.rendezvous.job_store import JobStore, Scope
from runtime.rendezvous.machine import (
    Fail,
    Finish,
    Joining,
    Keys,
    RoundId,
    RoundWatch,
    State,
    StateWrite,
    Wait,
    encode_state,
)
from runtime.rendezvous.parameters import (
    AgentSettings,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousFinishedError,
    RendezvousGracefulExitError,
    RendezvousMismatchError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from runtime.rendezvous.presence import Presence
from runtime.rendezvous.view import RENDEZVOUS_RETRY_SECONDS, View
from runtime.store.interface import Compare, Delete, Operation, Put, Store

logger = own_logger("understudy.rendezvous")


OpenStore = Callable[[], AbstractAsyncContextManager[Store]]


BATCH = 100
"""Keys of earlier rounds that are deleted in one transaction; below `MAX_OPERATIONS` of a store."""


FIRST_DELAY, LONGEST_DELAY = 0.2, 2.0
"""Seconds between two attempts to reach a store that was not there yet: doubled from the first to
the longest.
"""


class StoreHandler:
    """A `RendezvousHandler` over a coordination store, for one agent. Open it first: `async with
    handler:`; leaving the block leaves the rendezvous, but does not close it.

    Entering raises `RendezvousConnectionError` if the store cannot be reached: at once if another
    program answers there, after the `connect_timeout` if nothing answers, after the `join` timeout
    if the endpoint's own store is away. The log says what is waited for.
    """

    def __init__(
        self, settings: AgentSettings, environment: Environment, open_store: OpenStore
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._open_store = open_store
        self._stack: AsyncExitStack | None = None
        self._keys = Keys(settings.parameters.run_id)
        self._store: Store
        self._view: View
        self._presence: Presence
        self._nursery: trio.Nursery
        self._watched: RoundWatch | None = None
        self._left: RoundId | None = None

    async def __aenter__(self) -> StoreHandler:
        if self._stack is not None:
            raise RuntimeError(
                "this rendezvous handler was opened before and opens only once; make another one"
            )
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._opened())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        assert self._stack is not None
        # what it does shields itself
        return await self._stack.__aexit__(kind, error, traceback)  # noqa: ASYNC102

    def get_backend(self) -> str:
        """The name of the back-end, as in the parameters."""
        return self._settings.parameters.backend

    def get_run_id(self) -> str:
        """The id of the job, as in the parameters."""
        return self._settings.parameters.run_id

    @property
    def name(self) -> str:
        """This agent's name in `RendezvousInfo.participants`: "" before the first round, and a new
        one after the agent was cut off.
        """
        return self._presence.name

    @property
    def use_agent_store(self) -> bool:
        """False: workers cannot use the store by themselves."""
        return False

    async def next_rendezvous(self) -> RendezvousInfo:
        """Leave this agent's round, if it is in one, and return the next round once it is complete.

        Raises the errors that `RendezvousHandler` lists, and `RendezvousMismatchError` for another
        job of the same id. An agent whose call fails or is cancelled leaves the rendezvous, within
        the `heartbeat` timeout.
        """
        self._check_open()
        self._watched = None
        parameters = self._settings.parameters
        joining = Joining(
            "",
            parameters.min_nodes,
            parameters.max_nodes,
            self._settings.timeout,
            self._environment.now(),
            left=self._left,
            wanted=self._settings.wanted,
            lease_seconds=self._settings.lease_seconds,
        )
        try:
            finish = await self._reach(joining)
        except BaseException:
            # An agent that gives up or is cancelled must leave, so that the others do not wait for
            # it.
            with (
                trio.CancelScope(shield=True),
                trio.move_on_after(self._settings.timeout.heartbeat),
            ):
                await self._leave()
            raise
        state = finish.state
        self._watched = RoundWatch(self._presence.name, state)
        self._left = RoundId(state.life, state.round)
        if finish.rank == 0:
            # One agent is enough; each round has exactly one of rank 0.
            self._nursery.start_soon(self._collect, state.round, name="old rounds of a rendezvous")
        return RendezvousInfo(
            self._job_store(state, self._keys.round(state.round), state.round),
            finish.rank,
            len(state.roster),
            round=state.round,
            participants=state.roster,
            job_store=self._job_store(state, self._keys.job, None),
        )

    async def is_closed(self) -> bool:
        """Return whether the rendezvous is closed for all agents, read from the store now. Raises
        `RendezvousConnectionError` or `RendezvousStateError`.
        """
        state = await self._state_now()
        return state is not None and bool(state.closed)

    async def set_closed(self, reason: str = "", *, finished: bool = False) -> None:
        """Close the rendezvous for all agents; the first reason stays. `finished`: the job has
        succeeded. Raises `RendezvousTimeoutError` if the store has not confirmed it within the
        `close` timeout.
        """
        await self._change(lambda state: machine.close(state, reason, finished=finished), "closed")

    async def reopen(self) -> bool:
        """Allow rounds again after `set_closed`. For operators. Returns False if the rendezvous is
        not closed. Raises like `set_closed`.
        """
        if not await self.is_closed():
            return False
        await self._change(machine.reopen, "opened again")
        return True

    async def num_nodes_waiting(self) -> int:
        """Return how many live agents wait for the next round, spares not counted. Raises
        `RendezvousConnectionError` or `RendezvousStateError`.
        """
        state = await self._state_now()
        return len(machine.remove_dead(state, self._view.alive).waiting) if state is not None else 0

    async def wait_change(self, after: int) -> RendezvousChange:
        """Wait for the next change of round `after`. Each change is returned once.

        Raises ValueError if this agent's latest round is not `after`, and `RendezvousStateError`.
        It does not raise while the store is away: the change is then that this agent, which cannot
        renew its lease, has left the round.
        """
        self._check_open()
        watched = self._watched
        if watched is None or watched.round != after:
            of = "none" if watched is None else str(watched.round)
            raise ValueError(f"this agent's latest round is {of}, not {after}")
        await trio.lowlevel.checkpoint()
        while True:
            # Taken before the look, so that a change after the look sets this event.
            changed = self._view.changed
            held = self._presence.is_held()
            change = watched.look(self._view.state(), self._view.alive, cut_off=not held)
            if change is not None:
                return change
            with trio.move_on_after(
                max(0.0, self._presence.doubtful_at - self._environment.now()) if held else math.inf
            ):
                await changed.wait()

    async def shutdown(self) -> bool:
        """Close the rendezvous and leave it; returns False, and logs why, if the store did not
        confirm that within the `close` timeout.
        """
        try:
            await self.set_closed(
                f"agent {self._presence.name or self.get_backend()} has shut it down"
            )
            with trio.fail_after(self._settings.timeout.close):
                return await self._leave()
        except (RendezvousError, trio.TooSlowError) as error:
            logger.warning("could not close the rendezvous of %s: %s", self.get_run_id(), error)
            return False

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        try:
            async with AsyncExitStack() as stack:
                store, view = await self._reach_store(stack)
                async with trio.open_nursery() as nursery:
                    self._store, self._view, self._nursery = store, view, nursery
                    self._presence = presence = Presence(
                        store, self._keys, self._settings, self._environment, view
                    )
                    # The order in which these tasks start does not matter: the view is complete,
                    # and this agent is not registered yet.
                    nursery.start_soon(view.run, name="view of a rendezvous")  # noqa: ASYNC113
                    nursery.start_soon(presence.run, name="presence of an agent")  # noqa: ASYNC113
                    try:
                        yield
                    finally:
                        with (
                            trio.CancelScope(shield=True),
                            trio.move_on_after(self._settings.timeout.heartbeat),
                        ):
                            await self._leave()
                        nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise_alone(group)

    async def _reach_store(self, stack: AsyncExitStack) -> tuple[Store, View]:
        """Open the store within `stack` and read the state. Waits for a store that is being started
        at the same time.
        """
        began, delay, said = self._environment.now(), FIRST_DELAY, ""
        while True:
            try:
                async with AsyncExitStack() as attempt:
                    store = await attempt.enter_async_context(self._open_store())
                    view = View(store, self._keys, self._environment)
                    await view.refresh()
                    await stack.enter_async_context(attempt.pop_all())
                return store, view
            except (UnderstudyError, OSError) as error:
                left = began + self._patience_with(error) - self._environment.now()
                if left <= 0:
                    raise self._connection(error) from error
                if str(error) != said:
                    logger.warning("%s; trying again for %.0f s", self._connection(error), left)
                    said = str(error)
            await trio.sleep(min(left, delay * (0.5 + self._environment.random())))
            delay = min(2 * delay, LONGEST_DELAY)

    def _patience_with(self, error: Exception) -> float:
        """Return for how many seconds to retry."""
        causes = list(_causes(error))
        is_other_program = any(
            isinstance(cause, HandshakeError | ProtocolError | ValueError)
            and not isinstance(cause, HandshakeTimeoutError)
            for cause in causes
        )
        if isinstance(error, JoinError | HandshakeError) and not is_other_program:
            return min(self._settings.connect_timeout, self._settings.timeout.join)
        if isinstance(error, StoreUnavailableError) and not any(
            isinstance(cause, OSError) for cause in causes
        ):
            return self._settings.timeout.join
        return 0.0

    def _check_open(self) -> None:
        if self._stack is None:
            raise RuntimeError("a rendezvous handler must be opened first: async with handler: ...")

    async def _reach(self, joining: Joining) -> Finish:
        """Carry out the decisions of `joining` until this agent is in a complete round."""
        while True:
            began = self._environment.now()
            try:
                name = await self._present()
                joining.on_renamed(name)
                # Taken before the state is read, so that a later change sets this event.
                changed = self._view.changed
                state = self._view.state()
                if state is None:
                    await self._found()
                    continue
                self._presence.job_lease = state.lease
                decision = joining.decide(state, self._view.alive, self._environment.now())
                if isinstance(decision, Finish):
                    if self._presence.is_held():
                        return decision
                    # Another agent may take its place at any moment. The view or the renewal will
                    # report that.
                    decision = Wait(self._environment.now() + RENDEZVOUS_RETRY_SECONDS)
                if isinstance(decision, StateWrite):
                    await self._write(state, decision.state)
                elif isinstance(decision, Wait):
                    with trio.move_on_after(max(0.0, decision.until - self._environment.now())):
                        await changed.wait()
                    self._refuse_if_away()
                else:
                    raise self._error_of(decision)
            except StoreError as error:
                await self._patience(error, began)

    async def _present(self) -> str:
        """Return this agent's name. Registers under a new name if the view does not have it as
        alive.
        """
        if self._presence.name not in self._view.alive:
            self._left = None if self._presence.name else self._left
            await self._presence.register()
        return self._presence.name

    async def _found(self) -> None:
        """Write the first state of a rendezvous that has none."""
        parameters = self._settings.parameters
        lease = await self._store.grant(self._settings.retention)
        state = State(
            parameters.min_nodes, parameters.max_nodes, self._environment.token(8).hex(), lease
        )
        result = await self._store.transaction(
            [Compare(self._keys.state, "create_revision", 0)],
            [Put(self._keys.state, encode_state(state), lease)],
        )
        if not result.succeeded:
            # Another agent was faster; its state has a lease of its own.
            await self._store.revoke(lease)
        await self._view.caught_up(result.revision)

    async def _write(self, before: State, after: State) -> None:
        """Replace the state in the view if it is unchanged in the store, together with the fences
        of rounds.
        """
        # State and fences change in one transaction, so the store of a round takes no write once
        # another round has begun.
        then: list[Operation] = [Put(self._keys.state, encode_state(after), after.lease)]
        if before.complete and after.round != before.round:
            then.append(Delete(self._keys.fence(before.round)))
        if after.complete and (after.round != before.round or not before.complete):
            then.append(Put(self._keys.fence(after.round), after.life.encode(), after.lease))
        condition = Compare(self._keys.state, "mod_revision", self._view.state_revision)
        try:
            result = await self._store.transaction([condition], then)
        except (StoreOutcomeUnknownError, LeaseLostError):
            # Whether the write was done will be seen in the state. If the lease has ended, this
            # agent is out in any case.
            await self._view.refresh()
            return
        await self._view.caught_up(result.revision)

    async def _change(self, change: Callable[[State], State], what: str) -> None:
        """Apply a change to the state, repeated until it is written, within the `close` timeout."""
        self._check_open()
        with trio.move_on_after(self._settings.timeout.close):
            while True:
                try:
                    await self._view.refresh()
                    state = self._view.state()
                    if state is None:
                        await self._found()
                        continue
                    if (changed := change(state)) == state:
                        return
                    await self._write(state, changed)
                except StoreError as error:
                    logger.debug(
                        "the rendezvous of %s is not %s yet: %s", self.get_run_id(), what, error
                    )
                    await trio.sleep(RENDEZVOUS_RETRY_SECONDS)
        raise RendezvousTimeoutError(
            f"the rendezvous of {self.get_run_id()!r} could not be {what} within "
            f"{self._settings.timeout.close:g} s; trying again is safe"
        )

    async def _leave(self) -> bool:
        """Remove this agent; returns False if the store does not confirm it."""
        name, lease = self._presence.name, self._presence.lease
        if not name:
            return True
        # First, because a renewal of a lease that was revoked would be reported as lost.
        self._presence.stop_renewing()
        try:
            # Repeated only when another agent has written the state in between.
            while True:
                await self._view.refresh()
                state = self._view.state()
                if state is None or name not in state:
                    break
                await self._write(
                    state, machine.leave(machine.remove_dead(state, self._view.alive), [name])
                )
            # After the state: others would remove an agent without a record themselves, and their
            # writes would compete with this one.
            self._presence.name = ""
            await self._store.revoke(lease)
        except LeaseLostError:
            return True
        except (StoreError, RendezvousStateError) as error:
            logger.debug(
                "agent %s could not write that it leaves; others see it when its lease ends: %s",
                name,
                error,
            )
            return False
        return True

    async def _collect(self, round: int) -> None:
        """Delete the stores of earlier rounds."""
        try:
            entries = (await self._store.range(self._keys.rounds)).entries
            # Later rounds may have stores by now: those stay.
            old = [entry.key for entry in entries if self._keys.round_of(entry.key) < round]
            for start in range(0, len(old), BATCH):
                await self._store.transaction(
                    [], [Delete(key) for key in old[start : start + BATCH]]
                )
        except StoreError as error:
            logger.debug(
                "could not delete the stores of earlier rounds; they end with the job's lease: %s",
                error,
            )

    async def _state_now(self) -> State | None:
        self._check_open()
        try:
            await self._view.refresh()
        except StoreError as error:
            raise self._connection(error) from error
        return self._view.state()

    def _job_store(self, state: State, root: str, round: int | None) -> JobStore:
        fence = (self._keys.fence(round), state.life.encode()) if round is not None else None
        what = (
            f"round {round} of job {self.get_run_id()!r}"
            if round is not None
            else f"job {self.get_run_id()!r}"
        )
        return JobStore(
            Scope(
                self._store,
                self._environment,
                root,
                state.lease,
                fence,
                what,
                self._settings.store_timeout,
            )
        )

    def _refuse_if_away(self) -> None:
        """Raise the last error of the store if it has not answered for longer than this agent's
        lease lasts.
        """
        since = min(self._view.away_since, self._presence.silent_since)
        if self._environment.now() - since > self._settings.lease_seconds:
            raise self._connection(
                StoreUnavailableError(
                    f"the store has not answered for more than {self._settings.lease_seconds:g} s"
                )
            )

    async def _patience(self, error: StoreError, began: float) -> None:
        """Pause before the next attempt, if that may help: a store that cannot be reached may come
        back. Raises the error of one that is damaged or closed. `began`: when it was asked.
        """
        if not isinstance(error, StoreUnavailableError | StoreOutcomeUnknownError | LeaseLostError):
            raise self._connection(error) from error
        # The view's own poll may still be waiting for its answer, so the earlier moment counts.
        self._view.away_since = min(self._view.away_since, began)
        self._refuse_if_away()
        await trio.sleep(RENDEZVOUS_RETRY_SECONDS * (0.5 + self._environment.random()))

    def _connection(self, error: Exception) -> RendezvousError:
        where = (
            f"the rendezvous of {self.get_run_id()!r} at "
            f"{self._settings.parameters.endpoint or 'its endpoint'!r}"
        )
        if isinstance(error, StoreDataError):
            return RendezvousStateError(f"{where} cannot be understood: {error}")
        return RendezvousConnectionError(f"{where} cannot be reached: {error}")

    def _error_of(self, fail: Fail) -> RendezvousError:
        text = f"{fail.text} (job {self.get_run_id()!r})"
        if fail.kind == "closed":
            return RendezvousClosedError(text)
        if fail.kind == "finished":
            return RendezvousFinishedError(text)
        if fail.kind == "not needed":
            return RendezvousGracefulExitError(text)
        if fail.kind == "timeout":
            return RendezvousTimeoutError(text)
        return RendezvousMismatchError(text)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Return the error, its cause, the cause of that, and so on."""
    while error is not None:
        yield error
        error = error.__cause__
