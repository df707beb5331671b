"""Access to the values of other nodes: fetching them, waiting for them, and calling their methods
at their owners.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, cast

import trio

from actors.class_names import class_name
from actors.errors import (
    ConnectionLostError,
    NodeDiedError,
    NodeUnreachableError,
    NotTheOwnerError,
    OutcomeUnknownError,
    OwnerDiedError,
    ReferenceReleasedError,
)
from actors.identifiers import NodeId, ReferenceId
from actors.own_logger import own_logger
from actors.reference import Reference
from runtime.environment import Environment, first, raise_as_it_is
from runtime.lifetime import Lifetime
from runtime.references.memory.values import Segment
from runtime.references.owned_values import UNKNOWN_SECONDS, OwnedValues
from runtime.references.state_changes import StateChanges
from runtime.references.table import Effect, ReferenceState, ReferenceTable
from runtime.references.value_codec import ValueCodec
from runtime.references.values import (
    UNKNOWN,
    EncodedValue,
    FailedValue,
    SharedValue,
    StoredValue,
)
from runtime.service_calls import SERVICE_ENDED
from runtime.shared_memory.mappings import MappedArenas, NotLendableError
from runtime.shared_memory.pool import FinalizerQueue, SharedMemoryLocation
from runtime.statistics.histograms import Histogram

CACHE_BYTES = 256 * 1024 * 1024
"""Bytes of fetched values that are cached, by default."""


CACHE_SECONDS = 5.0
"""Seconds for which a fetched value is cached after the last reference to it is gone."""


ASKED_AGAIN_SECONDS = 0.02
"""Until an owner is asked again that ended, moved or could not be reached: shorter than people
notice, and longer than an owner takes to be known as gone."""


PASSING = (*SERVICE_ENDED, ConnectionLostError, NodeDiedError, NodeUnreachableError)
"""Errors that mean that an owner has ended or cannot be reached at the moment. Both are retried:
this node will soon learn of an end, and the other state passes.
"""


logger = own_logger("understudy.references")


class ValueFetcher:
    """Fetches the values of other nodes, waits for them, and calls their methods at their owners.

    `service(node, incarnation)` gives a handle of that node's `ReferenceService`. Events go to the
    `table`; `apply` carries out the effects that it returns.
    """

    def __init__(
        self,
        table: ReferenceTable,
        apply: Callable[[Iterable[Effect]], None],
        changes: StateChanges,
        values: OwnedValues,
        value_codec: ValueCodec,
        service: Callable[[str, int], Any],
        environment: Environment,
        lifetime: Lifetime,
        *,
        shared: bool,
        cache_limit: int = CACHE_BYTES,
    ) -> None:
        self._table = table
        self._apply = apply
        self._changes = changes
        self._values = values
        self._value_codec = value_codec
        self._lifetime = lifetime
        self._service = service
        self._now = environment.now
        self._stopwatch = environment.stopwatch
        self._process = environment.process()
        self._shared = shared and bool(self._process.host)
        self._others = MappedArenas()
        self._guards: FinalizerQueue[ReferenceState] = FinalizerQueue()
        self._processes: dict[NodeId, int] = {}
        self._unreadable: set[NodeId] = set()
        """Owners whose memory cannot be read from this process, so that their values are sent
        instead.
        """
        self._cache_limit = cache_limit
        self._cached: OrderedDict[ReferenceId, EncodedValue] = OrderedDict()
        self._unnamed: deque[tuple[float, ReferenceId]] = deque()
        self.cached_bytes = 0
        self.seconds = Histogram()
        """Seconds that each fetch of a value from another node took."""
        self.owners_died = 0
        """Requests for values that were lost with their owner."""
        self._moving: dict[ReferenceId, trio.Lock] = {}
        """A lock for each value that is being fetched, so that several tasks fetch it once."""

    async def fetch(self, state: ReferenceState) -> object:
        """Return a copy of the value, from the cache, in place, or from its owner. Raises the error
        of the producing call, and `OwnerDiedError` or `ReferenceReleasedError` if the value is
        lost.
        """
        self._lifetime.check()
        await trio.lowlevel.checkpoint()
        while True:
            # Look at the state again after each wait: meanwhile the value may have moved, failed,
            # or been fetched by another task.
            encoded = self._cached.get(state.identity)
            if encoded is not None:
                self._cached.move_to_end(state.identity)
                return self._value_codec.unpack(encoded, state)
            self._raise_failure(state)
            if self._is_here(state):
                return await self._values.value(state)
            if state.shared is not None:
                read = self._read_in_place(state, state.shared)
                if read is not None:
                    return self._value_codec.unpack(read, state)
            encoded = await self._bring_once(state)
            if encoded is not None:
                return self._value_codec.unpack(encoded, state)

    async def _bring_once(self, state: ReferenceState) -> EncodedValue | None:
        """Like `_bring`, but one task of this node at a time. Returns None if another task has
        fetched the value.
        """
        identity = state.identity
        lock = self._moving.setdefault(identity, trio.Lock())
        # Without an await until it is taken, so no other task removes it as unused.
        try:
            async with lock:
                if identity in self._cached or state.failure is not None or self._is_here(state):
                    return None
                return await self._bring(state)
        finally:
            # The last task removes the lock. Tasks that still wait have a reference to it.
            if not lock.locked() and self._moving.get(identity) is lock:
                del self._moving[identity]

    def local_value(self, state: ReferenceState) -> object:
        """Return a copy of a value of this node. Raises `NotTheOwnerError` for those of others."""
        self._lifetime.check()
        if not self._is_here(state):
            raise NotTheOwnerError(
                f"{state!r} has its value on node {state.owner}, and this is node "
                f"{self._table.identity[0]}; "
                "`await reference.fetch()` brings it here"
            )
        return self._values.value_now(state)

    async def call(
        self, state: ReferenceState, name: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """Run a method of the value at its owner, perhaps several times if answers are lost;
        returns its result.
        """
        answer: Any = None
        while answer is None:
            answer = await self._answer(
                state,
                lambda owner_id: self._service(*owner_id).call_value(
                    list(state.identity), name, list(args), kwargs
                ),
                lambda answer: isinstance(answer, list) and len(cast("list[object]", answer)) == 1,
            )
        return cast("list[object]", answer)[0]

    async def call_and_keep(
        self, state: ReferenceState, name: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Reference[object]:
        """Run a method of the value at its owner, once, and keep the result there."""
        service = self._service(*state.owner_id)
        return cast(
            "Reference[object]",
            await service.call_and_keep.remote(list(state.identity), name, list(args), kwargs),
        )

    async def wait_some(
        self, states: Sequence[ReferenceState], count: int, timeout: float | None
    ) -> frozenset[int]:
        """Wait until `count` of the values have outcomes, at most `timeout` seconds; returns the
        indices of those that have. With a `count` of 0 this asks the owners once and does not wait.
        """
        self._lifetime.check()
        await trio.lowlevel.checkpoint()
        try:
            with trio.move_on_after(math.inf if timeout is None else timeout):
                await self._wait_some(states, count)
        except BaseExceptionGroup as group:
            # Several owners are asked in parallel, so an error comes in a group. Callers expect the
            # single error.
            raise_as_it_is(first(group))
        return _indices_done(states)

    async def _wait_some(self, states: Sequence[ReferenceState], count: int) -> None:
        async with trio.open_nursery() as nursery:
            watched: dict[NodeId, list[ReferenceState]] = {}
            for state in states:
                if not state.is_settled and not state.is_done and not self._will_be_notified(state):
                    watched.setdefault(state.owner_id, []).append(state)
            if count:
                for owner_id, those in watched.items():
                    nursery.start_soon(self._watch, owner_id, those)
                # No await between the look and the wait: no change is missed.
                while len(_indices_done(states)) < count:
                    await self._changes.wait_any()
                nursery.cancel_scope.cancel()
            else:
                for owner_id, those in watched.items():
                    nursery.start_soon(self._ask_outcomes, owner_id, those)

    def on_dropped(self, identity: ReferenceId) -> None:
        """Note that this node has no reference to the value any more. The fetched copy stays cached
        for a short time, because the next message may name the value again.
        """
        encoded = self._cached.get(identity)
        if encoded is None:
            return
        # The references within a cached copy hold values on other nodes. Do not prolong that: such
        # a copy is dropped at once.
        if encoded.references:
            self._forget(identity)
        else:
            assert not self._unnamed or self._unnamed[-1][0] <= self._now() + CACHE_SECONDS, (
                "the times grow"
            )
            self._unnamed.append((self._now() + CACHE_SECONDS, identity))

    def tidy(self) -> None:
        """Drop fetched copies whose time is over, and mappings that nothing reads."""
        self._guards.gone()
        while self._unnamed and self._unnamed[0][0] <= self._now():
            _, identity = self._unnamed.popleft()
            # The value may have been named again since, and then the copy is in use.
            if self._table.find(identity) is None:
                self._forget(identity)

    @property
    def keeps_unnamed(self) -> bool:
        """True if `tidy` will have something to do."""
        return bool(self._unnamed)

    def on_node_ended(self, owner: NodeId) -> None:
        """Unmap the memory of an incarnation that has ended."""
        # Both tables are by incarnation, and none of them outlives it: this bounds them.
        self._unreadable.discard(owner)
        process = self._processes.pop(owner, None)
        if process is not None:
            self._others.forget(process)

    def close(self) -> None:
        """Read no further values in place. Mappings that are being read stay."""
        self._others.close()

    def check_invariants(self) -> None:
        """Assert the invariants of the cache. Looks at every cached value: for tests and
        simulations.
        """
        assert self.cached_bytes == sum(each.size for each in self._cached.values())
        assert self.cached_bytes <= self._cache_limit, "the cache is within its limit"
        assert all(lock.locked() for lock in self._moving.values()), "a lock that is free is kept"

    def _forget(self, identity: ReferenceId) -> None:
        encoded = self._cached.pop(identity, None)
        if encoded is not None:
            self.cached_bytes -= encoded.size

    def _is_here(self, state: ReferenceState) -> bool:
        return state.owner_id == self._table.identity

    def _will_be_notified(self, state: ReferenceState) -> bool:
        """True if this node will learn the outcome without asking the owner."""
        return self._is_here(state) or self._table.hold_state(state) == "making"

    def _raise_failure(self, state: ReferenceState) -> None:
        if state.failure is not None:
            raise self._values.rebuild(state.failure)
        if state.error is not None:
            self.owners_died += isinstance(state.error, OwnerDiedError)
            raise type(state.error)(*state.error.args)

    async def _bring(self, state: ReferenceState) -> EncodedValue | None:
        """Fetch the value and cache it if there is room. Returns None if the owner has changed and
        must be looked up again.
        """
        began = self._stopwatch()
        answer = await self._answer(
            state,
            lambda owner_id: self._service(*owner_id).fetch(
                list(state.identity), self._reader(owner_id)
            ),
            lambda answer: issubclass(type(answer), StoredValue),
        )
        self.seconds.add(self._stopwatch() - began)
        if isinstance(answer, SharedValue):
            state.shared = answer
            state.is_done = True
            return self._read_in_place(state, answer)
        if not isinstance(answer, EncodedValue):
            return None
        encoded = self._value_codec.received(answer, state)
        if encoded.size <= self._cache_limit:
            self._forget(state.identity)
            self._cached[state.identity] = encoded
            # An earlier copy was forgotten above, or its bytes would count twice.
            self.cached_bytes += encoded.size
            state.is_done = True
            # The least recently used first: `fetch` moves a copy that it finds to the end.
            while self.cached_bytes > self._cache_limit:
                self._forget(next(iter(self._cached)))
        return encoded

    def _reader(self, owner_id: NodeId) -> list[object] | None:
        """Describe this process to an owner, so that the owner does not send what can be read in
        place.
        """
        if not self._shared or owner_id in self._unreadable:
            return None
        process = self._process
        return [*self._table.identity, process.host, process.pid, process.started]

    def _read_in_place(self, state: ReferenceState, shared: SharedValue) -> EncodedValue | None:
        """Read the value of another process of this host in place. Returns None if its memory
        cannot be read, so that it must be sent.

        Everything made from the value keeps the reference state alive: when this node no longer
        holds the value, its owner reuses the memory.
        """
        segments: list[Segment] = []
        try:
            for one in shared.segments:
                if isinstance(one, SharedMemoryLocation):
                    self._processes[state.owner_id] = one.process
                    segments.append(Segment(self._others.lend(one, self._guards.token(state))))
                else:
                    segments.append(Segment(one))
        except NotLendableError as error:
            logger.info(
                "cannot read values of node %s in place, so they are copied: %s", state.owner, error
            )
            # From now on ask this owner to send its values: reading its memory would fail every
            # time.
            self._unreadable.add(state.owner_id)
            state.shared = None
            return None
        return EncodedValue(shared.control, tuple(segments))

    async def _answer(
        self,
        state: ReferenceState,
        ask: Callable[[NodeId], Awaitable[object]],
        fits: Callable[[object], bool],
    ) -> object:
        """Ask the owner, and the next owner if the value has moved. Returns the answer, or None if
        there is no outcome yet. Raises what the producing call raised, and OutcomeUnknownError for
        an answer that has none of these meanings and does not fit.
        """
        since: float | None = None
        while True:
            self._raise_failure(state)
            if self._table.hold_state(state) == "making":
                # The reference may have overtaken the call that makes the value. The owner reports
                # when there is an outcome.
                await self._changes.wait(state)
                continue
            owner_id = state.owner_id
            try:
                answer = await ask(owner_id)
            except PASSING:
                # If the owner has ended, this node will learn that soon. The owner may have moved
                # the value before.
                await trio.sleep(ASKED_AGAIN_SECONDS)
                continue
            if isinstance(answer, FailedValue):
                self._apply(self._table.on_failure_fetched(state, answer))
            # The owner may not have received the call that makes the value yet.
            elif type(answer) is int and answer == UNKNOWN:
                since = await self._unknown(state, owner_id, since)
            elif isinstance(answer, list) and len(cast("list[object]", answer)) == 2:
                moved_to = _next_owner(cast("list[object]", answer), owner_id)
                self._apply(self._table.on_moved(state.identity, moved_to))
            elif type(answer) is int:
                return None
            elif fits(answer):
                return answer
            else:
                # Asked again, it would answer so for ever.
                raise OutcomeUnknownError(
                    f"node {owner_id.name} answers what no owner of a value answers: a "
                    f"{class_name(type(answer))}",
                    node=owner_id.name,
                )

    async def _unknown(
        self, state: ReferenceState, owner_id: NodeId, since: float | None
    ) -> float | None:
        """Handle the answer that the owner does not know the value. It may not have received the
        call yet.

        Returns the time since which the owner denies a hold that it had confirmed. Raises
        ReferenceReleasedError after `UNKNOWN_SECONDS` of that.
        """
        hold_state = self._table.hold_state(state)
        if hold_state in ("claiming", "asking"):
            await self._changes.wait(state)
            return None
        if hold_state == "held" and state.owner_id == owner_id:
            now = self._now()
            # The owner had confirmed this hold, so the value is lost, unless it is just being
            # moved. Wait long enough for a move.
            if since is not None and now - since > UNKNOWN_SECONDS:
                raise ReferenceReleasedError(f"{state!r} was freed by its owner")
            await trio.sleep(ASKED_AGAIN_SECONDS)
            return since or now
        await trio.lowlevel.checkpoint()
        return None

    async def _watch(self, owner_id: NodeId, states: list[ReferenceState]) -> None:
        """Record which of these have outcomes at their owner, until all have."""
        waiting = list(states)
        while waiting := [
            state
            for state in waiting
            if state.owner_id == owner_id and not state.is_settled and not state.is_done
        ]:
            await self._ask_outcomes(owner_id, waiting, wait=True)
        # Values that have moved meanwhile: their new owners are asked.
        elsewhere: dict[NodeId, list[ReferenceState]] = {}
        for state in states:
            if (
                state.owner_id not in (owner_id, self._table.identity)
                and not state.is_settled
                and not state.is_done
            ):
                elsewhere.setdefault(state.owner_id, []).append(state)
        async with trio.open_nursery() as nursery:
            for there, those in elsewhere.items():
                nursery.start_soon(self._watch, there, those)

    async def _ask_outcomes(
        self, owner_id: NodeId, states: list[ReferenceState], *, wait: bool = False
    ) -> None:
        try:
            places = await self._service(*owner_id).outcomes(
                [list(state.identity) for state in states], wait
            )
        except PASSING:
            await trio.sleep(ASKED_AGAIN_SECONDS)
            return
        for place in sorted(places, reverse=True):
            # A number that the peer has chosen: one out of range is ignored, and costs nothing.
            if 0 <= place < len(states):
                self._apply(self._table.on_outcome_known(states[place]))
            elif 0 <= place - len(states) < len(states):
                # The larger ones first: who waits for the outcome finds that it is a failure.
                states[place - len(states)].is_failed = True


def _next_owner(answer: list[object], asked: NodeId) -> NodeId:
    """Return the node to which a value has moved, as the owner that was `asked` says. Raises
    OutcomeUnknownError for what is no node: it would go into tables of this whole node.
    """
    name, incarnation = answer
    if type(name) is not str or type(incarnation) is not int:
        raise OutcomeUnknownError(
            f"node {asked.name} says that a value has moved, and not to which node", node=asked.name
        )
    return NodeId(name, incarnation)


def _indices_done(states: Sequence[ReferenceState]) -> frozenset[int]:
    return frozenset(
        index for index, state in enumerate(states) if state.is_settled or state.is_done
    )
