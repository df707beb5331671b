"""The table of references of one node, pure: the values that it owns, those of other nodes that it
holds, and its open forks.

No I/O, no clock, no codec and no trio: events go in, and effects come out, which the shell
(`runtime.references.manager`) carries out. `ReferenceTable` combines three machines: `HolderSet`
(the owner's side) and `Forks` (the sender's side), each in a file of its own, and here
`BorrowedReferences` (the holder's side).
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import attrs

from actors.errors import OwnerDiedError, ReferenceReleasedError
from actors.identifiers import NodeId, ReferenceId
from runtime.references.forks import Forks
from runtime.references.holder_set import HolderSet
from runtime.references.values import FailedValue

if TYPE_CHECKING:
    from actors.reference import Reference
    from runtime.references.values import OnDisk, SharedValue, SizedValue


# Holds: the values of other nodes that this node holds. The holder's side of the protocol.
#
# Events go in, and updates for other nodes come out as effects. A hold begins with a call of this
# node whose result stays elsewhere, or with a reference in a received message. It ends when the
# last reference is dropped.
#
#     making    the call was handed to the owner and is not answered: no other node can know
#               whether the owner has received it
#     claiming  a claim is on its way to the owner
#     asking    the owner did not know the value, or has ended: a forwarder may know where it is
#     held      the owner has registered this node
#     lost      there is no value to hold
#
# The nodes that put the reference into messages to this one are its forwarders (`Forwarder`). They
# keep their own hold as long as the fork is not settled here. A claim may overtake, on another
# link, the call that makes the value. So if the owner does not know the value, this is not final
# while a forwarder answers that it has it. The reference itself may also overtake that call on its
# way to the owner, which then waits in the same way (`on_arrived_at_owner`).
#
# Two nodes that forward a reference to each other must not each trust the other's hold. So each
# hold has a distance from the nodes that know the value (distance 0), and only a nearer node may be
# its forwarder. The distance of a hold never grows, and a hold lives as long as the holds whose
# forwarder it is. So the forwarders form a tree, like the forks of an RRef.

HolderState = Literal["making", "claiming", "asking", "held", "lost"]


FIRST_PATIENCE = 0.002


MOST_PATIENCE = 0.25
"""Seconds between two claims with an owner that does not know a value which a forwarder says that
it has: `FIRST_PATIENCE` before the second claim, then twice as long before each further one, up to
`MOST_PATIENCE`.
"""

Finalized = list[tuple[ReferenceId, int, int]]
"""A queue of the reference states that Python's garbage collector has ended: reference id, version,
and the bytes of the value at its owner.
"""

MOST_DEAD = 10_000
"""How many ended incarnations are remembered, so that their late claims are ignored."""

MOST_EARLY = 10_000
"""How many values are remembered that were released before the call that makes them arrived."""


class Forwarder(NamedTuple):
    """A node that sent this node a reference, the number of its fork, and the distance of its own
    hold from the nodes that know the value.
    """

    peer: NodeId
    number: int
    distance: int = 0


@attrs.frozen
class Claim:
    """Claim the value at `owner`, in `after` seconds; then `BorrowedReferences.on_confirmed` or
    `BorrowedReferences.on_unknown`.

    `again`: this hold was claimed before, so this owner may have registered it already.
    """

    owner: NodeId
    identity: ReferenceId
    version: int
    after: float = 0.0
    again: bool = False


@attrs.frozen
class Release:
    """Release the value at `owner`."""

    owner: NodeId
    identity: ReferenceId
    version: int


@attrs.frozen
class Ask:
    """Ask `forwarder`, in `after` seconds, where the value is; then `on_located`, `on_failed` or
    `on_denied` of `BorrowedReferences`. `number` is the last of its forks that were known here.
    """

    forwarder: NodeId
    identity: ReferenceId
    number: int
    after: float = 0.0


@attrs.frozen
class HoldSettled:
    """The hold is decided: the owner has registered it, or there never will be a value."""

    identity: ReferenceId


@attrs.frozen
class HoldLost:
    """The value is lost for this node. `owner_died`: because its owner has ended; otherwise because
    all other holders have released it.
    """

    identity: ReferenceId
    owner: NodeId
    owner_died: bool


HoldEffect = Claim | Release | Ask | HoldSettled | HoldLost


class BorrowedReference:
    """This node's hold on one value of another node."""

    __slots__ = (
        "distance",
        "failed",
        "forwarders",
        "is_here",
        "owner",
        "owner_died",
        "patience",
        "state",
        "version",
    )

    def __init__(self, owner: NodeId, version: int, state: HolderState, distance: int = 0) -> None:
        self.owner = owner
        self.version = version
        self.state: HolderState = state
        self.forwarders: tuple[Forwarder, ...] = ()
        self.failed = False
        self.patience = 0.0
        self.owner_died = False
        self.distance = distance
        self.is_here = False
        """True if the owner is this node, and the call that makes the value has not arrived."""


