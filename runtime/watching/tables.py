"""Watches: which of them stand, and which notices are due.

No I/O and no clock. `Watches` is for the side that watches: its actors' watches and links, each told of once. `Watched` is for the side
that is watched: which nodes want to know of the end of which actor. A node asks once for each actor, however many of its own watch it.
"""

from __future__ import annotations

from typing import TypeVar

import attrs

from actors.method import Address

K = TypeVar("K")

Node = tuple[str, int]
"""Name and incarnation."""

Actor = tuple[str, int]
"""Name and epoch."""


MOST_ASKERS = 4096
"""Nodes that may want to know of the end of one actor: more than a cluster has."""


@attrs.frozen
class Target:
    """One epoch of an actor, where it runs; `registered` if its name may get a later epoch.

    `absent`: a number of its own if there was no such actor when it was asked for. What is said of it concerns nobody who asked before.
    """

    name: str
    epoch: int
    node: Node
    registered: bool = attrs.field(default=False, eq=False)
    absent: int = 0

    @classmethod
    def of(cls, address: Address) -> Target:
        """The actor at `address`."""
        return cls(address.name, address.epoch, (address.node, address.incarnation), address.registered)

    @property
    def actor(self) -> Actor:
        """Its name and epoch."""
        return self.name, self.epoch


@attrs.frozen
class Standing:
    """A watch, or the near side of a link. `watcher` is None for code outside of actors."""

    number: int
    watcher: Actor | None
    target: Target
    is_link: bool = False


class Watches:
    """Those of one node's actors. A watch leaves the table with its notice, so it can give only one."""

    def __init__(self) -> None:
        self._latest = 0
        self._standing: dict[int, Standing] = {}
        self._by_target: dict[Target, dict[int, None]] = {}
        self._by_watcher: dict[Actor, dict[int, None]] = {}
        self._links: dict[tuple[Actor, Target], int] = {}

    def __len__(self) -> int:
        return len(self._standing)

    def __contains__(self, number: int) -> bool:
        return number in self._standing

    def count_of(self, watcher: Actor) -> int:
        """How many watches and links an actor has."""
        return len(self._by_watcher.get(watcher, ()))

    def is_wanted(self, target: Target) -> bool:
        """True if anybody watches it."""
        return target in self._by_target

    def is_registered(self, target: Target) -> bool:
        """True if its name may get a later epoch, as those who watch it know."""
        return any(self._standing[number].target.registered for number in self._by_target.get(target, ()))

    def add(self, watcher: Actor | None, target: Target) -> Standing:
        """A further watch, independent of all others."""
        return self._add(watcher, target, is_link=False)

    def add_link(self, watcher: Actor, target: Target) -> Standing | None:
        """A link's near side; None if there is one already."""
        return None if (watcher, target) in self._links else self._add(watcher, target, is_link=True)

    def links_to(self, watcher: Actor, name: str) -> list[Standing]:
        """What links an actor to any epoch of a name."""
        found = [self._standing[number] for number in self._by_watcher.get(watcher, ())]
        return [one for one in found if one.is_link and one.target.name == name]

    def link(self, watcher: Actor, target: Target) -> Standing | None:
        """What links an actor to another."""
        number = self._links.get((watcher, target))
        return None if number is None else self._standing[number]

    def drop(self, number: int) -> Target | None:
        """Give no notice for it. Returns its target if nobody watches that any more. Dropping what is not there changes nothing."""
        one = self._standing.get(number)
        if one is None:
            return None
        self._remove(one)
        return None if one.target in self._by_target else one.target

    def drop_watcher(self, watcher: Actor) -> list[Target]:
        """The watcher has ended. Returns what nobody watches any more."""
        dropped = [self.drop(number) for number in list(self._by_watcher.get(watcher, ()))]
        return [target for target in dropped if target is not None]

    def ended(self, target: Target) -> list[Standing]:
        """A target has ended: what is due, in the order in which it was asked for. Another call has nothing more."""
        due = [self._standing[number] for number in self._by_target.get(target, ())]
        for one in due:
            self._remove(one)
        return due

    def on_node(self, node: Node) -> list[Target]:
        """What is watched on one node."""
        return [target for target in self._by_target if target.node == node]

    def _add(self, watcher: Actor | None, target: Target, *, is_link: bool) -> Standing:
        self._latest += 1
        one = self._standing[self._latest] = Standing(self._latest, watcher, target, is_link)
        self._by_target.setdefault(target, {})[one.number] = None
        if watcher is not None:
            self._by_watcher.setdefault(watcher, {})[one.number] = None
            if is_link:
                self._links[watcher, target] = one.number
        return one

    def _remove(self, one: Standing) -> None:
        del self._standing[one.number]
        _discard(self._by_target, one.target, one.number)
        if one.watcher is not None:
            _discard(self._by_watcher, one.watcher, one.number)
            if one.is_link:
                del self._links[one.watcher, one.target]


class Watched:
    """Who wants to know of the ends of one node's actors. Each asks with a serial number, so that what is late takes back nothing newer."""

    def __init__(self) -> None:
        self._wanted: dict[Actor, dict[Node, int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._wanted.values()))

    def ask(self, actor: Actor, asker: Node, serial: int) -> bool:
        """A node wants to know; asking again counts once, with the latest serial. False if `MOST_ASKERS` others want to know already."""
        askers = self._wanted.setdefault(actor, {})
        if len(askers) >= MOST_ASKERS and asker not in askers:
            return False
        askers[asker] = serial
        return True

    def take_back(self, actor: Actor, asker: Node, serial: int) -> None:
        """It does not want to any more, unless it has asked again since."""
        askers = self._wanted.get(actor)
        if askers is not None and askers.get(asker) == serial:
            del askers[asker]
            if not askers:
                del self._wanted[actor]

    def ended(self, actor: Actor) -> dict[Node, int]:
        """The actor has ended: whom to tell, each with its serial. Another call has nobody more."""
        return self._wanted.pop(actor, {})

    def forget(self, asker: Node) -> None:
        """That node is no more."""
        for actor in [actor for actor, askers in self._wanted.items() if askers.pop(asker, None) is not None and not askers]:
            del self._wanted[actor]


def _discard(sets: dict[K, dict[int, None]], key: K, number: int) -> None:
    numbers = sets[key]
    del numbers[number]
    if not numbers:
        del sets[key]
