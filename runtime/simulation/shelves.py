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

from actors import Actor, Reference, method
from actors.errors import OwnerDiedError, ReferenceReleasedError, UnderstudyError
from runtime.references.anchors import Anchor
from runtime.simulation.cluster import CLUSTER, SimulatedCluster

if TYPE_CHECKING:
    from runtime.simulation.workload import Client

SHELVES = 3
FETCH_SECONDS = 12.0
"""How long whoever fetches waits. In the calm that must be enough."""

KEPT_SECONDS = (0.0, 0.5, 3.0, 8.0)
"""For how long a reference is kept, at most one of these: pauses and partitions last longer than a lease at times."""

SHOWN = 20
"""Violations of each kind that are kept as text."""

Place = tuple[str, int]
"""A node and its incarnation."""

Thing = list[Any]
"""A mark, and a reference to the value that has it."""


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
    _hands: dict[str, dict[Place, None]] = attrs.field(factory=dict)

    def handed(self, mark: str, place: Place) -> None:
        """An incarnation of a node has made, kept or handed on what has that mark."""
        self._hands.setdefault(mark, {})[place] = None

    def is_well(self, place: Place) -> bool:
        """True if that incarnation lives, and none of the others has taken it for dead."""
        node = self.cluster.live(place[0])
        if node is None or node.incarnation != place[1] or node.asked_to_leave.is_set():
            return False
        others = [self.cluster.live(name) for name in self.cluster.machines]
        return not any(other.station.references.has_ended(place) for other in others if other is not None)

    async def look(self, here: Place, mark: str, reference: Reference[Any]) -> list[Thing]:
        """Fetch a value, on the node `here`, and judge what comes of it; returns the things in it."""
        anchor, began_calm = reference.anchor, self.calm
        assert isinstance(anchor, Anchor)
        self.handed(mark, here)
        owner = anchor.home
        value: Any = None
        try:
            with trio.move_on_after(FETCH_SECONDS) as patience:
                value = await reference.fetch()
        except ReferenceReleasedError as error:
            # Among those that had a part in it is whoever asks: a node that others take for dead holds nothing.
            if all(map(self.is_well, self._hands[mark])) and self.is_well(anchor.home):
                self._wrong(self.freed, f"{mark} is gone for {here}, and {sorted(self._hands[mark])} are all well: {error}")
        except OwnerDiedError as error:
            if self.is_well(owner) and self.is_well(here):
                self._wrong(self.freed, f"{mark} is lost for {here}, and its owner {owner} is well: {error}")
        except UnderstudyError:
            # What the call that makes it has come to.
            pass
        else:
            if patience.cancelled_caught:
                if began_calm and self.is_well(here):
                    self._wrong(self.stuck, f"{mark} did not come from {owner} to {here} in {FETCH_SECONDS:g} s, in the calm")
                return []
            self.fetched += 1
            if value["mark"] != mark:
                self._wrong(self.mixed_up, f"{here} fetched {mark}, and got {value['mark']}")
            for inner, _ in value["things"]:
                self.handed(inner, owner)
            return list(value["things"])
        return []

    def _wrong(self, where: list[str], text: str) -> None:
        if len(where) < SHOWN:
            where.append(text)
        self.cluster.trace.tell("", "wrong", text)


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
        return self.node.name, self.node.incarnation


async def _shelf(client: Client) -> Shelf:
    """One of them, which is started if nobody has it."""
    name = f"shelf-{client.work.generation}-{client.draw.randrange(SHELVES)}"
    members = [member.name for member in client.node.members() if member.state == "up"]
    return await client.node.options(name=name, on=client.draw.choice([None, *members])).get_or_spawn(Shelf)


async def hand_on(client: Client) -> None:
    """Make a value, borrow some, and hand them on to shelves elsewhere."""
    draw = client.draw
    here = (client.node.name, client.node.incarnation)
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
    hands().handed(mark, (node.name, node.incarnation))
    reference: Reference[dict[str, Any]]
    if draw.random() < 0.4:
        reference = await node.put({"mark": mark, "things": inside})
    else:
        shelf = await _shelf(client)
        reference = await shelf.make.options(timeout=9.0).remote(mark, draw.choice((0.0, 0.1, 1.0)), inside)
    return [[mark, reference], *borrowed]


def _some(draw: random.Random, things: list[Thing]) -> list[Thing]:
    return draw.sample(things, draw.randrange(len(things) + 1))