class BorrowedReferences:
    """All borrowed references of one node. Events return the effects to carry out."""

    def __init__(self) -> None:
        self.all: dict[ReferenceId, BorrowedReference] = {}
        self._open: dict[NodeId, set[int]] = {}
        """The numbers of the forks that are not settled here, by forwarder."""

    def on_call_sent(self, identity: ReferenceId, owner: NodeId, version: int) -> None:
        """Note that a call was handed to `owner`, which keeps its result. The call claims it for
        this node, in `version`.
        """
        self.all[identity] = BorrowedReference(owner, version, "making")

    def on_call_answered(self, identity: ReferenceId, version: int) -> list[HoldEffect]:
        """Note that the owner has answered that call, with a value or a failure."""
        hold = self._current(identity, version)
        if hold is None or hold.state != "making":
            return []
        # From here on the owner counts this node, so nothing else needs to keep the value for it.
        hold.state = "held"
        self._check(hold)
        return [HoldSettled(identity)]

    def expect(self, forwarder: Forwarder) -> None:
        """Count a fork as not settled here, although `on_arrived` or `on_arrived_at_owner` follows
        later: its sender may ask before.
        """
        numbers = self._open.get(forwarder.peer)
        if numbers is None:
            numbers = self._open[forwarder.peer] = set()
        numbers.add(forwarder.number)

    def on_expected(self, identity: ReferenceId, forwarder: Forwarder) -> None:
        """Settle a fork that was expected, unless the hold on the value needs its forwarder."""
        hold = self.all.get(identity)
        if hold is None or forwarder not in hold.forwarders:
            self._forget((forwarder,))

    def on_arrived(
        self, identity: ReferenceId, owner: NodeId, version: int, forwarder: Forwarder | None
    ) -> list[HoldEffect]:
        """Note that a reference arrived in a message. `version` is used if there was no hold yet.
        Without a forwarder the sender keeps the value alive in another way.
        """
        hold = self.all.get(identity)
        if hold is None:
            hold = self.all[identity] = BorrowedReference(
                owner, version, "claiming", _distance_from(forwarder)
            )
            self._add_forwarder(hold, forwarder)
            self._check(hold)
            return [Claim(owner, identity, version)]
        if hold.state in ("claiming", "asking"):
            self._add_forwarder(hold, forwarder)
        elif (
            hold.state == "lost"
            and not hold.failed
            and not hold.is_here
            and (owner != hold.owner or not hold.owner_died)
        ):
            # The sender has it still, perhaps with an owner that this node has not heard of.
            self._add_forwarder(hold, forwarder)
            return self._claim(identity, hold, owner)
        self._check(hold)
        return []

    def on_arrived_at_owner(
        self, identity: ReferenceId, owner: NodeId, version: int, forwarder: Forwarder | None
    ) -> list[HoldEffect]:
        """Note that a reference arrived at the `owner` itself, which does not know the value: the
        call that makes it may be on its way. Then `on_call_arrived` follows.
        """
        hold = self.all.get(identity)
        if hold is None:
            hold = self.all[identity] = BorrowedReference(
                owner, version, "lost", _distance_from(forwarder)
            )
            hold.is_here = True
        elif not hold.is_here or hold.failed:
            return []
        self._add_forwarder(hold, forwarder)
        return self._ask_or_lose(identity, hold) if hold.state == "lost" else []

    def on_call_arrived(self, identity: ReferenceId) -> list[HoldEffect]:
        """Note that the call has arrived that makes an awaited value: from now on the holder set
        counts.
        """
        hold = self.all.get(identity)
        if hold is None or not hold.is_here:
            return []
        del self.all[identity]
        self._settle(hold)
        return [HoldSettled(identity)]

    def distance(self, identity: ReferenceId) -> int:
        """Return how far this node is from those that know the value; see above."""
        hold = self.all.get(identity)
        return hold.distance if hold is not None else 0

    def on_confirmed(self, identity: ReferenceId, version: int, owner: NodeId) -> list[HoldEffect]:
        """Note that `owner` has registered the claim."""
        hold = self._current(identity, version)
        if (
            hold is None
            or hold.owner != owner
            or hold.owner_died
            or hold.state not in ("claiming", "asking")
        ):
            return []
        # The owner has registered this node: its forwarders may release, and it is at distance 0.
        hold.state = "held"
        hold.patience = 0.0
        # It may forward to any node now. A distance that grew instead could close a circle.
        hold.distance = 0
        self._settle(hold)
        self._check(hold)
        return [HoldSettled(identity)]

    def on_unknown(self, identity: ReferenceId, version: int, owner: NodeId) -> list[HoldEffect]:
        """Note that `owner` does not know the claimed value."""
        hold = self._current(identity, version)
        if hold is None or hold.owner != owner or hold.state != "claiming":
            return []
        return self._ask_or_lose(identity, hold)

    def on_moved(self, identity: ReferenceId, owner: NodeId) -> list[HoldEffect]:
        """Note that the value has another owner now, reported by that owner or by the one
        before.
        """
        hold = self.all.get(identity)
        if hold is None or hold.owner == owner or hold.failed:
            return []
        return self._claim(identity, hold, owner)

    def on_located(
        self, identity: ReferenceId, forwarder: NodeId, owner: NodeId
    ) -> list[HoldEffect]:
        """Note that `forwarder` still holds the value, at `owner`."""
        hold = self.all.get(identity)
        if (
            hold is None
            or hold.state != "asking"
            or not hold.forwarders
            or hold.forwarders[0].peer != forwarder
        ):
            return []
        if hold.owner == owner:
            hold.patience = min(max(FIRST_PATIENCE, 2 * hold.patience), MOST_PATIENCE)
            if hold.owner_died or hold.is_here:
                # The forwarder has not heard of that yet, and denies when it has; or the call is
                # still on its way.
                return [_ask(identity, hold, hold.patience)]
        return self._claim(identity, hold, owner)

    def on_failed(self, identity: ReferenceId) -> list[HoldEffect]:
        """Note that the call has failed, as its maker reports: no owner has the value."""
        hold = self.all.get(identity)
        if hold is None or hold.state in ("held", "lost"):
            return []
        hold.state = "lost"
        hold.failed = True
        self._settle(hold)
        self._check(hold)
        return [HoldSettled(identity)]

    def on_denied(self, identity: ReferenceId, forwarder: NodeId, number: int) -> list[HoldEffect]:
        """Note that `forwarder` did not hold the value when it was asked. If it has sent the
        reference again after the fork `number`, it holds it again.
        """
        hold = self.all.get(identity)
        return (
            self._drop_forwarder(identity, hold, forwarder, number)
            if hold is not None and hold.state == "asking"
            else []
        )

    def needed_for(self, identity: ReferenceId) -> tuple[NodeId, ...]:
        """The nodes on which the hold on a value depends: its owner and its forwarders."""
        hold = self.all.get(identity)
        if hold is None:
            return ()
        forwarders = [forwarder.peer for forwarder in hold.forwarders]
        return tuple(dict.fromkeys((hold.owner, *forwarders)))

    def on_node_ended(
        self, identity: ReferenceId, peer: NodeId, *, is_forwarded: bool = False
    ) -> list[HoldEffect]:
        """Note for one value that an incarnation has ended, as its owner and as a forwarder.
        `is_forwarded`: other nodes look for the value there.
        """
        hold = self.all.get(identity)
        if hold is None:
            return []
        effects: list[HoldEffect] = []
        is_asking = hold.state == "asking"
        # The call that makes a value may be made again, on another node. But once other nodes hold
        # the value at this owner, it is lost for them now, and so it is for all.
        owner_died = hold.owner == peer and (
            hold.state in ("claiming", "held", "asking")
            or (hold.state == "making" and is_forwarded)
        )
        if owner_died:
            hold.owner_died = True
        # The forwarders first: the value must not be asked for where that is in vain.
        if any(forwarder.peer == peer for forwarder in hold.forwarders):
            effects += self._drop_forwarder(identity, hold, peer)
        if owner_died and not is_asking:
            effects += self._ask_or_lose(identity, hold)
        return effects

    def on_dropped(self, identity: ReferenceId, version: int) -> list[HoldEffect]:
        """Note that the last reference is gone. Ignored for a version that is not the present one:
        a new reference exists since.
        """
        hold = self._current(identity, version)
        if hold is None:
            return []
        del self.all[identity]
        self._settle(hold)
        return [] if hold.owner_died or hold.is_here else [Release(hold.owner, identity, version)]

    def unsettled(self, forwarder: NodeId, numbers: Iterable[int]) -> list[int]:
        """Return those of the forwarder's forks `numbers` that are not settled here."""
        open_here = self._open.get(forwarder, ())
        return [number for number in numbers if number in open_here]

    def _current(self, identity: ReferenceId, version: int) -> BorrowedReference | None:
        hold = self.all.get(identity)
        return hold if hold is not None and hold.version == version else None

    def _claim(
        self, identity: ReferenceId, hold: BorrowedReference, owner: NodeId
    ) -> list[HoldEffect]:
        if owner != hold.owner:
            hold.patience = 0.0
            hold.owner_died = False
        hold.owner = owner
        hold.is_here = False
        hold.state = "claiming"
        self._check(hold)
        return [Claim(owner, identity, hold.version, hold.patience, again=True)]

    def _ask_or_lose(self, identity: ReferenceId, hold: BorrowedReference) -> list[HoldEffect]:
        if hold.forwarders:
            hold.state = "asking"
            self._check(hold)
            return [_ask(identity, hold)]
        hold.state = "lost"
        self._settle(hold)
        self._check(hold)
        return [HoldLost(identity, hold.owner, hold.owner_died)]

    def _drop_forwarder(
        self,
        identity: ReferenceId,
        hold: BorrowedReference,
        forwarder: NodeId,
        number: float = math.inf,
    ) -> list[HoldEffect]:
        first = hold.forwarders[0].peer if hold.forwarders else None
        gone = tuple(
            one for one in hold.forwarders if one.peer == forwarder and one.number <= number
        )
        # Only forks up to the one that was asked about: a later one says that the peer holds the
        # value again, and its denial is older than that.
        hold.forwarders = tuple(one for one in hold.forwarders if one not in gone)
        self._forget(gone)
        return (
            self._ask_or_lose(identity, hold)
            if hold.state == "asking" and first == forwarder
            else []
        )

    def _add_forwarder(self, hold: BorrowedReference, forwarder: Forwarder | None) -> None:
        if (
            forwarder is not None
            and forwarder.distance < hold.distance
            and forwarder not in hold.forwarders
        ):
            hold.forwarders += (forwarder,)
            self._open.setdefault(forwarder.peer, set()).add(forwarder.number)

    def check_invariants(self, expected: Iterable[Forwarder] = ()) -> None:
        """Assert what must hold between any two steps. Looks at every hold: for tests and
        simulations. `expected`: the forks that `on_expected` was not called for yet.
        """
        open_forks = {(forwarder.peer, forwarder.number) for forwarder in expected}
        for identity, hold in self.all.items():
            self._check(hold)
            for forwarder in hold.forwarders:
                assert forwarder.distance < hold.distance, f"{identity} may be held by a circle"
                open_forks.add((forwarder.peer, forwarder.number))
        assert open_forks == {
            (peer, number) for peer, numbers in self._open.items() for number in numbers
        }, "the open forks are those of the holds, and those that are expected"
        assert all(self._open.values()), "a node without open forks is not kept"

    def _check(self, hold: BorrowedReference) -> None:
        """Assert what is true of a hold after each event, whatever peers have said."""
        state = hold.state
        assert hold.forwarders or state != "asking", "no forwarder is left to ask"
        assert state in ("claiming", "asking") or not hold.forwarders, f"{state}, with forwarders"
        assert state in ("asking", "lost") or not hold.owner_died, f"{state}, with a dead owner"
        assert state in ("asking", "lost") or not hold.is_here, f"{state}, and its owner is here"
        assert state == "lost" or not hold.failed, f"{state}, although its call has failed"
        assert hold.patience <= MOST_PATIENCE, f"the next claim comes after {hold.patience} s"

    def _settle(self, hold: BorrowedReference) -> None:
        gone, hold.forwarders = hold.forwarders, ()
        self._forget(gone)

    def _forget(self, forwarders: Iterable[Forwarder]) -> None:
        for peer, number, _ in forwarders:
            # A peer that breaks the protocol may have used one number for two values. The first of
            # them has settled it then, and this node goes on.
            numbers = self._open.get(peer)
            if numbers is not None:
                numbers.discard(number)
                if not numbers:
                    del self._open[peer]


