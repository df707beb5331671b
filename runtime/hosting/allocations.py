"""The allocation table of one node: what its actors take of its resources. No I/O.

Other nodes place actors by what they know of this node, and that may be out of date: two of them
can choose it for the last GPU at the same moment. So the node itself decides. Each start asks here
for what its actor takes, before the name of the actor is claimed, and is refused if not as much is
left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Set
from fractions import Fraction
from types import MappingProxyType

import attrs

from actors.errors import NoPlacementError
from actors.identifiers import ActorId

TOLERANCE = 1e-6
"""How much more than a node has its actors may take of a resource, all of them together. Amounts
like 0.1 are no exact fractions in binary: without it, three of them would be more than 0.3.
"""

_MORE = Fraction(TOLERANCE)

NOTHING: Mapping[str, float] = MappingProxyType({})


def left_of(name: str, left: float, has: float) -> str:
    """Say how much is left of the resource `name` on a node that `has` so much in all."""
    return f"{max(left, 0.0):g} {name} left of {has:g}" if has else f"no {name}"


@attrs.frozen(eq=False)
class Allocation:
    """What one actor takes of its node, by resource, where that is not nothing."""

    amounts: Mapping[str, Fraction]


class Allocations:
    """What is taken of the node called `node`, which `has` these amounts.

    A start takes an allocation, before its actor has an epoch. `assign` gives it to the actor,
    which has it until `release`. If the start fails before that, it gives the allocation back.
    """

    def __init__(self, node: str, has: Mapping[str, float] = NOTHING) -> None:
        self._node = node
        self._has = {name: Fraction(amount) for name, amount in has.items()}
        self._of_starts: set[Allocation] = set()
        """Those that no actor has yet."""
        self._of_actors: dict[ActorId, Allocation] = {}
        self._taken: dict[str, Fraction] = {}
        """The sums of both. In fractions, so that after any number of starts and ends nothing is
        left of what was given back.
        """

    @property
    def holders(self) -> Set[ActorId]:
        """The actors that have an allocation."""
        return self._of_actors.keys()

    def take(self, actor: str, amounts: Mapping[str, float]) -> Allocation | None:
        """Allocate all of these amounts to a start of `actor`, which is named in the error. None if
        there are none. Raises NoPlacementError, which names this node, if less is left of one.
        """
        if not amounts:
            return None
        for name, amount in amounts.items():
            has = self._has.get(name, Fraction())
            left = has - self._taken.get(name, 0)
            if left + _MORE < Fraction(amount):
                what_is_left = left_of(name, float(left), float(has))
                raise NoPlacementError(
                    f"node {self._node} has {what_is_left}, and {actor} asks for {amount:g}",
                    actor=actor,
                    node=self._node,
                )
        exact = {name: Fraction(amount) for name, amount in amounts.items() if amount}
        allocation = Allocation(exact)
        for name in exact:
            self._taken[name] = self._taken.get(name, 0) + exact[name]
        self._of_starts.add(allocation)
        return allocation

    def give_back(self, allocation: Allocation | None) -> None:
        """The start has failed before its actor had an epoch."""
        if allocation is not None:
            self._of_starts.remove(allocation)
            self._free(allocation)

    def assign(self, allocation: Allocation | None, actor: ActorId) -> None:
        """The actor of a start has this name and epoch now, and the allocation is its own."""
        if allocation is not None:
            self._of_starts.remove(allocation)
            assert actor not in self._of_actors, f"{actor} was started twice"
            self._of_actors[actor] = allocation

    def release(self, actor: ActorId) -> None:
        """The actor has ended, or did not start. May be called again, and for one without an
        allocation.
        """
        # Most nodes have no resources: this is all that the end of an actor costs there.
        if self._of_actors and (allocation := self._of_actors.pop(actor, None)) is not None:
            self._free(allocation)

    def _free(self, allocation: Allocation) -> None:
        for name, amount in allocation.amounts.items():
            self._taken[name] -= amount
            if not self._taken[name]:
                del self._taken[name]

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps: for tests and simulations."""
        sums: defaultdict[str, Fraction] = defaultdict(Fraction)
        for allocation in (*self._of_starts, *self._of_actors.values()):
            for name, amount in allocation.amounts.items():
                sums[name] += amount
        for name in sums.keys() | self._taken.keys():
            assert sums[name] == self._taken.get(name, 0), "the sum is that of the allocations"
            has = self._has.get(name, Fraction())
            assert sums[name] <= has + _MORE, f"more {name} is taken than there is"
