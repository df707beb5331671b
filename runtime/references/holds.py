"""Holds: the values of other nodes that this node holds. The holder's side of the protocol.

No I/O and no clock: what happens goes in, what is to be said to whom comes out. A hold begins with a call of this node whose result stays
elsewhere, or with a reference in a message that was received; it ends when the last reference is dropped.

    making    the call was handed to the owner, and is not answered: nobody else can know whether the owner has heard of it
    claiming  the owner is being told
    asking    the owner did not know the value, or has ended: whoever handed the reference on may know where it is
    held      the owner knows
    lost      there is nothing to hold

Those that handed the reference on are its sponsors: as long as it is not settled here, they keep their own hold. A claim may overtake the
call that makes the value, on another link, so an owner that knows nothing is not believed while a sponsor says that it has the value. The
reference itself may overtake that call on its way to the owner, who then waits in the same way (`awaited`).

Two nodes that hand a reference to each other must not each believe in it because the other does. So each hold has a distance from those
that know (0), and only who is nearer may be its sponsor. The distance of a hold never grows, and it lives for as long as anybody whose
sponsor it is: what holds up what is a tree, as that of the forks of an RRef is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

import attrs

from runtime.references.claims import Identity, ReferenceId

State = Literal["making", "claiming", "asking", "held", "lost"]

FIRST_PATIENCE = 0.002
MOST_PATIENCE = 0.25
"""Seconds between two claims with an owner that does not know the value, though a sponsor says that it has: more each time."""


class Sponsor(NamedTuple):
    """Who handed a reference on, the number under which that is remembered there, and how far its own hold was from those that know."""

    peer: Identity
    number: int
    distance: int = 0


@attrs.frozen
class Claim:
    """Tell `owner`, in `after` seconds, that this node holds the value; then `Holds.confirmed` or `Holds.unknown`.

    `again`: somebody was told of this hold before, so this owner may know of it already.
    """

    owner: Identity
    identity: ReferenceId
    version: int
    after: float = 0.0
    again: bool = False


@attrs.frozen
class Release:
    """Tell `owner` that this node does not hold it any more."""

    owner: Identity
    identity: ReferenceId
    version: int


@attrs.frozen
class Ask:
    """Ask `sponsor`, in `after` seconds, where the value is; then `Holds.told`, `Holds.failed` or `Holds.denied`. `number` is the last of
    its hand-overs that were known here.
    """

    sponsor: Identity
    identity: ReferenceId
    number: int
    after: float = 0.0


@attrs.frozen
class Settled:
    """It is known what becomes of the hold: the owner knows of it, or there never will be a value."""

    identity: ReferenceId


@attrs.frozen
class Lost:
    """There is nothing to hold. `owner_died`: because of that, and not because it was let go of by all others."""

    identity: ReferenceId
    owner: Identity
    owner_died: bool


Effect = Claim | Release | Ask | Settled | Lost


class Hold:
    """One value of another node."""

    __slots__ = ("distance", "failed", "is_here", "owner", "owner_died", "patience", "sponsors", "state", "version")

    def __init__(self, owner: Identity, version: int, state: State, distance: int = 0) -> None:
        self.owner = owner
        self.version = version
        self.state: State = state
        self.sponsors: tuple[Sponsor, ...] = ()
        self.failed = False
        self.patience = 0.0
        self.owner_died = False
        self.distance = distance
        self.is_here = False
        """True if the owner is this node, and has not heard of the call that makes the value."""


class Holds:
    """All of one node. Events return what is to be done."""

    def __init__(self) -> None:
        self.all: dict[ReferenceId, Hold] = {}
        self._open: dict[Identity, set[int]] = {}
        """By sponsor: its hand-overs that are not settled here."""

    def made(self, identity: ReferenceId, owner: Identity, version: int) -> None:
        """A call was handed to `owner`, which keeps its result, and knows this node as its holder in `version`."""
        self.all[identity] = Hold(owner, version, "making")

    def answered(self, identity: ReferenceId, version: int) -> list[Effect]:
        """The owner has answered that call, whatever the answer."""
        hold = self._current(identity, version)
        if hold is None or hold.state != "making":
            return []
        hold.state = "held"
        return [Settled(identity)]

    def arrived(self, identity: ReferenceId, owner: Identity, version: int, sponsor: Sponsor | None) -> list[Effect]:
        """A reference came in a message. `version` counts if there was no hold yet. Without a sponsor the sender keeps it in other ways."""
        hold = self.all.get(identity)
        if hold is None:
            hold = self.all[identity] = Hold(owner, version, "claiming", _beyond(sponsor))
            self._sponsored(hold, sponsor)
            return [Claim(owner, identity, version)]
        if hold.state in ("claiming", "asking"):
            self._sponsored(hold, sponsor)
        elif hold.state == "lost" and not hold.failed and not hold.is_here and (owner != hold.owner or not hold.owner_died):
            # Whoever sent it has it still, perhaps with an owner that this node has not heard of.
            self._sponsored(hold, sponsor)
            return self._claim(identity, hold, owner)
        return []

    def awaited(self, identity: ReferenceId, owner: Identity, version: int, sponsor: Sponsor | None) -> list[Effect]:
        """A reference came to the `owner` itself, which knows nothing of the value: its call may be on its way; then `begun`."""
        hold = self.all.get(identity)
        if hold is None:
            hold = self.all[identity] = Hold(owner, version, "lost", _beyond(sponsor))
            hold.is_here = True
        elif not hold.is_here or hold.failed:
            return []
        self._sponsored(hold, sponsor)
        return self._ask_or_lose(identity, hold) if hold.state == "lost" else []

    def begun(self, identity: ReferenceId) -> list[Effect]:
        """The call that makes an awaited value has arrived: from now on its claims are what counts."""
        hold = self.all.get(identity)
        if hold is None or not hold.is_here:
            return []
        del self.all[identity]
        self._settle(hold)
        return [Settled(identity)]

    def distance(self, identity: ReferenceId) -> int:
        """How far this node is from those that know of the value; see the module."""
        hold = self.all.get(identity)
        return hold.distance if hold is not None else 0

    def confirmed(self, identity: ReferenceId, version: int, owner: Identity) -> list[Effect]:
        """`owner` knows of the claim."""
        hold = self._current(identity, version)
        if hold is None or hold.owner != owner or hold.owner_died or hold.state not in ("claiming", "asking"):
            return []
        hold.state = "held"
        hold.patience = 0.0
        hold.distance = 0
        self._settle(hold)
        return [Settled(identity)]

    def unknown(self, identity: ReferenceId, version: int, owner: Identity) -> list[Effect]:
        """`owner` knows nothing of the value that was claimed."""
        hold = self._current(identity, version)
        if hold is None or hold.owner != owner or hold.state != "claiming":
            return []
        return self._ask_or_lose(identity, hold)

    def moved(self, identity: ReferenceId, owner: Identity) -> list[Effect]:
        """The value has another owner now, which says so itself or was named by the one before."""
        hold = self.all.get(identity)
        if hold is None or hold.owner == owner or hold.failed:
            return []
        return self._claim(identity, hold, owner)

    def told(self, identity: ReferenceId, sponsor: Identity, owner: Identity) -> list[Effect]:
        """`sponsor` has the value still, at `owner`."""
        hold = self.all.get(identity)
        if hold is None or hold.state != "asking" or not hold.sponsors or hold.sponsors[0].peer != sponsor:
            return []
        if hold.owner == owner:
            hold.patience = min(max(FIRST_PATIENCE, 2 * hold.patience), MOST_PATIENCE)
            if hold.owner_died or hold.is_here:
                # The sponsor has not heard of that yet, and denies when it has; or the call is still on its way.
                return [_ask(identity, hold, hold.patience)]
        return self._claim(identity, hold, owner)

    def failed(self, identity: ReferenceId) -> list[Effect]:
        """Whoever made the reference says that its call has failed, and that no owner has anything of it."""
        hold = self.all.get(identity)
        if hold is None or hold.state in ("held", "lost"):
            return []
        hold.state = "lost"
        hold.failed = True
        self._settle(hold)
        return [Settled(identity)]

    def denied(self, identity: ReferenceId, sponsor: Identity, number: int) -> list[Effect]:
        """`sponsor` did not hold the value when it was asked. If it has handed it on once more after the one of that `number`, it has it
        again.
        """
        hold = self.all.get(identity)
        return self._without(identity, hold, sponsor, number) if hold is not None and hold.state == "asking" else []

    def died(self, peer: Identity) -> list[Effect]:
        """That incarnation is no more, as an owner and as a sponsor."""
        effects: list[Effect] = []
        for identity, hold in self.all.items():
            if hold.owner == peer and hold.state in ("claiming", "held", "asking"):
                hold.owner_died = True
                if hold.state != "asking":
                    effects += self._ask_or_lose(identity, hold)
            if any(sponsor.peer == peer for sponsor in hold.sponsors):
                effects += self._without(identity, hold, peer)
        return effects

    def dropped(self, identity: ReferenceId, version: int) -> list[Effect]:
        """The last reference is gone. A version that is not the present one says nothing: there is a new reference since."""
        hold = self._current(identity, version)
        if hold is None:
            return []
        del self.all[identity]
        self._settle(hold)
        return [] if hold.owner_died or hold.is_here else [Release(hold.owner, identity, version)]

    def unsettled(self, sponsor: Identity, numbers: Iterable[int]) -> list[int]:
        """Which of the hand-overs of `sponsor` are not settled here."""
        open_here = self._open.get(sponsor, ())
        return [number for number in numbers if number in open_here]

    def _current(self, identity: ReferenceId, version: int) -> Hold | None:
        hold = self.all.get(identity)
        return hold if hold is not None and hold.version == version else None

    def _claim(self, identity: ReferenceId, hold: Hold, owner: Identity) -> list[Effect]:
        if owner != hold.owner:
            hold.patience = 0.0
            hold.owner_died = False
        hold.owner = owner
        hold.is_here = False
        hold.state = "claiming"
        return [Claim(owner, identity, hold.version, hold.patience, again=True)]

    def _ask_or_lose(self, identity: ReferenceId, hold: Hold) -> list[Effect]:
        if hold.sponsors:
            hold.state = "asking"
            return [_ask(identity, hold)]
        hold.state = "lost"
        self._settle(hold)
        return [Lost(identity, hold.owner, hold.owner_died)]

    def _without(self, identity: ReferenceId, hold: Hold, sponsor: Identity, number: float = math.inf) -> list[Effect]:
        first = hold.sponsors[0].peer if hold.sponsors else None
        gone = tuple(one for one in hold.sponsors if one.peer == sponsor and one.number <= number)
        hold.sponsors = tuple(one for one in hold.sponsors if one not in gone)
        self._forget(gone)
        return self._ask_or_lose(identity, hold) if hold.state == "asking" and first == sponsor else []

    def _sponsored(self, hold: Hold, sponsor: Sponsor | None) -> None:
        if sponsor is not None and sponsor.distance < hold.distance and sponsor not in hold.sponsors:
            hold.sponsors += (sponsor,)
            self._open.setdefault(sponsor.peer, set()).add(sponsor.number)

    def _settle(self, hold: Hold) -> None:
        gone, hold.sponsors = hold.sponsors, ()
        self._forget(gone)

    def _forget(self, sponsors: Iterable[Sponsor]) -> None:
        for peer, number, _ in sponsors:
            numbers = self._open[peer]
            numbers.discard(number)
            if not numbers:
                del self._open[peer]


def _ask(identity: ReferenceId, hold: Hold, after: float = 0.0) -> Ask:
    peer = hold.sponsors[0].peer
    return Ask(peer, identity, max(one.number for one in hold.sponsors if one.peer == peer), after)


def _beyond(sponsor: Sponsor | None) -> int:
    """The distance of a hold that begins with it. Without one, nobody is nearer but those that know."""
    return sponsor.distance + 1 if sponsor is not None else 1