def _ask(identity: ReferenceId, hold: BorrowedReference, after: float = 0.0) -> Ask:
    peer = hold.forwarders[0].peer
    return Ask(
        peer, identity, max(one.number for one in hold.forwarders if one.peer == peer), after
    )


def _distance_from(forwarder: Forwarder | None) -> int:
    """Return the distance of a hold that begins with this forwarder: one more than the forwarder's.
    Without a forwarder only the nodes that know the value (distance 0) are nearer.
    """
    return forwarder.distance + 1 if forwarder is not None else 1


# Reference states: one node's knowledge of one referenced value, shared by all its `Reference`s to
# it.


class ReferenceState:
    """This node's knowledge of one referenced value. While this object lives, this node holds the
    value; when the garbage collector frees it, it appends a note to `finalized`.

    At the owner it has the value itself, so that values that only refer to each other, and to
    nothing outside, are collected together.
    """

    __slots__ = (
        "__weakref__",
        "_finalized",
        "attempt",
        "error",
        "failure",
        "held",
        "identity",
        "is_done",
        "is_failed",
        "is_forwarded",
        "is_open",
        "made",
        "maker",
        "owner_id",
        "shared",
        "site",
        "stored",
        "version",
    )

    def __init__(
        self,
        identity: ReferenceId,
        owner_id: NodeId,
        version: int,
        finalized: Finalized,
        made: float,
    ) -> None:
        self.identity = identity
        self.owner_id = owner_id
        """The owner of the value: node and incarnation."""
        self.version = version
        """The version of this node's hold; see `BorrowedReferences`."""
        self._finalized = finalized
        self.made = made
        """When this node first knew of the value, in seconds on its clock."""
        self.maker = ""
        """The method whose result it is, at the owner."""
        self.site = ""
        """File and line of the program that made it, if that is traced."""
        self.is_done = False
        """True once this node knows that there is an outcome, which it may have to fetch."""
        self.is_failed = False
        """True once its owner has said that the call which was to make it has failed."""
        self.is_open = False
        """True while its maker may repeat the call that makes the value: until then a failed
        attempt is not the outcome.
        """
        self.attempt: FailedValue | None = None
        """The failure of the latest attempt, at the owner, while `is_open`."""
        self.is_forwarded = False
        """True once it was put into a message: from then on other nodes look for the value at the
        owner that the message named.
        """
        self.stored: SizedValue | None = None
        """The value, at the owner."""
        self.held: object = None
        """The entry that counts this value against the quota of its client, until this object is
        freed.
        """
        self.shared: SharedValue | None = None
        """On other nodes: the memory of the value, if it can be read in place."""
        self.failure: FailedValue | None = None
        """The failure of the producing call, as far as this node knows."""
        self.error: Exception | None = None
        """Why this node cannot get the value; other nodes may be able to."""

    @property
    def owner(self) -> str:
        """Name of the node that keeps the value."""
        return self.owner_id[0]

    @property
    def has_failed(self) -> bool:
        """True if this node knows that it cannot get a value."""
        return self.is_failed or self.failure is not None or self.error is not None

    @property
    def is_settled(self) -> bool:
        """True if this node knows the outcome, or knows that it cannot get it."""
        return self.stored is not None or self.failure is not None or self.error is not None

    @property
    def size(self) -> int:
        """Bytes of the value at its owner, as far as they are there."""
        return self.stored.size if self.stored is not None else 0

    def __repr__(self) -> str:
        maker, incarnation, number = self.identity
        return f"<reference {maker}.{incarnation}.{number} owned by {self.owner}>"

    def __del__(self) -> None:
        # The garbage collector may call this in the middle of any statement: only a note is made.
        self._finalized.append(
            (self.identity, self.version, self.stored.size if self.stored is not None else 0)
        )


