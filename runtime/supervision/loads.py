"""How much each node carries, as far as one node knows: kept up to date by the changes of the names, and asked for before each placement.

A start that has been placed and is not yet seen among the names counts too: starts that are placed in one moment must not all go to one
node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from runtime.supervision.placement import Identity, Load


@attrs.frozen
class Carried:
    """A named actor: where it is, what it takes there, and the revision at which that was so."""

    node: Identity
    resources: Mapping[str, float]
    revision: int


class Loads:
    """Not `known` until it was filled, and not again after `forget`, until it is filled again. Nothing is kept before `expect`."""

    def __init__(self) -> None:
        self.known = False
        self.of: dict[Identity, Load] = {}
        self._missed = 0
        self._expected = False
        self._carried: dict[str, Carried] = {}
        self._gone: dict[str, int] = {}
        self._placed: dict[str, tuple[Identity, Mapping[str, float]]] = {}

    def expect(self) -> int:
        """Somebody is about to ask for all names: changes count from now on. Returns what `fill` is to be given."""
        self._expected = True
        return self._missed

    def fill(self, names: Iterable[tuple[str, Carried]], expected: int) -> None:
        """All names as they were since `expect` gave this number; changes that were seen meanwhile and are later stay.

        Ignored if it is known already, for ends that were seen since are not kept, or if changes were missed meanwhile.
        """
        if self.known or expected != self._missed:
            return
        for name, carried in names:
            self.put(name, carried)
        self.known = True
        self._gone.clear()

    def put(self, name: str, carried: Carried) -> None:
        """Somebody has the name."""
        if not self._expected:
            return
        before = self._carried.get(name)
        if (before is not None and before.revision >= carried.revision) or self._gone.get(name, 0) >= carried.revision:
            return
        self._remove(name)
        self.settled(name)
        self._carried[name] = carried
        self._add(carried.node, carried.resources)

    def gone(self, name: str, revision: int) -> None:
        """Nobody has the name any more, since this revision."""
        if not self._expected:
            return
        before = self._carried.get(name)
        if before is None or before.revision < revision:
            self._remove(name)
            if not self.known:
                self._gone[name] = revision

    def placed(self, name: str, node: Identity, resources: Mapping[str, float]) -> None:
        """An actor of this name is about to start there."""
        self.settled(name)
        if name not in self._carried:
            self._placed[name] = (node, resources)
            self._add(node, resources)

    def settled(self, name: str) -> None:
        """Its start has come to an end, one way or the other."""
        found = self._placed.pop(name, None)
        if found is not None:
            self._take(*found)

    def forget(self) -> None:
        """Changes were missed."""
        self.known = False
        self._expected = False
        self._missed += 1
        self._carried.clear()
        self._gone.clear()
        # A new table, for the old one may still be looked at.
        self.of = {}
        for node, resources in self._placed.values():
            self._add(node, resources)

    def _remove(self, name: str) -> None:
        carried = self._carried.pop(name, None)
        if carried is not None:
            self._take(carried.node, carried.resources)

    def _add(self, node: Identity, resources: Mapping[str, float]) -> None:
        load = self.of.setdefault(node, Load())
        load.actors += 1
        for name, amount in resources.items():
            load.taken[name] = load.taken.get(name, 0.0) + amount

    def _take(self, node: Identity, resources: Mapping[str, float]) -> None:
        load = self.of[node]
        load.actors -= 1
        for name, amount in resources.items():
            load.taken[name] -= amount
        if not load.actors:
            del self.of[node]
