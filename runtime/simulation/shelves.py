"""References that are handed on between the nodes of a simulated cluster, and what must never be seen of them.

Shelves are actors that make values, keep references to them for a while, lend them to clients and fetch what they name. Each value has a
mark of its own, so whoever fetches it knows what it should be; and it is written down who has handed on what, so that it is known whether
anybody was to blame when a value is not there.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import attrs
import trio

from actors import Actor, Reference, message, method
from actors.errors import OwnerDiedError, ReferenceReleasedError, UnderstudyError
from actors.retry import RetryPolicy
from runtime.references.anchors import Anchor
from runtime.simulation.cluster import CLUSTER, SimulatedCluster

if TYPE_CHECKING:
    from runtime.node import Node
    from runtime.simulation.workload import Client

SHELVES = 3
FETCH_SECONDS = 12.0
"""How long whoever fetches waits. In the calm that must be enough."""

KEPT_SECONDS = (0.0, 0.5, 3.0, 8.0)
"""For how long a reference is kept, at most one of these: pauses and partitions last longer than a lease at times."""

SHOWN = 20
"""Violations of each kind that are kept as text."""

STUBBORN = 0.4
"""How many of the values are made by calls that raise at first, and are made again."""

Place = tuple[str, int, str]
"""A node, its incarnation, and the store that knows it: one that is begun anew counts incarnations from the beginning again."""

Thing = list[Any]
"""A mark, and a reference to the value that has it."""


@message
class SlippedError(Exception):
    """What a method raises before it succeeds."""


INSISTENT = RetryPolicy(max_retries=3, initial_delay=0.6, backoff=2.0, retry_on=SlippedError)
"""Of calls whose first attempts raise that."""


@attrs.define(eq=False)
class Hands:
    """Who has handed on what, and what went wrong. It sees all nodes at once."""

    cluster: SimulatedCluster
    calm: bool = False
    """True once all faults are healed, and all nodes see each other again."""
    fetched: int = 0
    mixed_up: list[str] = attrs.field(factory=list)
    """Values that were not the ones that were made."""
    freed: list[str] = attrs.field(factory=list)
    """Values that were gone although nobody who had a part in them had ended."""
    stuck: list[str] = attrs.field(factory=list)
    """Values that neither came nor were lost."""
    torn: list[str] = attrs.field(factory=list)
    """References of which some who have them got the value, and others a failure."""
    _hands: dict[str, dict[Place, None]] = attrs.field(factory=dict)
    _outcomes: dict[str, dict[str, Place]] = attrs.field(factory=dict)
    """Of each mark: who got what, the first of each kind."""
    _attempts: dict[str, int] = attrs.field(factory=dict)

    def place(self, name: str, incarnation: int) -> Place:
        """Of a node that takes steps at the moment."""
        node = self.cluster.live(name)
        return name, incarnation, _store(node) if node is not None else ""

    def attempt(self, mark: str) -> int:
        """How often the call that makes what has that mark has run, this time included."""
        self._attempts[mark] = self._attempts.get(mark, 0) + 1
        return self._attempts[mark]

    def handed(self, mark: str, place: Place) -> None:
        """An incarnation of a node has made, kept or handed on what has that mark."""
        self._hands.setdefault(mark, {})[place] = None

    def is_well(self, place: Place) -> bool:
        """True if that incarnation lives, and none of the others has taken it for dead."""
        name, incarnation, store = place
        node = self.cluster.live(name)
        if node is None or node.incarnation != incarnation or _store(node) != store or node.asked_to_leave.is_set():
            return False
        others = [self.cluster.live(other) for other in self.cluster.machines]
        return not any(
            other.station.references.has_ended((name, incarnation)) for other in others if other is not None and _store(other) == store
        )

    async def look(self, here: Place, mark: str, reference: Reference[Any]) -> list[Thing]:
        """Fetch a value, on the node `here`, and judge what comes of it; returns the things in it."""
        anchor, began_calm = reference.anchor, self.calm
        assert isinstance(anchor, Anchor)
        self.handed(mark, here)
        owner = (*anchor.home, here[2])
        value: Any = None
        try:
            with trio.move_on_after(FETCH_SECONDS) as patience:
                value = await reference.fetch()
        except ReferenceReleasedError as error:
            # Among those that had a part in it is whoever asks: a node that others take for dead holds nothing.
            if all(map(self.is_well, self._hands[mark])) and self.is_well((*anchor.home, here[2])):
                self._wrong(self.freed, f"{mark} is gone for {here}, and {sorted(self._hands[mark])} are all well: {error}")
        except OwnerDiedError as error:
            if self.is_well(owner) and self.is_well(here):
                self._wrong(self.freed, f"{mark} is lost for {here}, and its owner {owner} is well: {error}")
        except UnderstudyError as error:
            # What the call that makes it has come to. Its maker may not know yet what has become of it at the owner.
            if anchor.failure is not None and (anchor.identity[:2] != here[:2] or isinstance(error, SlippedError)):
                self._seen(mark, f"a failure ({type(error).__name__})", here, owner)
        else:
            if patience.cancelled_caught:
                if began_calm and self.is_well(here):
                    self._wrong(self.stuck, f"{mark} did not come from {owner} to {here} in {FETCH_SECONDS:g} s, in the calm")
                return []
            self.fetched += 1
            self._seen(mark, "a value", here, owner)
            if value["mark"] != mark:
                self._wrong(self.mixed_up, f"{here} fetched {mark}, and got {value['mark']}")
            for inner, _ in value["things"]:
                self.handed(inner, owner)
            return list(value["things"])
        return []

    def _seen(self, mark: str, what: str, here: Place, owner: Place) -> None:
        """What somebody got must be what all get, as long as the owner has it and all who had a part in it are there."""
        seen = self._outcomes.setdefault(mark, {})
        seen.setdefault(what, here)
        if len(seen) > 1 and self.is_well(owner) and all(map(self.is_well, self._hands[mark])):
            self._wrong(self.torn, f"{mark} of {owner} is " + " and ".join(f"{each} for {place}" for each, place in seen.items()))

    def _wrong(self, where: list[str], text: str) -> None:
        if len(where) < SHOWN:
            where.append(text)
        self.cluster.trace.tell("", "wrong", text)


def _store(node: Node) -> str:
    """The identity of the store that knows a node."""
    return node.station.peers.introduction.peer.store


def hands() -> Hands:
    """Those of the workload that the running task belongs to."""
    found = getattr(CLUSTER.get().scenario, "hands", None)
    assert isinstance(found, Hands)
    return found


class Shelf(Actor):
    """Makes values, and keeps references for a while."""

    def __init__(self) -> None:
        self.things: dict[int, Thing] = {}
        self.number = 0

    @method(concurrent=True)
    async def make(self, mark: str, seconds: float, things: list[Any]) -> dict[str, Any]:
        """A value, after a while, with references in it."""
        self._handed([*things, [mark, None]])
        await trio.sleep(seconds)
        return {"mark": mark, "things": things}

    @method(concurrent=True)
    async def make_at_last(self, mark: str, failures: int, things: list[Any]) -> dict[str, Any]:
        """The same for a caller that asks again: so often it raises."""
        self._handed([*things, [mark, None]])
        if hands().attempt(mark) <= failures:
            raise SlippedError(f"{mark} slipped")
        return {"mark": mark, "things": things}

    @method(concurrent=True)
    async def keep(self, things: list[Any], seconds: float, looks: bool) -> None:
        """Hold these for so long; look at the values, perhaps, before they are dropped."""
        self._handed(things)
        numbers = []
        for thing in things:
            self.number += 1
            numbers.append(self.number)
            self.things[self.number] = thing
        try:
            await trio.sleep(seconds)
            if looks:
                for mark, reference in things:
                    for inner, deeper in await hands().look(self._place, mark, reference):
                        await hands().look(self._place, inner, deeper)
        finally:
            for number in numbers:
                del self.things[number]

    @method
    async def lend(self, count: int) -> list[Any]:
        """The latest that are kept here."""
        things = list(self.things.values())[-count:]
        self._handed(things)
        return things

    def _handed(self, things: list[Any]) -> None:
        for mark, _ in things:
            hands().handed(mark, self._place)

    @property
    def _place(self) -> Place:
        return hands().place(self.node.name, self.node.incarnation)


async def _shelf(client: Client) -> Shelf:
    """One of them, which is started if nobody has it."""
    name = f"shelf-{client.work.generation}-{client.draw.randrange(SHELVES)}"
    members = [member.name for member in client.node.members() if member.state == "up"]
    return await client.node.options(name=name, on=client.draw.choice([None, *members])).get_or_spawn(Shelf)


async def hand_on(client: Client) -> None:
    """Make a value, borrow some, and hand them on to shelves elsewhere."""
    draw = client.draw
    here = hands().place(client.node.name, client.node.incarnation)
    try:
        with trio.move_on_after(10.0):
            things = await _gathered(client)
            seen = hands()
            for mark, _ in things:
                seen.handed(mark, here)
            for _ in range(draw.randrange(1, 3)):
                shelf = await _shelf(client)
                seconds = draw.choice(KEPT_SECONDS) * draw.random()
                arguments = (draw.sample(things, draw.randrange(1, len(things) + 1)), seconds, draw.random() < 0.7)
                if draw.random() < 0.6:
                    await shelf.keep.send(*arguments)
                else:
                    # One that is given up after a while: what it holds is dropped in the middle of anything.
                    await shelf.keep.options(timeout=draw.choice((0.3, 2.0, 9.0)))(*arguments)
            if draw.random() < 0.3:
                mark, reference = draw.choice(things)
                await seen.look(here, mark, reference)
    except UnderstudyError:
        return


async def _gathered(client: Client) -> list[Thing]:
    """What a client has to hand on: something new, and perhaps something that others keep."""
    draw, node = client.draw, client.node
    borrowed: list[Thing] = []
    if draw.random() < 0.5:
        shelf = await _shelf(client)
        borrowed = await shelf.lend.options(timeout=2.0)(draw.randrange(1, 4))
    mark = f"{client.name}#{client.work.next_number()}"
    inside = _some(draw, borrowed)
    hands().handed(mark, hands().place(node.name, node.incarnation))
    reference: Reference[dict[str, Any]]
    if draw.random() < 0.4:
        reference = await node.put({"mark": mark, "things": inside})
    else:
        shelf = await _shelf(client)
        stubborn = random.Random(f"{client.work.cluster.seed} {mark}")
        if stubborn.random() < STUBBORN:
            calls = shelf.make_at_last.options(timeout=9.0, retry=INSISTENT)
            return [[mark, await calls.remote(mark, stubborn.randrange(1, 4), inside)], *borrowed]
        reference = await shelf.make.options(timeout=9.0).remote(mark, draw.choice((0.0, 0.1, 1.0)), inside)
    return [[mark, reference], *borrowed]


def _some(draw: random.Random, things: list[Thing]) -> list[Thing]:
    return draw.sample(things, draw.randrange(len(things) + 1))