def state_of(reference: Reference[Any]) -> ReferenceState:
    """Return what this node knows of the value that `reference` names, at whichever door."""
    state = reference._state
    assert isinstance(state, ReferenceState), f"{state!r} is not a state of this runtime"
    return state


# The table of one node. Its events return the effects that the shell, `ReferenceManager`, is to
# carry out in their order.


@attrs.frozen
class HolderCounted:
    """`owner` counts this node as a holder already; see `UpdateBatch.on_counted`."""

    owner: NodeId
    identity: ReferenceId


@attrs.frozen
class Conclude:
    """Notify `owner` that the call which makes a value was given up."""

    owner: NodeId
    identity: ReferenceId
    failure: FailedValue


@attrs.frozen
class AskUnsettled:
    """Ask `peer` which forks are not settled there; see `ReferenceTable.forks_to_ask`."""

    peer: NodeId


@attrs.frozen
class ReferenceMade:
    """A new reference state exists, which may be dropped at any time."""


@attrs.frozen
class StateChanged:
    """Wake the tasks that wait for a change of this state."""

    state: ReferenceState


@attrs.frozen
class ReferenceDropped:
    """This node has no state for the value any more, so its fetched copy can be dropped."""

    identity: ReferenceId


@attrs.frozen
class ValueFreed:
    """A value of this node is free: no node holds it any more, or another node owns it now."""

    identity: ReferenceId
    size: int


@attrs.frozen
class ReaderEnded:
    """A node that held this value of this node has ended, or lost its lease."""

    state: ReferenceState
    reader: NodeId


@attrs.frozen
class NodeEnded:
    """An incarnation has ended: drop the updates for it, and unmap its memory."""

    peer: NodeId


Effect = (
    Claim
    | Release
    | Ask
    | HolderCounted
    | Conclude
    | AskUnsettled
    | ReferenceMade
    | StateChanged
    | ReferenceDropped
    | ValueFreed
    | ReaderEnded
    | NodeEnded
)


