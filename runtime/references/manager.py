"""The references of one identity: the shell around the pure table, and all that its effects need.

`ReferenceManager` owns the codec, the protocol client, the values in memory and on disk, and the
cache of fetched values. It constructs them once, leaves first. Events go to `ReferenceTable`;
`apply` carries out the effects that it returns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import attrs
import trio

from actors.errors import DecodeError, ProtocolError
from actors.identifiers import NodeId, ReferenceId
from actors.reference import Reference
from runtime.environment import Environment
from runtime.lifetime import Lifetime
from runtime.references.fetcher import ValueFetcher
from runtime.references.hand_over import HandOver
from runtime.references.memory.values import MEMORY_BYTES, Memory, ValueStore
from runtime.references.owned_values import OwnedValues
from runtime.references.protocol import ReferenceProtocol
from runtime.references.state_changes import StateChanges
from runtime.references.table import (
    Ask,
    AskUnsettled,
    Claim,
    Conclude,
    Effect,
    Finalized,
    Forwarder,
    HolderCounted,
    NodeEnded,
    ReaderEnded,
    ReferenceDropped,
    ReferenceMade,
    ReferenceState,
    ReferenceTable,
    Release,
    StateChanged,
    ValueFreed,
    state_of,
)
from runtime.references.value_codec import (
    STORED_VALUE_TAG,
    PassedReferences,
    ValueCodec,
    stored_from_plain,
    stored_to_plain,
)
from runtime.references.values import FailedValue, SharedValue, StoredValue
from runtime.tracing import NO_SPANS, Spans
from runtime.wire.codec import Codec
from runtime.wire.frames import Buffer, Outgoing
from runtime.wire.plain_writer import Extension
from runtime.wire.standard_types import UnsendableError

REFERENCE_TAG = 64_101


TIDY_SECONDS = 1.0
"""Seconds between two attempts to return free memory of values to the kernel, while any is used."""


OnLeave = Literal["move", "lose"]
"""Whether the values of a node that leaves move to other nodes, or are lost, in which case all
holders are notified.
"""

_KINDS = (str, int, int, str, int)
"""The types of what a reference travels as: its identity and its owner."""

_FORWARDED_KINDS = (*_KINDS, str, int, int, int)
"""And its forwarder, with the number of the fork, and the distance."""

MOST_NAMES = 1_000
"""Nodes whose ids are remembered, so that references to their values share them."""

NOTES_IN_A_ROW = 1_000
"""References that have arrived, and notes of the garbage collector, that are handled before the
other tasks of the event loop have their turns: some milliseconds' work.
"""

MOST_REFERENCES = 250_000
"""References in one message. Writing and reading them is one step of the event loop on either side,
of some microseconds for each, as for any other object; all else is done in parts.
"""

MOST_ARRIVALS = 4 * MOST_REFERENCES
"""References that were read and wait to be recorded: messages with more are refused."""


@attrs.frozen
class MemoryOptions:
    """Where a node keeps its values. `limit`: bytes of memory for all of them. `directory`: for the
    values beyond that limit, by default TMPDIR or /var/tmp. `shared`: other processes of the host
    read the values in place. `on_leave`: what happens to the values when the node leaves.
    """

    limit: int = MEMORY_BYTES
    directory: Path | None = None
    shared: bool = False
    on_leave: OnLeave = "move"


# A reference in a message: its identity, its owner, and the node that forwarded it.


class InFlightReferences:
    """The forks of one message: lives as long as the message may still be sent. One object for all
    of them, because a message may have hundreds of thousands.
    """

    __slots__ = ("_landed", "numbers")

    def __init__(self, landed: list[int]) -> None:
        self.numbers: list[int] = []
        self._landed = landed

    def __del__(self) -> None:
        # May run in any thread, between any two instructions: `list.extend` by a list is atomic.
        self._landed.extend(self.numbers)


class ReferenceParts(NamedTuple):
    """A decoded reference. `forwarder` is None for a reference that was copied on one node;
    `shared`: the memory of the value, if it can be read in place.
    """

    identity: ReferenceId
    owner_id: NodeId
    forwarder: Forwarder | None
    shared: SharedValue | None


class ReferenceReader:
    """Decodes what `ReferenceManager.write` has encoded."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[str, int], NodeId] = {}

    def parts(self, plain: object) -> ReferenceParts:
        """Decode one reference. Raises ProtocolError."""
        items = plain if isinstance(plain, list) else []
        shared = items.pop() if items and isinstance(items[-1], SharedValue) else None
        kinds = tuple(map(type, items))
        forwarder = None
        if kinds == _FORWARDED_KINDS:
            maker, incarnation, number, owner, owner_number, peer, peer_number, fork, far = items
            forwarder = Forwarder(self._node(peer, peer_number), fork, far)
        elif kinds == _KINDS:
            maker, incarnation, number, owner, owner_number = items
        else:
            raise ProtocolError(
                "malformed reference: expected a list of its identity, its owner and its forwarder"
            )
        owner_id = self._node(owner, owner_number)
        # Most owners are the makers: one text is kept for both.
        name = owner_id.name if maker == owner_id.name else sys.intern(maker)
        return ReferenceParts((name, incarnation, number), owner_id, forwarder, shared)

    def _node(self, name: str, incarnation: int) -> NodeId:
        """Nodes are few and references many: each node's id is kept once."""
        found = self._nodes.get((name, incarnation))
        if found is None:
            if len(self._nodes) >= MOST_NAMES:
                # Peers choose the names, so their number is bounded.
                self._nodes.clear()
            found = NodeId(sys.intern(name), incarnation)
            self._nodes[found] = found
        return found


