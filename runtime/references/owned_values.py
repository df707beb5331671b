"""The values of this node: stored, waited for, served to other nodes, and called in place."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import attrs
import trio

from actors.errors import (
    NodeDrainingError,
    ReferenceNotReadyError,
    ReferenceReleasedError,
)
from actors.identifiers import NodeId, ReferenceId
from runtime.environment import Environment, Process
from runtime.references.memory.values import Segment, ValueStore
from runtime.references.state_changes import StateChanges
from runtime.references.table import Effect, ReferenceState, ReferenceTable, StateChanged
from runtime.references.value_codec import ValueCodec
from runtime.references.value_methods import method_of
from runtime.references.values import (
    NOT_YET,
    UNKNOWN,
    EncodedValue,
    FailedValue,
    OnDisk,
    SharedValue,
    SizedValue,
    StoredValue,
    ValueWithReferences,
)
from runtime.service_calls import LONG_POLL_SECONDS

UNKNOWN_SECONDS = 5.0
"""How many seconds to ask an owner again that does not know a value which it had confirmed to this
node, before the value counts as lost.
"""

MOST_SENT = 4096
"""Bytes of a value that travel with its reference, if all the rest is read in place."""

METHOD_THREADS = 40
"""Methods of values that may run at once, each in a thread. They may be users' code, which may
block.
"""


@attrs.frozen
class Reader:
    """The node that asks for a value, and its process."""

    node: NodeId
    process: Process


class OwnedValues:
    """The values of this node: kept, waited for, served to other nodes, and worked with in place.

    `rebuild(failure)` gives the error to raise for a failure. Events go to the `table`; `apply`
    carries out their effects.
    """

    def __init__(
        self,
        table: ReferenceTable,
        apply: Callable[[Iterable[Effect]], None],
        changes: StateChanges,
        value_codec: ValueCodec,
        value_store: ValueStore[ReferenceId],
        environment: Environment,
        rebuild: Callable[[FailedValue], Exception],
    ) -> None:
        self._table = table
        self._apply = apply
        self._changes = changes
        self._value_codec = value_codec
        self._environment = environment
        self._methods = trio.CapacityLimiter(METHOD_THREADS)
        self.value_store = value_store
        self._host = environment.process().host
        self._near: dict[NodeId, Process] = {}
        """Nodes that have read values in place, with their processes."""
        self.rebuild = rebuild
        self._takes_over = True
        """False once this node, which leaves, has given its values away."""

    def take_nothing_over(self) -> None:
        """Refuse the values of other nodes from now on: this node leaves, and would not move them
        on.
        """
        self._takes_over = False

    async def put(self, value: object, site: Callable[[], str]) -> ReferenceState:
        """Store a copy of a value. Waits while memory is full. `site()` returns the file and line
        of the program. Raises EncodeError, ReferenceMemoryError.
        """
        await trio.lowlevel.checkpoint()
        # Before the value is encoded: tasks that wait for room must not hold memory of their own.
        await self.value_store.room()
        stored = self._value_codec.pack(value, "value")
        state, effects = self._table.put(stored, site(), self._environment.now())
        self._apply(effects)
        self.value_store.add(state.identity, stored.size)
        return state

    def resolve(
        self,
        state: ReferenceState,
        value: object,
        check: Callable[[int], object] = lambda size: None,
    ) -> int:
        """Store the value that the method has returned for `state`; returns its size in bytes.
        Raises EncodeError, and what `check(size)` raises, before anything is stored.
        """
        stored = self._value_codec.pack(value, "result")
        if not state.is_settled:
            check(stored.size)
            effects = self._table.on_result(state, stored)
            # Counted before the effects wake those who wait: they may ask for room at once.
            self.value_store.add(state.identity, stored.size)
            self._apply(effects)
        return stored.size

    def value_now(self, state: ReferenceState) -> object:
        """Return a copy of the value. Raises the error of the producing call, and
        `ReferenceNotReadyError`.
        """
        if state.stored is None:
            self._raise_failure(state)
            raise ReferenceNotReadyError(
                f"{state!r} has no value yet; `await reference.fetch()` waits for it"
            )
        if isinstance(state.stored, OnDisk):
            raise ReferenceNotReadyError(
                f"{state!r} has its value on disk; `await reference.fetch()` reads it"
            )
        self.value_store.on_used(state.identity)
        return self._value_codec.unpack(state.stored, state)

    async def value(self, state: ReferenceState) -> object:
        """Wait for the value, and return a copy. Raises the error of the producing call."""
        while not state.is_settled:
            await self._changes.wait(state)
        self._raise_failure(state)
        assert state.stored is not None
        self.value_store.on_used(state.identity)
        return self._value_codec.unpack(await _loaded(state.stored), state)

    async def serve(self, identity: ReferenceId, reader: Reader | None = None) -> object:
        """Return the answer for another node: the value, the failure, the next owner (a pair of
        name and incarnation), UNKNOWN or NOT_YET.

        If `reader` is on this host, the answer is the memory of the value, if that is where it can
        be read.
        """
        owner, state = self._find(identity)
        if state is None:
            return list(owner) if owner is not None else UNKNOWN
        # Bounded: the reader asks again. Otherwise the task of a reader that has ended would wait
        # here for ever.
        with trio.move_on_after(LONG_POLL_SECONDS):
            while not state.is_settled:
                await self._changes.wait(state)
        if state.stored is None:
            return state.failure if state.failure is not None else NOT_YET
        self.value_store.on_used(identity)
        stored = await _loaded(state.stored)
        if (
            reader is None
            or stored is not state.stored
            or not isinstance(stored, EncodedValue)
            or not stored.is_shared
        ):
            return stored
        if not self._host or reader.process.host != self._host:
            return stored
        self._near[reader.node] = reader.process
        # Before the answer leaves: from now on the memory must not be reused while this process may
        # read it.
        self.value_store.on_shared(identity, reader.node, reader.process)
        return SharedValue(
            stored.control, tuple(segment.place or segment.buffer for segment in stored.segments)
        )

    def shared_with(self, state: ReferenceState, node: NodeId) -> SharedValue | None:
        """Return the memory of a value of this node for a node that can read it in place; None if
        that node has to ask.
        """
        process = self._near.get(node)
        stored = state.stored
        if process is None or not isinstance(stored, EncodedValue) or not stored.is_shared:
            return None
        shared = SharedValue(
            stored.control, tuple(segment.place or segment.buffer for segment in stored.segments)
        )
        if shared.sent > MOST_SENT:
            return None
        self.value_store.on_shared(state.identity, node, process)
        return shared

    def on_node_ended(self, node: NodeId) -> None:
        """Forget an incarnation that has ended."""
        self._near.pop(node, None)

    async def outcome(self, state: ReferenceState) -> object:
        """Return what to move to another owner: the value, or the failure."""
        return await _loaded(state.stored) if state.stored is not None else state.failure

    async def adopt(
        self,
        identity: ReferenceId,
        outcome: object,
        registers: list[tuple[str, int, int]],
        maker: str,
        site: str,
    ) -> bool:
        """Become the owner of a value whose owner leaves. Returns False if this node had it and has
        moved it on while this call waited for memory.

        Raises NodeDrainingError if this node leaves as well and has no time left to move it on, and
        DecodeError if it cannot be decoded.
        """
        await self.value_store.room()
        if self._table.given_to(identity) is not None:
            return False
        if not self._takes_over:
            raise NodeDrainingError("this node leaves the cluster, too")
        here = self._table.find(identity)
        stored: EncodedValue | ValueWithReferences | None = None
        if isinstance(outcome, EncodedValue) and (here is None or here.stored is None):
            # Decode first, before anything is recorded: the value may not be readable on this node.
            stored = self._value_codec.taken_over(outcome)
        # From here to the end without an await: the old owner may ask again, and must find either
        # nothing or the whole value.
        state, effects = self._table.adopt(
            identity, registers, maker, site, self._environment.now()
        )
        self._apply(effects)
        if state.is_settled:
            return True
        effects = [StateChanged(state)]
        if isinstance(outcome, FailedValue):
            effects = self._table.on_result(state, outcome)
        elif stored is not None:
            effects = self._table.on_result(state, stored)
            self.value_store.add(identity, stored.size)
        self._apply(effects)
        return True

    async def spill(self) -> None:
        """Write values that do not fit into memory to disk, until the node ends."""
        while True:
            for identity in await self.value_store.wait_full():
                await self._write(identity)
                if self.value_store.broken:
                    await self.value_store.disk_rested()
                    break

    async def _write(self, identity: ReferenceId) -> None:
        # In its own function, so that no local variable keeps the last written value alive.
        state = self._table.find(identity)
        stored = state.stored if state is not None else None
        if state is None or not isinstance(stored, EncodedValue):
            return
        spilled = await self.value_store.write(identity, stored.buffers)
        # During the write the value may have been freed, or moved to another node.
        if spilled is not None and state.stored is stored:
            self._table.on_spilled(state, OnDisk(stored.control, spilled, stored.size))

    def _raise_failure(self, state: ReferenceState) -> None:
        if state.failure is not None:
            raise self.rebuild(state.failure)
        if state.error is not None:
            raise type(state.error)(*state.error.args)

    async def outcomes(self, identities: Sequence[ReferenceId], *, wait: bool) -> list[int]:
        """Return the positions of the values that have outcomes or are not known here, and once
        more, behind all positions, of those without a value because their calls have failed. With
        `wait`, return as soon as there is one, or after a while.
        """
        states = [self._find(identity)[1] for identity in identities]
        done: list[int] = []
        with trio.move_on_after(LONG_POLL_SECONDS if wait else 0):
            while not (done := settled_places(states)) and wait:
                # Wait for these alone: a peer may ask for many values, many times, and otherwise
                # each change of any other value would have all of them looked at again.
                await self._changes.wait_first(state for state in states if state is not None)
        done = done or settled_places(states)
        # A node of an earlier version ignores what is no position of its list.
        return done + [len(states) + place for place in done if _has_failed(states[place])]

    async def call(
        self, identity: ReferenceId, name: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """Run a method of a value in a thread. Returns a list of its result, or what `serve`
        returns. Raises AttributeError, and what the method raises.
        """
        _, state = self._find(identity)
        answer = await self.serve(identity)
        if state is None or not isinstance(answer, StoredValue):
            return answer
        method = method_of(self._value_codec.unpack(answer, state), name)
        return [
            await self._environment.in_thread(
                functools.partial(method, *args, **kwargs), self._methods
            )
        ]

    async def call_and_keep(
        self, identity: ReferenceId, name: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """Like `call`, but keep the result on this node. Raises every error here, because the
        caller does not retry.
        """
        with trio.move_on_after(UNKNOWN_SECONDS):
            while self._table.owner(identity) is None:
                # The call that makes the value is still on its way here.
                await self._changes.wait_any()
        answer: object = NOT_YET
        while answer == NOT_YET:
            answer = await self.call(identity, name, args, kwargs)
        if isinstance(answer, FailedValue):
            raise self.rebuild(answer)
        if isinstance(answer, list) and len(cast("list[object]", answer)) == 1:
            return cast("list[object]", answer)[0]
        raise ReferenceReleasedError(
            f"node {self._table.identity[0]} does not have the value whose method {name} was to "
            "be called"
        )

    def _find(self, identity: ReferenceId) -> tuple[NodeId | None, ReferenceState | None]:
        owner = self._table.owner(identity)
        return owner, self._table.find(identity) if owner == self._table.identity else None


async def _loaded(stored: SizedValue) -> EncodedValue | ValueWithReferences:
    """Return the value with all its segments in memory."""
    if isinstance(stored, OnDisk):
        return EncodedValue(
            stored.control, tuple(Segment(buffer) for buffer in await stored.spilled.read())
        )
    return stored


def _has_failed(state: ReferenceState | None) -> bool:
    return state is not None and state.has_failed


def settled_places(states: Sequence[ReferenceState | None]) -> list[int]:
    """Return the positions of those that have outcomes, or are not known here."""
    return [index for index, state in enumerate(states) if state is None or state.is_settled]
