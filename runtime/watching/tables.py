"""Tables of watches: which exist, and which notices are due.

No I/O and no clock. `WatchTable` is for the watching side: its actors' watches and links, each of
which gives one notice. `WatcherTable` is for the watched side: which nodes asked for the end of
which actor. A node asks once for each actor, however many of its own actors watch it.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

import attrs

from actors.call_context import CallContext
from actors.identifiers import ActorId, NodeId
from actors.method import Address

K = TypeVar("K")


MOST_ASKERS = 4096
"""How many nodes may watch one actor: more than a cluster has."""


@attrs.frozen
class Target:
    """One epoch of an actor, with its node. `registered`: its name may get a later epoch.

    `absent`: a unique number if no such actor was found; else 0. It distinguishes this watch from
    earlier watches of the same name.
    """

    name: str
    epoch: int
    node: NodeId
    registered: bool = attrs.field(default=False, eq=False)
    absent: int = 0

    @classmethod
    def of(cls, address: Address) -> Target:
        """Return the actor at `address` as a target."""
        return cls(
            address.name,
            address.epoch,
            address.node_id,
            address.registered,
        )

    @property
    def actor(self) -> ActorId:
        """Its name and epoch."""
        return ActorId(self.name, self.epoch)


@attrs.frozen
class WatchEntry:
    """A watch, or this node's side of a link. `watcher` is None for code outside of actors.
    `context`: the call context of the code that watches, in which the notice is handled.
    """

    number: int
    watcher: ActorId | None
    target: Target
    is_link: bool = False
    context: CallContext | None = attrs.field(default=None, eq=False, repr=False)


class WatchTable:
    """The watches and links of one node's actors. A watch leaves the table with its notice, so it
    gives only one.
    """

    def __init__(self) -> None:
        self._latest = 0
        self._entries: dict[int, WatchEntry] = {}
        self._by_target: dict[Target, dict[int, None]] = {}
        self._by_watcher: dict[ActorId, dict[int, None]] = {}
        self._links: dict[tuple[ActorId, Target], int] = {}
        self._links_to: Counter[NodeId] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, number: int) -> bool:
        return number in self._entries

    def count_of(self, watcher: ActorId) -> int:
        """Return how many watches and links an actor has."""
        return len(self._by_watcher.get(watcher, ()))

    def links_to_node(self, node: NodeId) -> int:
        """Return how many links there are to actors of a node."""
        return self._links_to[node]

    def is_wanted(self, target: Target) -> bool:
        """Return True if there is a watch or link of the target."""
        return target in self._by_target

    def is_registered(self, target: Target) -> bool:
        """Return True if the target's name may get a later epoch, according to its watches."""
        return any(
            self._entries[number].target.registered for number in self._by_target.get(target, ())
        )

    def add(
        self, watcher: ActorId | None, target: Target, context: CallContext | None = None
    ) -> WatchEntry:
        """Add a watch, independent of all others."""
        return self._add(watcher, target, context, is_link=False)

    def add_link(
        self, watcher: ActorId, target: Target, context: CallContext | None = None
    ) -> WatchEntry | None:
        """Add this node's side of a link; None if there is one already."""
        if (watcher, target) in self._links:
            return None
        return self._add(watcher, target, context, is_link=True)

    def links_to(self, watcher: ActorId, name: str) -> list[WatchEntry]:
        """Return the links of an actor with any epoch of a name."""
        found = [self._entries[number] for number in self._by_watcher.get(watcher, ())]
        return [one for one in found if one.is_link and one.target.name == name]

    def link(self, watcher: ActorId, target: Target) -> WatchEntry | None:
        """Return the link of an actor with another, or None."""
        number = self._links.get((watcher, target))
        return None if number is None else self._entries[number]

    def drop(self, number: int) -> Target | None:
        """Remove a watch without a notice. Returns its target if no watch of that is left. Does
        nothing if there is no such watch.
        """
        one = self._entries.get(number)
        if one is None:
            return None
        self._remove(one)
        return None if one.target in self._by_target else one.target

    def drop_watcher(self, watcher: ActorId) -> list[Target]:
        """Remove the watches of an ended actor. Returns the targets that no watch is left of."""
        dropped = [self.drop(number) for number in list(self._by_watcher.get(watcher, ()))]
        return [target for target in dropped if target is not None]

    def on_ended(self, target: Target) -> list[WatchEntry]:
        """Remove and return the watches of an ended target, in the order in which they were
        added.
        """
        due = [self._entries[number] for number in self._by_target.get(target, ())]
        for one in due:
            self._remove(one)
        # Each watch gives one notice: what is returned here is never returned again.
        assert target not in self._by_target
        return due

    def on_node(self, node: NodeId) -> list[Target]:
        """Return the targets on a node that has ended. It looks at all targets: nodes end seldom,
        and an index of nodes would cost something for every watch.
        """
        return [target for target in self._by_target if target.node == node]

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. Looks at every watch: for tests and
        simulations.
        """
        entries = self._entries.values()
        for number, one in self._entries.items():
            assert 0 < number == one.number <= self._latest
            assert number in self._by_target[one.target]
            assert one.watcher is not None or not one.is_link, "only actors have links"
            assert one.watcher is None or number in self._by_watcher[one.watcher]
        # Equal sizes: the indexes have nothing that the table has not.
        assert sum(map(len, self._by_target.values())) == len(self._entries)
        watchers = sum(one.watcher is not None for one in entries)
        assert sum(map(len, self._by_watcher.values())) == watchers
        links = {
            (one.watcher, one.target): one.number
            for one in entries
            if one.is_link and one.watcher is not None
        }
        assert links == self._links
        assert sum(one.is_link for one in entries) == len(links), "one link for each pair"
        assert Counter(target.node for _, target in links) == self._links_to
        assert all(self._links_to.values())
        assert all(self._by_target.values())
        assert all(self._by_watcher.values())

    def _add(
        self,
        watcher: ActorId | None,
        target: Target,
        context: CallContext | None,
        *,
        is_link: bool,
    ) -> WatchEntry:
        self._latest += 1
        one = WatchEntry(self._latest, watcher, target, is_link, context)
        self._entries[self._latest] = one
        self._by_target.setdefault(target, {})[one.number] = None
        if watcher is not None:
            self._by_watcher.setdefault(watcher, {})[one.number] = None
            if is_link:
                self._links[watcher, target] = one.number
                self._links_to[target.node] += 1
        return one

    def _remove(self, one: WatchEntry) -> None:
        del self._entries[one.number]
        _discard(self._by_target, one.target, one.number)
        if one.watcher is not None:
            _discard(self._by_watcher, one.watcher, one.number)
            if one.is_link:
                del self._links[one.watcher, one.target]
                self._links_to[one.target.node] -= 1
                if not self._links_to[one.target.node]:
                    del self._links_to[one.target.node]


class WatcherTable:
    """The nodes that watch the actors of one node. Each request has a serial number, so that a late
    withdrawal does not remove a newer request.
    """

    def __init__(self) -> None:
        self._wanted: dict[ActorId, dict[NodeId, int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._wanted.values()))

    def ask(self, actor: ActorId, asker: NodeId, serial: int) -> bool:
        """Enter a node that watches an actor; a repeated request counts once, with the latest
        serial. False if `MOST_ASKERS` others watch it already.
        """
        askers = self._wanted.setdefault(actor, {})
        if len(askers) >= MOST_ASKERS and asker not in askers:
            return False
        askers[asker] = serial
        return True

    def take_back(self, actor: ActorId, asker: NodeId, serial: int) -> None:
        """Remove what a node has asked for, unless it has asked again since."""
        askers = self._wanted.get(actor)
        # A withdrawal and the request that follows it may arrive in the other order.
        if askers is not None and askers.get(asker) == serial:
            del askers[asker]
            if not askers:
                del self._wanted[actor]

    def on_ended(self, actor: ActorId) -> dict[NodeId, int]:
        """Remove and return the nodes that watch the actor, each with its serial."""
        return self._wanted.pop(actor, {})

    def forget(self, asker: NodeId) -> None:
        """Remove all that an ended node has asked for."""
        for actor in [
            actor
            for actor, askers in self._wanted.items()
            if askers.pop(asker, None) is not None and not askers
        ]:
            del self._wanted[actor]

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. For tests and simulations."""
        for askers in self._wanted.values():
            assert 0 < len(askers) <= MOST_ASKERS, "an actor that no node asks for is not kept"


def _discard(sets: dict[K, dict[int, None]], key: K, number: int) -> None:
    numbers = sets[key]
    del numbers[number]
    if not numbers:
        del sets[key]