class ReferenceTable:
    """The references of one node: own values, held values and forks. Pure: it has no codec, no
    transport and no clock.

    `numbers` gives growing numbers, unique in this incarnation; `finalized` is the queue that the
    states of this table are noted in when they end: the shell gives its items to `on_dropped`.
    """

    def __init__(self, identity: NodeId, numbers: Callable[[], int], finalized: Finalized) -> None:
        self.identity = identity
        self._numbers = numbers
        self._finalized = finalized
        self._states: weakref.WeakValueDictionary[ReferenceId, ReferenceState] = (
            weakref.WeakValueDictionary()
        )
        self._claims: dict[ReferenceId, HolderSet] = {}
        self._early: dict[ReferenceId, HolderSet] = {}
        """Values that were released before the call that makes them arrived. A claim that was sent
        before the release may still arrive, after that call.
        """
        self._moved: dict[ReferenceId, NodeId] = {}
        """The new owners of values that this node has moved to other nodes on leaving."""
        self._takers: dict[ReferenceId, NodeId] = {}
        """The owners of values that this node is moving, as the new owner, or one that followed it,
        has reported.
        """
        self._givers: dict[ReferenceId, tuple[NodeId, ...]] = {}
        """The earlier owners of values that were moved to this node, the last one first."""
        self._given_values: list[object] = []
        self._borrowed = BorrowedReferences()
        self._arrivals: dict[ReferenceId, tuple[ReferenceState, Forwarder | None]] = {}
        """References that have arrived and have no hold yet: see `arrive`. The states are kept
        alive here, so that no hold begins after its state has ended.
        """
        self._forks: Forks[ReferenceState] = Forks()
        self._dead: dict[NodeId, None] = {}
        self._ended: set[NodeId] = set()
        """Nodes that have ended, which no pass of `note_ends` has begun to note."""
        self._ending: frozenset[NodeId] = frozenset()
        """Those of the present pass."""
        self._unnoted: deque[ReferenceId] = deque()
        """The values that the present pass has not come to."""

    def __len__(self) -> int:
        """How many own values other nodes or live references of this node hold."""
        return len(self._claims)

    @property
    def is_busy(self) -> bool:
        """True while references or forks exist whose end only the garbage collector reports."""
        return bool(self._states or len(self._forks))

    @property
    def held(self) -> int:
        """How many values this node has references to, plus the number of its open forks."""
        return len(self._states) + len(self._forks)

    @property
    def has_open_forks(self) -> bool:
        """True while the receiver of a forwarded reference may not be registered."""
        return len(self._forks) > 0

    def find(self, identity: ReferenceId) -> ReferenceState | None:
        """Return this node's state of a value, or None if it has no reference to it."""
        return self._states.get(identity)

    def hold_state(self, state: ReferenceState) -> str:
        """Return the state of this node's hold, a `HolderState`; "" at the owner."""
        hold = self._borrowed.all.get(state.identity)
        if hold is None and state.identity in self._arrivals and state.owner_id != self.identity:
            return "claiming"
        return hold.state if hold is not None else ""

    def owner(self, identity: ReferenceId) -> NodeId | None:
        """Return the owner of a value, if it is this node, or one to which this node has moved the
        value.
        """
        return (
            self.identity
            if identity in self._claims and identity in self._states
            else self._moved.get(identity)
        )

    def has_ended(self, peer: NodeId) -> bool:
        """True if this node knows that the incarnation has ended."""
        return peer in self._dead

    def _may_live_elsewhere(self, owner: NodeId) -> bool:
        """True for another node, unless this one knows that the incarnation has ended."""
        return owner != self.identity and owner not in self._dead

    def states(self) -> list[ReferenceState]:
        """All values that this node has references to."""
        return list(self._states.values())

    def own(self) -> list[ReferenceState]:
        """The values of this node."""
        return [state for state in list(self._states.values()) if state.identity in self._claims]

    def holders(self, state: ReferenceState) -> tuple[NodeId, ...]:
        """The other nodes that hold a value of this node."""
        claims = self._claims.get(state.identity)
        return claims.holders if claims is not None else ()

    @property
    def borrowed(self) -> int:
        """To how many values of other nodes this node has references. Less by those of its own
        values that it has let go of, until that was noted.
        """
        return max(0, len(self._states) - len(self._claims))

    def parts(self, size: int) -> Iterator[list[ReferenceState]]:
        """All values that this node has references to, so many at a time."""
        references = self._states.valuerefs()
        for start in range(0, len(references), size):
            some = (reference() for reference in references[start : start + size])
            yield [state for state in some if state is not None]

    # Events of this node's own actors and calls.

    def put(self, stored: SizedValue, site: str, now: float) -> tuple[ReferenceState, list[Effect]]:
        """Keep a value of this node; returns the state of its reference."""
        state = self._own(self._new_id(self._numbers()), "", now)
        state.stored = stored
        state.site = site
        self._check(state.identity)
        return state, [ReferenceMade()]

    def make(
        self, owner: NodeId, maker: str, site: str, now: float
    ) -> tuple[ReferenceState, list[Effect]]:
        """A call of the method `maker` goes to an actor of node `owner`, and its result will stay
        there.
        """
        number = self._numbers()
        identity = self._new_id(number)
        if owner == self.identity:
            state = self._own(identity, maker, now)
        else:
            state = self._make_state(identity, owner, number, now)
            self._borrowed.on_call_sent(identity, owner, number)
        state.site = site
        self._check(identity)
        return state, [ReferenceMade()]

    def redirect(self, state: ReferenceState, owner: NodeId) -> list[Effect]:
        """Note that the call that makes the value goes to node `owner`, perhaps again. Only while
        the reference was not forwarded.
        """
        assert not state.is_forwarded, f"{state!r} is expected at its owner by other nodes"
        effects: list[Effect] = []
        state.failure = None
        if owner == state.owner_id:
            return effects
        if state.owner_id == self.identity:
            self._claims.pop(state.identity, None)
        else:
            # Whether the earlier call ran may be unknown. If it ran, its result is not wanted.
            effects = self._resolve(self._borrowed.on_dropped(state.identity, state.version))
        state.owner_id = owner
        state.version = self._numbers()
        if owner == self.identity:
            self._claims[state.identity] = HolderSet()
        else:
            self._borrowed.on_call_sent(state.identity, owner, state.version)
        self._check(state.identity)
        return effects

    def on_call_ended(
        self, state: ReferenceState, failure: FailedValue | None, *, agreed: bool = False
    ) -> list[Effect]:
        """Note that the call that makes the value has ended, with a value or a `failure`. `agreed`:
        the owner has the same failure as the outcome.
        """
        effects = self.close(state, failure)
        state.is_done = True
        if failure is not None and not agreed and self._may_live_elsewhere(state.owner_id):
            # Whether the call ran there may be unknown here. What the owner has is the outcome for
            # all nodes.
            effects.append(Conclude(state.owner_id, state.identity, failure))
        effects += self._resolve(self._borrowed.on_call_answered(state.identity, state.version))
        if state.owner_id in self._dead:
            # The answer arrived before this event, and is handled only now.
            effects += self._resolve(self._borrowed.on_node_ended(state.identity, state.owner_id))
        effects.append(StateChanged(state))
        assert state.attempt is None, f"{state!r} has an attempt that is open"
        assert not state.is_open, f"{state!r} may have another attempt"
        return effects

    def on_result(self, state: ReferenceState, outcome: SizedValue | FailedValue) -> list[Effect]:
        """Record the outcome of a value of this node. Only for a value that is not settled."""
        assert not state.is_settled, f"{state!r} has two outcomes"
        if isinstance(outcome, FailedValue):
            state.failure = outcome
        else:
            state.stored = outcome
        self._check(state.identity)
        return [StateChanged(state)]

    def on_spilled(self, state: ReferenceState, on_disk: OnDisk) -> None:
        """Record that a value of this node was written to disk."""
        assert state.stored is not None, f"{state!r} was written to disk, and has no value"
        assert state.stored.size == on_disk.size, f"{state!r} has another size on disk"
        state.stored = on_disk

    def on_attempt_failed(self, state: ReferenceState, failure: FailedValue) -> list[Effect]:
        """Note that an attempt at the call that makes the value has failed: this is the outcome if
        there is no further attempt.
        """
        state.attempt = failure
        return [] if state.is_open else self.close(state)

    def close(self, state: ReferenceState, failure: FailedValue | None = None) -> list[Effect]:
        """Note that there will be no further attempt. If there is no outcome yet, it becomes
        `failure`, or the failure of the last attempt.
        """
        failure, state.attempt, state.is_open = failure or state.attempt, None, False
        if failure is None or state.is_settled:
            return []
        state.failure = failure
        return [StateChanged(state)]

    def on_failure_fetched(self, state: ReferenceState, failure: FailedValue) -> list[Effect]:
        """Record that the call which makes the value has failed, as the owner has answered."""
        state.failure = failure
        return [StateChanged(state)]

    def on_outcome_known(self, state: ReferenceState) -> list[Effect]:
        """Record that there is an outcome, as the owner has answered."""
        state.is_done = True
        return [StateChanged(state)]

    # Events from other nodes.

    def begin(
        self, identity: ReferenceId, holder: NodeId, version: int, maker: str, now: float
    ) -> tuple[ReferenceState, list[Effect]]:
        """Note that a call of another node has arrived whose result stays here. A repeat of the
        call gets the same state.
        """
        effects: list[Effect] = []
        state = self._states.get(identity)
        if state is None or state.owner_id != self.identity:
            state = self._own(identity, maker, now)
            state.is_open = holder not in self._dead
            effects = [ReferenceMade()]
        elif identity not in self._claims:
            # The reference arrived before the call, and waits for the value.
            self._claims[identity] = self._early.pop(identity, HolderSet())
            state.maker, state.error = maker, None
            state.is_open = holder not in self._dead
            effects = self._resolve(self._borrowed.on_call_arrived(identity))
        self.claim(identity, holder, version)
        return state, effects

    def conclude(
        self, identity: ReferenceId, failure: FailedValue
    ) -> tuple[NodeId | FailedValue | bool | None, list[Effect]]:
        """Record that the maker of a value of this node has given up the call, with that failure.

        Returns the outcome that counts: a failure, or True for a value; the owner if this node has
        moved the value; None if this node does not know it.
        """
        state = self._states.get(identity)
        if state is None or identity not in self._claims:
            return self._moved.get(identity), []
        effects = self.close(state, failure)
        return state.failure or True, effects

    def on_conclusion_answered(
        self,
        identity: ReferenceId,
        failure: FailedValue,
        answer: NodeId | FailedValue | bool | None,
    ) -> list[Effect]:
        """Record what the owner answered to a conclusion."""
        state = self._states.get(identity)
        if isinstance(answer, tuple):
            effects = self.on_moved(identity, answer)
            if self._may_live_elsewhere(answer):
                effects.append(Conclude(answer, identity, failure))
            return effects
        if state is None or state.owner_id == self.identity or answer is None:
            return []
        state.failure = answer if isinstance(answer, FailedValue) else None
        return [StateChanged(state)]

    def claim(self, identity: ReferenceId, holder: NodeId, version: int) -> NodeId | None:
        """Apply a claim of `holder`. Returns the owner of the value: this node, or the one it was
        moved to; None if this node does not know the value.
        """
        state = self._states.get(identity)
        claims = self._claims.get(identity)
        if state is None or claims is None or holder in self._dead:
            return self._moved.get(identity)
        # A claim of an incarnation that has ended was refused above: no release would follow it.
        claims.claim(holder, version)
        if claims.held:
            claims.kept_alive = state
        self._check(identity)
        return self.identity

    def release(self, identity: ReferenceId, holder: NodeId, version: int) -> NodeId | None:
        """Apply a release of `holder`. Returns the owner like `claim`."""
        claims = self._claims.get(identity)
        if claims is None:
            if identity not in self._moved:
                self._early.setdefault(identity, HolderSet()).release(holder, version)
                if len(self._early) > MOST_EARLY:
                    del self._early[next(iter(self._early))]
            return self._moved.get(identity)
        claims.release(holder, version)
        claims.settle()
        self._check(identity)
        return self.identity

    def on_claim_answered(
        self, identity: ReferenceId, version: int, owner: NodeId, answer: NodeId | None
    ) -> list[Effect]:
        """Record the answer of `owner` to a claim of this node: it has the value, knows the owner,
        or does not know the value.
        """
        if answer == owner:
            return self._resolve(self._borrowed.on_confirmed(identity, version, owner))
        if answer is not None:
            return self.on_moved(identity, answer)
        return self._resolve(self._borrowed.on_unknown(identity, version, owner))

    def on_moved(self, identity: ReferenceId, owner: NodeId) -> list[Effect]:
        """Record that a value has another owner."""
        # First, or the hold would begin at the owner before this one.
        effects = self.record_arrival(identity)
        state = self._states.get(identity)
        if state is None:
            return effects
        if identity in self._claims and self._may_live_elsewhere(owner):
            # This node is moving the value, and the answer has not arrived.
            self._takers[identity] = owner
        elif owner != self.identity:
            effects += self._resolve(self._borrowed.on_moved(identity, owner))
            effects.append(HolderCounted(owner, identity))
        effects.append(StateChanged(state))
        self._check(identity)
        return effects

    def adopt(
        self,
        identity: ReferenceId,
        registers: list[tuple[str, int, int]],
        maker: str,
        site: str,
        now: float,
    ) -> tuple[ReferenceState, list[Effect]]:
        """Make this node the owner of a value, with the registers of its holders. May be called
        again for the same value.
        """
        effects: list[Effect] = []
        state = self._states.get(identity)
        if state is None or identity not in self._claims:
            if state is None:
                state = self._make_state(identity, self.identity, 0, now)
                effects = [ReferenceMade()]
            # This node's hold on it ends, because it is the owner from now on.
            self._borrowed.on_dropped(identity, state.version)
            state.owner_id, state.shared = self.identity, None
            # All that this node knew of the value, the old owner knew too.
            state.error = state.failure = None
            state.maker, state.site = maker, site
        # Releases that came before the value count: their claims were sent earlier, and may still
        # come.
        claims = self._claims.setdefault(identity, self._early.pop(identity, HolderSet()))
        for name, incarnation, version in registers:
            holder = NodeId(name, incarnation)
            if holder != self.identity and holder not in self._dead:
                (claims.claim if version > 0 else claims.release)(holder, abs(version))
        claims.kept_alive = state if claims.held else None
        self._check(identity)
        return state, effects

    def registers(self, identity: ReferenceId) -> list[tuple[str, int, int]]:
        """Return the registers of a value of this node, for the next owner."""
        claims = self._claims.get(identity)
        return claims.versions() if claims is not None else []

    def on_given(self, state: ReferenceState, owner: NodeId) -> list[Effect]:
        """Note that `owner` owns a value of this node from now on."""
        identity = state.identity
        assert owner != self.identity, f"{state!r} was given to its own node"
        # A process that reads the value in place may do so for as long as this process lives, so
        # its memory must not be reused.
        self._given_values.append(state.stored)
        self._moved[identity] = owner
        self._claims.pop(identity, None)
        freed = ValueFreed(identity, state.size)
        state.stored = None
        # A new version: the holder set of the next owner has none of this node, so an old update
        # that arrives there late must not count as one.
        state.owner_id, state.version = owner, self._numbers()
        assert identity not in self._claims, f"{state!r} was given, and is owned"
        return [freed, StateChanged(state)]

    def taker(self, identity: ReferenceId) -> NodeId | None:
        """Return the owner of a value that this node is moving, as far as it has been reported and
        has not ended.
        """
        taker = self._takers.get(identity)
        return taker if taker not in self._dead else None

    def on_given_by(self, identity: ReferenceId, givers: Sequence[NodeId]) -> tuple[NodeId, ...]:
        """Return those of `givers` that the first one does not answer for.

        The first has given a value to this node, and got it from the others. These may have offered
        the value to a node that has ended since, so they must learn who owns it.
        """
        known = dict.fromkeys((*givers, *self._givers.get(identity, ())))
        self._givers[identity] = tuple(
            giver for giver in known if giver != self.identity and giver not in self._dead
        )
        assert self.identity not in self._givers[identity], f"{identity} was given by its taker"
        return tuple(giver for giver in self._givers[identity] if giver not in givers[:1])

    def givers(self, identity: ReferenceId) -> tuple[NodeId, ...]:
        """Return the earlier owners of a value that are still alive."""
        return tuple(giver for giver in self._givers.get(identity, ()) if giver not in self._dead)

    def given_to(self, identity: ReferenceId) -> NodeId | None:
        """Return the owner of a value that this node has moved."""
        return self._moved.get(identity)

    def where(self, identity: ReferenceId) -> NodeId | FailedValue | None:
        """Return the answer for a node that got the reference from this one: the value's owner, the
        failure, or None if this node does not hold it.
        """
        state = self._states.get(identity)
        hold = self._borrowed.all.get(identity)
        if state is None:
            return self._moved.get(identity)
        if state.failure is not None:
            return state.failure
        if state.error is not None or (hold is not None and hold.state == "lost"):
            return None
        return state.owner_id

    def on_where_answered(
        self,
        identity: ReferenceId,
        forwarder: NodeId,
        number: int,
        answer: NodeId | FailedValue | None,
    ) -> list[Effect]:
        """Record the answer of `forwarder` to the question where a value is. `number`: as in the
        question.
        """
        state = self._states.get(identity)
        if isinstance(answer, FailedValue):
            effects = self._borrowed.on_failed(identity)
            if effects and state is not None and state.failure is None:
                state.failure = answer
            return self._resolve(effects)
        if answer is None:
            return self._resolve(self._borrowed.on_denied(identity, forwarder, number))
        return self._resolve(self._borrowed.on_located(identity, forwarder, answer))

    def unsettled(self, forwarder: NodeId, numbers: Iterable[int]) -> list[int]:
        """Return those of the forwarder's forks `numbers` that are not settled here."""
        return self._borrowed.unsettled(forwarder, numbers)

    def forks_to_ask(self, peer: NodeId, most: int) -> list[int]:
        """Return forks to ask `peer` about; see `Forks.ask`."""
        return self._forks.ask(peer, most)

    def on_unsettled_answered(self, numbers: Collection[int], unsettled: Collection[int]) -> None:
        """Apply the answer to the question about forks."""
        self._forks.on_answered(numbers, unsettled)

    def on_node_ended(self, peer: NodeId) -> list[Effect]:
        """Note that an incarnation has ended: it holds, owns and registers nothing any more.

        For the values, call `note_ends` until `has_ends` is false.
        """
        # First: the effects below may lead to claims of this very peer, which must find it dead.
        self._dead[peer] = None
        if len(self._dead) > MOST_DEAD:
            del self._dead[next(iter(self._dead))]
        self._forks.on_node_ended(peer)
        self._ended.add(peer)
        assert len(self._dead) <= MOST_DEAD, "more ended nodes are remembered than may be"
        return [NodeEnded(peer)]

    @property
    def has_ends(self) -> bool:
        """True while `note_ends` has something to do."""
        return bool(self._ended or self._unnoted)

    def note_ends(self, most: int) -> list[Effect]:
        """Note for up to `most` values that nodes have ended. There may be a million values, and
        other tasks have their turns between two calls.
        """
        effects: list[Effect] = []
        while most > 0 and self.has_ends:
            if not self._unnoted:
                # All that have ended by now, in one pass. For values that come after this, and for
                # events until the pass is over, `_dead` tells.
                self._ending, self._ended = frozenset(self._ended), set()
                self._unnoted.extend(self._claims)
                self._unnoted.extend(self._borrowed.all)
            for _ in range(min(most, len(self._unnoted))):
                effects += self._note_ends_for(self._unnoted.popleft())
                most -= 1
        return effects

    def _note_ends_for(self, identity: ReferenceId) -> list[Effect]:
        """Note for one value that nodes have ended: its holders, or its owner and forwarders."""
        effects: list[Effect] = []
        claims = self._claims.get(identity)
        if claims is None:
            state = self._states.get(identity)
            is_forwarded = state is not None and state.is_forwarded
            for peer in self._borrowed.needed_for(identity):
                if peer in self._ending:
                    effects += self._resolve(
                        self._borrowed.on_node_ended(identity, peer, is_forwarded=is_forwarded)
                    )
            return effects
        maker = NodeId(*identity[:2])
        if maker in self._ending and (state := self._states.get(identity)) is not None:
            # Its call is not made again.
            effects = self.close(state)
        for peer in claims.known:
            if peer in self._ending and claims.on_node_ended(peer):
                effects.append(ReaderEnded(cast("ReferenceState", claims.kept_alive), peer))
                claims.settle()
        return effects

    # Events from the garbage collector.

    def on_landed(self, number: int) -> None:
        """Note that the message of a fork will not be sent any more."""
        self._forks.on_landed(number)

    def on_dropped(self, identity: ReferenceId, version: int, size: int) -> list[Effect]:
        """Note that a reference state has ended; a new one for the same value may exist since.
        `size`: see `Finalized`.
        """
        effects = self._resolve(self._borrowed.on_dropped(identity, version))
        if identity not in self._states:
            effects.append(ReferenceDropped(identity))
            if identity in self._claims:
                assert self._claims[identity].kept_alive is None, f"{identity} is freed while held"
                del self._claims[identity]
                self._givers.pop(identity, None)
                self._takers.pop(identity, None)
                effects.append(ValueFreed(identity, size))
        return effects

    def forks_due(self) -> list[Effect]:
        """Ask the receivers of messages that have landed whether their forks are settled."""
        effects: list[Effect] = []
        for peer in self._forks.due():
            if peer in self._dead:
                self._forks.on_node_ended(peer)
            else:
                effects.append(AskUnsettled(peer))
        return effects

    # References in messages.

    def forward(self, state: ReferenceState, peer: NodeId) -> tuple[int, int]:
        """Record that a reference is put into a message to `peer`: a fork. Returns its number, and
        the distance of this node's hold.
        """
        number = self._forks.add(state, peer)
        state.is_forwarded = True
        arrival = self._arrivals.get(state.identity)
        if arrival is not None:
            # The distance that its hold will have, which begins later.
            return number, _distance_from(arrival[1])
        return number, self._borrowed.distance(state.identity)

    @property
    def arrivals(self) -> int:
        """How many references wait for `record_arrivals`."""
        return len(self._arrivals)

    def is_counted(self, identity: ReferenceId) -> bool:
        """True if this node owns the value, or owned it and has not handled its end yet."""
        return identity in self._claims

    def arrive(
        self,
        identity: ReferenceId,
        owner_id: NodeId,
        forwarder: Forwarder | None,
        shared: SharedValue | None,
        now: float,
    ) -> tuple[ReferenceState, list[Effect]]:
        """Note that a reference arrived in a message, or was copied on this node (no `forwarder`).
        `shared`: where its value can be read in place.

        If this node had no reference to the value, its hold begins only with `record_arrival`,
        which the shell calls soon. A message may have hundreds of thousands of references, and all
        of them are read in one step of the event loop, but need not be recorded in one. Until then
        the fork counts as not settled here, so that the sender keeps its own hold. The value must
        not be counted here any more (`is_counted`) if there is no state of it.
        """
        state = self._states.get(identity)
        if state is not None:
            return state, self._arrive_again(state, owner_id, forwarder, shared)
        assert identity not in self._claims, f"{identity} is owned, and was dropped"
        effects: list[Effect] = []
        old = self._borrowed.all.get(identity)
        if old is not None:
            # The state before this one has ended, and the garbage collector's note of it is not
            # handled yet. Its hold ends now: one that goes on would end with that note.
            effects = self._resolve(self._borrowed.on_dropped(identity, old.version))
        # This node may have given the value away after the message was written: then the message
        # names an owner before the present one.
        here = self._moved.get(identity, owner_id)
        state = self._make_state(identity, here, self._numbers(), now)
        self._arrivals[identity] = state, forwarder
        if forwarder is not None:
            self._borrowed.expect(forwarder)
        if shared is not None and here == owner_id != self.identity:
            state.shared, state.is_done = shared, True
        return state, effects

    def _arrive_again(
        self,
        state: ReferenceState,
        owner_id: NodeId,
        forwarder: Forwarder | None,
        shared: SharedValue | None,
    ) -> list[Effect]:
        """Record that another reference to a value arrived that this node knows."""
        identity = state.identity
        effects: list[Effect] = []
        if identity in self._arrivals:
            if forwarder is None:
                # A copy: the hold that will begin is for this reference, too.
                return effects
            effects = self.record_arrival(identity)
        arrived: list[HoldEffect] = []
        if state.owner_id == self.identity:
            if identity not in self._claims:
                arrived = self._borrowed.on_arrived_at_owner(
                    identity, self.identity, state.version, forwarder
                )
        elif owner_id != self.identity:
            arrived = self._borrowed.on_arrived(identity, owner_id, state.version, forwarder)
        if arrived:
            effects += self._resolve(arrived)
        if shared is not None and state.owner_id == owner_id != self.identity:
            state.shared, state.is_done = shared, True
        self._check(identity)
        return effects

    def record_arrivals(self, most: int) -> list[Effect]:
        """Record the first `most` of the references that have arrived."""
        effects: list[Effect] = []
        for identity in list(itertools.islice(self._arrivals, most)):
            effects += self.record_arrival(identity)
        return effects

    def record_arrival(self, identity: ReferenceId) -> list[Effect]:
        """Begin the hold on a value whose reference has arrived, if it has not begun yet."""
        arrival = self._arrivals.pop(identity, None)
        if arrival is None:
            return []
        state, forwarder = arrival
        arrived: list[HoldEffect] = []
        # By now this node may own the value, or have got the call that makes it.
        if self._states.get(identity) is state and identity not in self._claims:
            on_arrived = (
                self._borrowed.on_arrived_at_owner
                if state.owner_id == self.identity
                else self._borrowed.on_arrived
            )
            arrived = on_arrived(identity, state.owner_id, state.version, forwarder)
        if forwarder is not None:
            self._borrowed.on_expected(identity, forwarder)
        effects = self._resolve(arrived)
        self._check(identity)
        return effects

    def _new_id(self, number: int) -> ReferenceId:
        return self.identity.name, self.identity.incarnation, number

    def _own(self, identity: ReferenceId, maker: str, now: float) -> ReferenceState:
        state = self._make_state(identity, self.identity, 0, now)
        state.maker = maker
        self._claims[identity] = self._early.pop(identity, HolderSet())
        return state

    def _make_state(
        self, identity: ReferenceId, owner_id: NodeId, version: int, now: float
    ) -> ReferenceState:
        state = self._states[identity] = ReferenceState(
            identity, owner_id, version, self._finalized, now
        )
        return state

    def _resolve(self, effects: list[HoldEffect]) -> list[Effect]:
        """Apply effects of `BorrowedReferences` to the states; return those for the shell."""
        if not effects:
            return []
        resolved: list[Effect] = []
        left = deque(effects)
        while left:
            effect = left.popleft()
            state = self._states.get(effect.identity)
            if isinstance(effect, HoldSettled | HoldLost):
                if state is not None:
                    if isinstance(effect, HoldLost) and state.error is None:
                        state.error = _loss(effect)
                    resolved.append(StateChanged(state))
                continue
            peer = effect.forwarder if isinstance(effect, Ask) else effect.owner
            if state is not None and not isinstance(effect, Release):
                # A peer may know the value again, so an earlier error is withdrawn.
                state.error = None
                if isinstance(effect, Claim) and state.owner_id != peer:
                    state.owner_id, state.shared = peer, None
            if peer in self._dead:
                # That node has ended already. Handle that before the other effects, for this value
                # only: there may be a million. This loop ends, because the hold moves to another
                # peer or is lost.
                left.extendleft(reversed(self._borrowed.on_node_ended(effect.identity, peer)))
            else:
                resolved.append(effect)
        return resolved

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. Looks at every value: for tests and
        simulations.
        """
        self._borrowed.check_invariants(
            forwarder for _, forwarder in self._arrivals.values() if forwarder is not None
        )
        self._forks.check_invariants()
        for identity in self._arrivals:
            assert identity not in self._borrowed.all, f"{identity} is held, and is to be recorded"
        for identity in self._claims:
            self._check(identity)
            assert identity not in self._early, f"{identity} is here, and released before it came"
        for identity, state in list(self._states.items()):
            assert state.identity == identity
            assert state.stored is None or identity in self._claims, f"{state!r} has a value"
            assert identity not in self._claims or state.owner_id == self.identity
            hold = self._borrowed.all.get(identity)
            # A hold of another version is that of a state that has ended, and is dropped soon.
            if hold is not None and hold.version == state.version:
                assert identity not in self._claims, f"{state!r} is owned and borrowed"
                assert hold.owner == state.owner_id, f"{state!r} is borrowed from {hold.owner}"
                assert hold.is_here == (state.owner_id == self.identity)

    def _check(self, identity: ReferenceId) -> None:
        """Assert what is true of one value after each event, whatever peers have said."""
        claims = self._claims.get(identity)
        if claims is not None:
            kept_alive = claims.kept_alive
            assert kept_alive is not None or not claims.held, f"{identity} may be freed while held"
            if kept_alive is not None:
                assert kept_alive is self._states.get(identity), f"{identity} has two states"
        assert len(self._early) <= MOST_EARLY, "more early releases are remembered than may be"


def _loss(effect: HoldLost) -> Exception:
    """Return the error for a value that was lost with its owner, or that its owner has released."""
    maker, _, number = effect.identity
    value = f"the value that {maker} made as number {number}"
    name, incarnation = effect.owner
    if effect.owner_died:
        return OwnerDiedError(
            f"{value} was lost with its owner, node {name} (incarnation {incarnation}); "
            "make it again"
        )
    return ReferenceReleasedError(
        f"{value} was freed by its owner, node {name}: the process that handed "
        "the reference on ended, or released it, before this "
        "node was registered as a holder"
    )