class ReferenceManager:
    """The references of one identity; see the module docstring.

    `service(node, incarnation)` gives a handle of a node's `ReferenceService` that calls until
    there is an answer, `service_once` one that calls once; `rebuild` makes errors of failures;
    `make_codec(extensions)` makes the codec of this identity.
    """

    def __init__(
        self,
        identity: NodeId,
        service: Callable[[str, int], Any],
        service_once: Callable[[str, int], Any],
        environment: Environment,
        numbers: Callable[[], int],
        rebuild: Callable[[FailedValue], Exception],
        options: MemoryOptions,
        lifetime: Lifetime,
        make_codec: Callable[[list[Extension]], Codec],
    ) -> None:
        self.identity = identity
        self._service = service
        self.now = environment.now
        self._finalized: Finalized = []
        self._landed: list[int] = []
        self.table = ReferenceTable(identity, numbers, self._finalized)
        self.passed = PassedReferences()
        self._reader = ReferenceReader()
        self.spans: Spans = NO_SPANS
        self._calling_site: Callable[[], str] | None = None
        self.codec = make_codec(
            [
                Extension(REFERENCE_TAG, Reference, self.write, self.read),
                Extension(STORED_VALUE_TAG, StoredValue, self._write_stored, stored_from_plain),
            ]
        )
        self._changes = StateChanges(lifetime)
        self._memory = Memory(environment, options.limit, shared=options.shared)
        self.value_store: ValueStore[ReferenceId] = ValueStore(
            environment, options.limit, options.directory
        )
        value_codec = ValueCodec(self.codec, self.passed, self._memory)
        self.owned = OwnedValues(
            self.table,
            self.apply,
            self._changes,
            value_codec,
            self.value_store,
            environment,
            rebuild,
        )
        self.fetcher = ValueFetcher(
            self.table,
            self.apply,
            self._changes,
            self.owned,
            value_codec,
            service_once,
            environment,
            lifetime,
            shared=options.shared,
        )
        self.protocol = ReferenceProtocol(
            self.table,
            self.apply,
            self.tidy,
            self._has_notes,
            lambda: self.is_busy,
            service,
            environment,
        )

    def __len__(self) -> int:
        """How many own values other nodes or live references of this node hold."""
        self.tidy()
        return len(self.table)

    @property
    def held(self) -> int:
        """How many values this node has references to, plus the number of its open forks."""
        self.tidy()
        return self.table.held

    @property
    def is_busy(self) -> bool:
        """True while references or forks exist whose end only the garbage collector reports."""
        return bool(
            self.table.is_busy or self._finalized or self._landed or self.fetcher.keeps_unnamed
        )

    def has_ended(self, peer: NodeId) -> bool:
        """True if this node knows that the incarnation has ended."""
        return self.table.has_ended(peer)

    def own(self) -> list[ReferenceState]:
        """The values of this node."""
        self.tidy()
        return self.table.own()

    def apply(self, effects: Iterable[Effect]) -> None:
        """Carry out the table's effects, in their order."""
        protocol = self.protocol
        for effect in effects:
            match effect:
                case StateChanged(state):
                    self._changes.notify(state)
                case ReferenceMade():
                    protocol.wake()
                case Claim(owner, identity, version, after, again):
                    protocol.claim(owner, identity, version, after, again=again)
                case Release(owner, identity, version):
                    protocol.release(owner, identity, version)
                case Ask(forwarder, identity, number, after):
                    protocol.ask(forwarder, identity, number, after)
                case HolderCounted(owner, identity):
                    protocol.on_counted(owner, identity)
                case Conclude(owner, identity, failure):
                    protocol.conclude(owner, identity, failure)
                case AskUnsettled(peer):
                    protocol.ask_unsettled(peer)
                case ReferenceDropped(identity):
                    self.fetcher.on_dropped(identity)
                case ValueFreed(identity, size):
                    self.value_store.remove(identity, size)
                case ReaderEnded(state, reader):
                    self.value_store.on_reader_ended(reader, state.identity, state.stored)
                case NodeEnded(peer):
                    protocol.on_node_ended(peer)
                    self.owned.on_node_ended(peer)
                    self.fetcher.on_node_ended(peer)

    def _has_notes(self) -> bool:
        table = self.table
        return bool(self._finalized or self._landed or table.arrivals or table.has_ends)

    def tidy(self) -> bool:
        """Record references that have arrived, handle notes of the garbage collector, and note for
        values that nodes have ended: `NOTES_IN_A_ROW` of each kind; return whether there were any.

        There may be a million of each, and the loop must not be blocked for that long.
        """
        most = NOTES_IN_A_ROW
        self.fetcher.tidy()
        if not self._has_notes():
            return False
        # The garbage collector may append to both lists at any time, also during these loops.
        for _ in range(most):
            if not self._landed:
                break
            self.table.on_landed(self._landed.pop())
        self.apply(self.table.record_arrivals(most))
        self._handle_dropped(most)
        self.apply(self.table.note_ends(most))
        # After the notes, so that forks which have just landed are asked about in the same round.
        self.apply(self.table.forks_due())
        return True

    def _handle_dropped(self, most: int) -> None:
        for _ in range(most):
            if not self._finalized:
                break
            self.apply(self.table.on_dropped(*self._finalized.pop()))

    # Events of this node's own actors and calls.

    def reference(self, state: ReferenceState) -> Reference[Any]:
        """A reference for users."""
        return Reference(state, self)

    async def put(self, value: object) -> Reference[Any]:
        """Keep a copy of a value; see `OwnedValues.put`."""
        return Reference(await self.owned.put(value, self._site), self)

    def make(self, owner: NodeId, maker: str) -> ReferenceState:
        """Begin the reference to the result of a call to node `owner`, which stays there."""
        state, effects = self.table.make(owner, maker, self._site(), self.now())
        self.apply(effects)
        return state

    def redirect(self, state: ReferenceState, owner: NodeId) -> None:
        """Expect the result at another node: the call was not executed at the first."""
        self.apply(self.table.redirect(state, owner))

    def on_call_ended(
        self, state: ReferenceState, failure: FailedValue | None, *, agreed: bool = False
    ) -> None:
        """Note how the call that makes the value has ended, and tell the owner if it must know."""
        self.apply(self.table.on_call_ended(state, failure, agreed=agreed))

    def begin(
        self, identity: ReferenceId, holder: NodeId, version: int, maker: str
    ) -> ReferenceState:
        """Note that a call has arrived whose result stays here, held by `holder`."""
        state, effects = self.table.begin(identity, holder, version, maker, self.now())
        self.apply(effects)
        return state

    def on_attempt_failed(self, state: ReferenceState, failure: FailedValue) -> None:
        """Note a failed attempt: it is the outcome if there is no further one."""
        self.apply(self.table.on_attempt_failed(state, failure))

    def close_attempts(self, state: ReferenceState) -> None:
        """Note that there will be no further attempt at the call that makes the value."""
        self.apply(self.table.close(state))

    def on_node_ended(self, peer: NodeId) -> None:
        """Note that an incarnation has ended: it holds and owns nothing any more."""
        table = self.table
        self.apply(table.on_node_ended(peer))
        self.apply(table.note_ends(NOTES_IN_A_ROW))
        if table.has_ends:
            self.protocol.wake_sender()

    def _site(self) -> str:
        return self._calling_site() if self._calling_site is not None else ""

    def trace(self, site: Callable[[], str]) -> None:
        """Note where the program makes values from now on: `site()` returns the file and line."""
        self._calling_site = site

    @property
    def is_traced(self) -> bool:
        """True if it is noted where the program makes values."""
        return self._calling_site is not None

    # Operations of a `Reference`; see `actors.reference.ReferenceSource`.

    async def fetch(self, state: ReferenceState) -> object:
        """Return a copy of the value, in a span of its own if spans are recorded."""
        if self.spans is NO_SPANS:
            return await self.fetcher.fetch(state)
        with self.spans.span("reference.fetch", {"understudy.node": state.owner}):
            return await self.fetcher.fetch(state)

    def local_value(self, state: ReferenceState) -> object:
        """Return a copy of a value of this node. Raises `NotTheOwnerError` for those of others."""
        return self.fetcher.local_value(state)

    async def wait_some(
        self, states: Sequence[ReferenceState], count: int, timeout: float | None
    ) -> frozenset[int]:
        """Wait for the outcomes of `count` values; returns the indices of those that have one."""
        return await self.fetcher.wait_some(states, count, timeout)

    async def call(
        self,
        state: ReferenceState,
        method: str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        """Run a method of the value at its owner, and return the result."""
        return await self.fetcher.call(state, method, args, kwargs)

    async def call_and_keep(
        self,
        state: ReferenceState,
        method: str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> Reference[object]:
        """Run a method of the value at its owner, and keep the result there."""
        return await self.fetcher.call_and_keep(state, method, args, kwargs)

    # References in messages.

    def write(self, reference: Reference[Any], segments: list[Buffer]) -> object:
        """Encode a reference for a message. If the message goes to another node, this is a fork."""
        # By identity: the table of another node of this process does not know the fork.
        if reference._source is not self:
            raise UnsendableError(
                "belongs to another node that this process has open; let that one send it"
            )
        state = state_of(reference)
        self.passed.wrote_any = True
        if type(segments) is not Outgoing:
            return [*state.identity, *state.owner_id]
        numbers = self._in_flight(segments).numbers
        if len(numbers) >= MOST_REFERENCES:
            raise UnsendableError(
                f"is one reference more than the {MOST_REFERENCES} that one message may have; send "
                "them in several calls. A value that is fetched is one message, too"
            )
        number, distance = self.table.forward(state, segments.peer)
        numbers.append(number)
        plain = [*state.identity, *state.owner_id, *self.identity, number, distance]
        if state.owner_id == self.identity:
            # A receiver that can read the value in place need not ask where it is.
            shared = self.owned.shared_with(state, segments.peer)
            if shared is not None:
                plain.append(shared)
        return plain

    def read(self, plain: object) -> Reference[object]:
        """Decode a reference that arrived in a message, or was copied. Raises ProtocolError."""
        identity, owner_id, forwarder, shared = self._reader.parts(plain)
        table = self.table
        if table.arrivals >= MOST_ARRIVALS:
            raise DecodeError(
                f"node {self.identity.name} has read {table.arrivals} references that it has not "
                "recorded yet; send it fewer in one message, or later"
            )
        if self._finalized and table.is_counted(identity) and table.find(identity) is None:
            # A value of this node whose last holder has dropped it just before: its note comes
            # first. It is among the latest, which are handled first.
            while self._finalized and table.is_counted(identity):
                self._handle_dropped(1)
        state, effects = table.arrive(identity, owner_id, forwarder, shared, self.now())
        if effects:
            self.apply(effects)
        if table.arrivals:
            self.protocol.wake_sender()
        # Not `Reference[object](...)`: the subscript costs more than all of the rest.
        reference: Reference[object] = Reference(state, self)
        self.passed.read_any = True
        if self.passed.arrivals is not None:
            self.passed.arrivals.append(reference)
        return reference

    def _in_flight(self, message: Outgoing) -> InFlightReferences:
        """Return what keeps the forks of a message; its end is the event `landed` of each."""
        held = message.attachment.held if message.attachment is not None else ()
        last = held[-1] if held else None
        if type(last) is not InFlightReferences:
            last = InFlightReferences(self._landed)
            message.attach(last)
        return last

    def _write_stored(self, stored: StoredValue, segments: list[Buffer]) -> object:
        return stored_to_plain(self.codec, stored, segments)

    def check_invariants(self) -> None:
        """Assert the invariants of references, between two steps of a task: for tests and
        simulations.
        """
        self.table.check_invariants()
        self.fetcher.check_invariants()
        self.protocol.check_invariants()
        self.value_store.check_invariants()
        self._memory.check_invariants()

    # The lifetime of a node.

    async def hand_over(self, staying: Callable[[], Sequence[NodeId]]) -> int:
        """Move the values of this node, which leaves, to other nodes; see `HandOver.hand_over`."""
        moves = HandOver(self.table, self.apply, self.tidy, self.owned, self._service)
        return await moves.hand_over(staying)

    async def run(self) -> None:
        """Run the background tasks of the references, for as long as the node lives."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.protocol.run)
            nursery.start_soon(self.owned.spill)
            nursery.start_soon(self._tidy_memory)

    def close(self) -> None:
        """Stop sharing memory and reading memory of others, and wake tasks that wait for a
        value.
        """
        for state in self.table.states():
            self._changes.notify(state)
        self._memory.close()
        self.fetcher.close()

    async def _tidy_memory(self) -> None:
        while True:
            await self.value_store.wait_used()
            await trio.sleep(TIDY_SECONDS)
            self.value_store.tidy()
            self._memory.tidy()
