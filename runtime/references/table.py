"""The table of references of one node: the values that it owns, those of others that it holds, and what it has handed on.

It puts the machines together (`claims`, `holds`, `hand_overs`) and ties them to the life of Python's objects. No I/O: what is to be said to
other nodes goes to `correspondence`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from actors.reference import Reference
from runtime.references.addresses import OnItsWay, parts
from runtime.references.anchors import Anchor
from runtime.references.claims import Claims, Identity, ReferenceId
from runtime.references.correspondence import Correspondence
from runtime.references.fetching import Fetching
from runtime.references.hand_overs import HandOvers
from runtime.references.holds import Ask, Claim, Effect, Holds, Lost, Release, Settled, Sponsor
from runtime.references.listing import size_of
from runtime.references.values import Failure, Sized
from runtime.wire.frames import Buffer, Outgoing
from runtime.wire.values import UnsendableError

if TYPE_CHECKING:
    from runtime.references.owned import OwnValues

MOST_DEAD = 10_000
"""Ended incarnations that are remembered, so that a claim of theirs that comes late counts for nothing."""

MOST_EARLY = 10_000
"""Values that are remembered because they were released before the call that makes them arrived."""


class ReferenceTable:
    """See the module. `numbers` gives growing numbers, unique in this incarnation; `now` the time on the node's clock, in seconds."""

    def __init__(
        self,
        identity: Identity,
        fetching: Fetching,
        correspondence: Correspondence,
        numbers: Callable[[], int],
        now: Callable[[], float],
    ) -> None:
        self.identity = identity
        self.values: OwnValues
        """Told of what becomes of this node's own."""
        self._fetching = fetching
        self._correspondence = correspondence
        self._numbers = numbers
        self._now = now
        self._anchors: weakref.WeakValueDictionary[ReferenceId, Anchor] = weakref.WeakValueDictionary()
        self._claims: dict[ReferenceId, Claims] = {}
        self._early: dict[ReferenceId, Claims] = {}
        """What was released before this node heard of it. A claim that was sent before that may yet come, after the call that makes it."""
        self._moved: dict[ReferenceId, Identity] = {}
        """Where values went that this node has handed to another on leaving."""
        self._takers: dict[ReferenceId, Identity] = {}
        """Who owns values that this node is giving away, as it has heard from the new owner, or from one that followed it."""
        self._givers: dict[ReferenceId, tuple[Identity, ...]] = {}
        """The owners before this node of values that were given to it, the last one first."""
        self._kept_to_the_end: list[object] = []
        self._holds = Holds()
        self._hand_overs: HandOvers[Anchor] = HandOvers()
        self._dead: dict[Identity, None] = {}
        self._dropped: list[tuple[ReferenceId, int, int]] = []
        self._landed: list[int] = []
        self.site: Callable[[], str] | None = None
        """Tells where in the program a value is being made, if that is traced."""
        self.arrivals: list[Reference[object]] | None = None
        """References that are being read are added to it, if somebody wants to know."""
        self.read_any = False
        self.wrote_any = False
        """Set by each reference that is read from a message, or written."""

    def __len__(self) -> int:
        """How many values of its own others hold, or live references do."""
        self.tidy()
        return len(self._claims)

    @property
    def is_busy(self) -> bool:
        """True if anything may come to an end that nobody tells of but the garbage collector."""
        return bool(self._anchors or (self._dropped or self._landed) or len(self._hand_overs) or self._fetching.keeps_unnamed)

    @property
    def held(self) -> int:
        """How many values this node has references to, or has handed on without knowing yet what became of that."""
        self.tidy()
        return len(self._anchors) + len(self._hand_overs)

    def find(self, identity: ReferenceId) -> Anchor | None:
        """What this node knows of a value."""
        return self._anchors.get(identity)

    def state(self, anchor: Anchor) -> str:
        """Of this node's hold; see `holds`. "" at the owner."""
        hold = self._holds.all.get(anchor.identity)
        return hold.state if hold is not None else ""

    def owner(self, identity: ReferenceId) -> Identity | None:
        """Who has a value, if that is this node, or one to which this node has given it."""
        return self.identity if identity in self._claims and identity in self._anchors else self._moved.get(identity)

    def has_ended(self, peer: Identity) -> bool:
        """True if this node knows that incarnation to be no more."""
        return peer in self._dead

    async def wait_changed(self) -> None:
        """Wait until there is news of any value."""
        await self._fetching.wait_changed()

    def tell_all(self) -> None:
        """Wake all who wait for anything."""
        for anchor in list(self._anchors.values()):
            anchor.tell()

    def own(self) -> list[Anchor]:
        """The values of this node."""
        self.tidy()
        return [anchor for anchor in list(self._anchors.values()) if anchor.identity in self._claims]

    def holders(self, anchor: Anchor) -> tuple[Identity, ...]:
        """The other nodes that hold a value of this node."""
        claims = self._claims.get(anchor.identity)
        return claims.holders if claims is not None else ()

    def others(self) -> list[Anchor]:
        """The values of other nodes that this node has references to."""
        self.tidy()
        return [anchor for anchor in list(self._anchors.values()) if anchor.home != self.identity]

    # What this node's own actors and calls do.

    def keep(self, kept: Sized, maker: str = "") -> Reference[object]:
        """A reference to a value of this node."""
        number = self._numbers()
        anchor = self._own((*self.identity, number), maker)
        anchor.kept = kept
        if self.site is not None:
            anchor.site = self.site()
        return Reference(anchor)

    def make(self, owner: Identity, maker: str) -> Anchor:
        """A call of the method `maker` goes to an actor of node `owner`, and its result will stay there."""
        number = self._numbers()
        identity = (*self.identity, number)
        if owner == self.identity:
            anchor = self._own(identity, maker)
        else:
            anchor = self._anchor(identity, owner, number)
            self._holds.made(identity, owner, number)
        if self.site is not None:
            anchor.site = self.site()
        return anchor

    def redirect(self, anchor: Anchor, owner: Identity) -> None:
        """The call that makes it goes to node `owner`, once more or after all. Only while the reference was not handed on."""
        anchor.failure = None
        if owner == anchor.home:
            return
        if anchor.home == self.identity:
            self._claims.pop(anchor.identity, None)
        else:
            # What became of the call there may not be known: if it ran, its result is not wanted.
            self._apply(self._holds.dropped(anchor.identity, anchor.version))
        anchor.home = owner
        anchor.version = self._numbers()
        if owner == self.identity:
            self._claims[anchor.identity] = Claims()
        else:
            self._holds.made(anchor.identity, owner, anchor.version)

    def answered(self, anchor: Anchor, failure: Failure | None, *, agreed: bool = False) -> None:
        """The call that makes it has ended: with a value, or not. `agreed`: the owner has that very failure as the outcome."""
        anchor.close(failure)
        anchor.is_done = True
        if failure is not None and not agreed and anchor.home not in (self.identity, *self._dead):
            # What became of the call there may not be known here: what the owner has is the outcome for all.
            self._correspondence.conclude(anchor.home, anchor.identity, failure)
        self._apply(self._holds.answered(anchor.identity, anchor.version))
        if anchor.home in self._dead:
            # The answer came first, but is looked at only now.
            self._apply(self._holds.died(anchor.home))
        anchor.tell()

    # What other nodes say.

    def begin(self, identity: ReferenceId, holder: Identity, version: int, maker: str) -> Anchor:
        """Another node's call has arrived whose result is to stay here. The same each time, should the call come again."""
        anchor = self._anchors.get(identity)
        if anchor is None or anchor.home != self.identity:
            anchor = self._own(identity, maker)
            anchor.is_open = holder not in self._dead
        elif identity not in self._claims:
            # The reference came first, and waits for the value.
            self._claims[identity] = self._early.pop(identity, Claims())
            anchor.maker, anchor.error = maker, None
            anchor.is_open = holder not in self._dead
            self._apply(self._holds.begun(identity))
        self.claim(identity, holder, version)
        return anchor

    def conclude(self, identity: ReferenceId, failure: Failure) -> Identity | Failure | bool | None:
        """The maker of a value of this node has given up the call, for that reason. Returns the outcome that counts: a failure, or True for
        a value; or its owner, if this node has handed it on; None if nothing is known of it.
        """
        anchor = self._anchors.get(identity)
        if anchor is None or identity not in self._claims:
            return self._moved.get(identity)
        anchor.close(failure)
        return anchor.failure or True

    def concluded(self, identity: ReferenceId, failure: Failure, answer: Identity | Failure | bool | None) -> None:
        """What the owner answered to that."""
        anchor = self._anchors.get(identity)
        if isinstance(answer, tuple):
            self.moved(identity, answer)
            if answer not in (self.identity, *self._dead):
                self._correspondence.conclude(answer, identity, failure)
        elif anchor is not None and anchor.home != self.identity and answer is not None:
            anchor.failure = answer if isinstance(answer, Failure) else None
            anchor.tell()

    def claim(self, identity: ReferenceId, holder: Identity, version: int) -> Identity | None:
        """`holder` holds a value. Returns its owner: this node, or one that it was handed to; None if nothing is known of it."""
        anchor = self._anchors.get(identity)
        claims = self._claims.get(identity)
        if anchor is None or claims is None or holder in self._dead:
            return self._moved.get(identity)
        claims.claim(holder, version)
        if claims.held:
            claims.keeps = anchor
        return self.identity

    def release(self, identity: ReferenceId, holder: Identity, version: int) -> Identity | None:
        """`holder` does not hold a value any more. Returns its owner like `claim`."""
        claims = self._claims.get(identity)
        if claims is None:
            if identity not in self._moved:
                self._early.setdefault(identity, Claims()).release(holder, version)
                if len(self._early) > MOST_EARLY:
                    del self._early[next(iter(self._early))]
            return self._moved.get(identity)
        claims.release(holder, version)
        claims.settle()
        return self.identity

    def confirmed(self, identity: ReferenceId, version: int, owner: Identity, answer: Identity | None) -> None:
        """`owner` has answered a claim of this node: it has the value, knows who has, or knows nothing."""
        if answer == owner:
            self._apply(self._holds.confirmed(identity, version, owner))
        elif answer is not None:
            self.moved(identity, answer)
        else:
            self._apply(self._holds.unknown(identity, version, owner))

    def moved(self, identity: ReferenceId, owner: Identity) -> bool:
        """A value has another owner now. True if this node holds it."""
        anchor = self._anchors.get(identity)
        if anchor is None:
            return False
        if identity in self._claims and owner not in (self.identity, *self._dead):
            # It is giving the value away, and the answer has not come.
            self._takers[identity] = owner
        elif owner != self.identity:
            self._apply(self._holds.moved(identity, owner))
            self._correspondence.is_counted(owner, identity)
        anchor.tell()
        return True

    def adopt(self, identity: ReferenceId, registers: list[tuple[str, int, int]], maker: str, site: str) -> Anchor:
        """A value is this node's from now on, with the registers of its holders. It may be said again."""
        anchor = self._anchors.get(identity)
        if anchor is None or identity not in self._claims:
            anchor = anchor or self._anchor(identity, self.identity, 0)
            # What this node held of it, it owns now.
            self._holds.dropped(identity, anchor.version)
            anchor.home, anchor.lent = self.identity, None
            # Whatever this node knew of it before, its owner had it.
            anchor.error = anchor.failure = None
            anchor.maker, anchor.site = maker, site
        claims = self._claims.setdefault(identity, self._early.pop(identity, Claims()))
        for name, incarnation, version in registers:
            holder = (name, incarnation)
            if holder != self.identity and holder not in self._dead:
                (claims.claim if version > 0 else claims.release)(holder, abs(version))
        claims.keeps = anchor if claims.held else None
        return anchor

    def registers(self, identity: ReferenceId) -> list[tuple[str, int, int]]:
        """Who holds a value of this node, for the next owner."""
        claims = self._claims.get(identity)
        return claims.versions() if claims is not None else []

    def given(self, anchor: Anchor, owner: Identity) -> None:
        """A value of this node is that one's from now on."""
        identity = anchor.identity
        # Whoever reads it in place may do so for as long as this process lives.
        self._kept_to_the_end.append(anchor.kept)
        self._moved[identity] = owner
        self._claims.pop(identity, None)
        self.values.freed(identity, size_of(anchor))
        anchor.kept = None
        anchor.home, anchor.version = owner, self._numbers()
        anchor.tell()

    def taker(self, identity: ReferenceId) -> Identity | None:
        """Who owns a value that this node is giving away, as far as it has heard, and unless that has ended."""
        taker = self._takers.get(identity)
        return taker if taker not in self._dead else None

    def given_by(self, identity: ReferenceId, givers: Sequence[Identity]) -> tuple[Identity, ...]:
        """The first of these has given a value to this node, and had it from the others. Returns those that the first does not answer for:
        they may have offered it to one that has ended since, and are to be told who has it.
        """
        known = dict.fromkeys((*givers, *self._givers.get(identity, ())))
        self._givers[identity] = tuple(giver for giver in known if giver != self.identity and giver not in self._dead)
        return tuple(giver for giver in self._givers[identity] if giver not in givers[:1])

    def givers(self, identity: ReferenceId) -> tuple[Identity, ...]:
        """The owners of a value before this node, as far as they live."""
        return tuple(giver for giver in self._givers.get(identity, ()) if giver not in self._dead)

    def given_to(self, identity: ReferenceId) -> Identity | None:
        """Who has a value that this node had, and has given on."""
        return self._moved.get(identity)

    @property
    def hands_on(self) -> bool:
        """True while a reference that was handed on may not be registered by its receiver."""
        self.tidy()
        return len(self._hand_overs) > 0

    def where(self, identity: ReferenceId) -> Identity | Failure | None:
        """What a node that got the reference from this one is told: its owner, why there is no value, or that it is not held here."""
        anchor = self._anchors.get(identity)
        hold = self._holds.all.get(identity)
        if anchor is None:
            return self._moved.get(identity)
        if anchor.failure is not None:
            return anchor.failure
        if anchor.error is not None or (hold is not None and hold.state == "lost"):
            return None
        return anchor.home

    def told(self, identity: ReferenceId, sponsor: Identity, number: int, answer: Identity | Failure | None) -> None:
        """What `sponsor` answered to that; `number` as in the question."""
        anchor = self._anchors.get(identity)
        if isinstance(answer, Failure):
            effects = self._holds.failed(identity)
            if effects and anchor is not None and anchor.failure is None:
                anchor.failure = answer
            self._apply(effects)
            return
        if answer is None:
            self._apply(self._holds.denied(identity, sponsor, number))
        else:
            self._apply(self._holds.told(identity, sponsor, answer))

    def unsettled(self, sponsor: Identity, numbers: Iterable[int]) -> list[int]:
        """See `Holds.unsettled`."""
        return self._holds.unsettled(sponsor, numbers)

    def questions(self, peer: Identity, most: int) -> list[int]:
        """Hand-overs to ask `peer` about; see `HandOvers.ask`."""
        return self._hand_overs.ask(peer, most)

    def settled(self, numbers: Collection[int], unsettled: Collection[int]) -> None:
        """What it answered."""
        self._hand_overs.answered(numbers, unsettled)

    def ended(self, peer: Identity) -> None:
        """That incarnation is no more: it holds nothing, owns nothing, and registers nothing."""
        self._dead[peer] = None
        if len(self._dead) > MOST_DEAD:
            del self._dead[next(iter(self._dead))]
        self._correspondence.ended(peer)
        self.values.ended(peer)
        self._fetching.ended(peer)
        for identity, claims in list(self._claims.items()):
            if identity[:2] == peer and (anchor := self._anchors.get(identity)) is not None:
                # Its call is not made again.
                anchor.close()
            if claims.died(peer):
                self.values.reader_ended(cast("Anchor", claims.keeps), peer)
                claims.settle()
        self._hand_overs.died(peer)
        self._apply(self._holds.died(peer))

    def tidy(self) -> bool:
        """Act upon what the garbage collector has told; whether there was anything."""
        self._fetching.tidy()
        if not (self._dropped or self._landed):
            return False
        while self._landed:
            self._hand_overs.landed(self._landed.pop())
        while self._dropped:
            identity, version, size = self._dropped.pop()
            self._apply(self._holds.dropped(identity, version))
            if identity not in self._anchors:
                self._fetching.freed(identity)
            if identity in self._claims and identity not in self._anchors:
                del self._claims[identity]
                self._givers.pop(identity, None)
                self._takers.pop(identity, None)
                self.values.freed(identity, size)
        for peer in self._hand_overs.due():
            if peer in self._dead:
                self._hand_overs.died(peer)
            else:
                self._correspondence.question(peer)
        return True

    # On the wire.

    def write(self, reference: Reference[Any], segments: list[Buffer]) -> object:
        """A reference as it goes into a message. If that goes to another node, it is handed on."""
        anchor = cast("Anchor", reference.anchor)
        if anchor.fetching is not self._fetching:
            raise UnsendableError("belongs to another node that this process has open; let that one send it")
        self.wrote_any = True
        if type(segments) is not Outgoing:
            return [*anchor.identity, *anchor.home]
        number = self._hand_overs.hand_on(anchor, segments.peer)
        anchor.handed_on = True
        segments.attach(OnItsWay(number, self._landed))
        plain = [*anchor.identity, *anchor.home, *self.identity, number, self._holds.distance(anchor.identity)]
        if anchor.home == self.identity:
            # Who can read the value in place need not ask where it is.
            lent = self.values.lent_to(anchor, segments.peer)
            if lent is not None:
                plain.append(lent)
        return plain

    def read(self, plain: object) -> Reference[object]:
        """A reference that came in a message, or was copied. Raises ProtocolError."""
        identity, home, sponsor, lent = parts(plain)
        anchor = self._anchors.get(identity)
        if anchor is None:
            anchor = self._arrived(identity, home, sponsor)
        elif anchor.home == self.identity:
            if identity not in self._claims:
                self._apply(self._holds.awaited(identity, self.identity, anchor.version, sponsor))
        elif home != self.identity:
            self._apply(self._holds.arrived(identity, home, anchor.version, sponsor))
        if lent is not None and anchor.home == home != self.identity:
            anchor.lent, anchor.is_done = lent, True
        reference = Reference[object](anchor)
        self.read_any = True
        if self.arrivals is not None:
            self.arrivals.append(reference)
        return reference

    def _arrived(self, identity: ReferenceId, home: Identity, sponsor: Sponsor | None) -> Anchor:
        if self._dropped:
            # The same reference may have been dropped a moment ago.
            self.tidy()
        home = self._moved.get(identity, home)
        anchor = self._anchor(identity, home, self._numbers())
        come = self._holds.awaited if home == self.identity else self._holds.arrived
        self._apply(come(identity, home, anchor.version, sponsor))
        return anchor

    def _own(self, identity: ReferenceId, maker: str) -> Anchor:
        anchor = self._anchor(identity, self.identity, 0)
        anchor.maker = maker
        self._claims[identity] = self._early.pop(identity, Claims())
        return anchor

    def _anchor(self, identity: ReferenceId, home: Identity, version: int) -> Anchor:
        anchor = self._anchors[identity] = Anchor(identity, home, version, self._fetching, self._dropped, self._now())
        self._correspondence.wake()
        return anchor

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Settled | Lost):
                self._conclude(effect)
                continue
            peer = effect.sponsor if isinstance(effect, Ask) else effect.owner
            anchor = self._anchors.get(effect.identity)
            if anchor is not None and not isinstance(effect, Release):
                # There is hope again, if there was none.
                anchor.error = None
                if isinstance(effect, Claim) and anchor.home != peer:
                    anchor.home, anchor.lent = peer, None
            if peer in self._dead:
                # Nobody answers there.
                self._apply(self._holds.died(peer))
            elif isinstance(effect, Claim):
                self._correspondence.claim(peer, effect.identity, effect.version, effect.after, again=effect.again)
            elif isinstance(effect, Release):
                self._correspondence.release(peer, effect.identity, effect.version)
            else:
                self._correspondence.ask(peer, effect.identity, effect.number, effect.after)

    def _conclude(self, effect: Settled | Lost) -> None:
        anchor = self._anchors.get(effect.identity)
        if anchor is None:
            return
        if isinstance(effect, Lost) and anchor.error is None:
            anchor.lose(effect.owner, owner_died=effect.owner_died)
        anchor.tell()
