"""Placement: chooses a node for an actor. Of the nodes that meet its requirements, the one with the
fewest actors, or with the most. No I/O.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import attrs

from actors.actor import Member
from actors.errors import (
    NodeDrainingError,
    NodeNotFoundError,
    NodeUnreachableError,
    NoPlacementError,
)
from actors.identifiers import NodeId
from actors.options import SpawnOptions
from runtime.hosting.allocations import TOLERANCE, left_of

CALLS_ONLY = "understudy.calls-only"
"""The label of nodes that only make calls, such as those of scripts (`runtime.blocking`): they get
only actors that name them with `on=`.
"""


REASONS_SHOWN = 5
"""Of how many nodes an error says why they do not fit."""

NEXT_STEP = "; stop an actor that takes it, or start a node that has more"
"""The advice of errors about resources that are taken."""

NO_TURNS: Mapping[NodeId, int] = MappingProxyType({})

NO_REFUSALS: Refusals = MappingProxyType({})

NO_LOADS: Mapping[NodeId, NodeLoad] = MappingProxyType({})


class Turns(dict[NodeId, int]):
    """When each node was chosen last: a number that grows with each choice of this node."""

    def __init__(self) -> None:
        super().__init__()
        self._latest = 0

    def on_chosen(self, chosen: Iterable[Member], members: Sequence[Member]) -> None:
        """These were chosen, in this order, of `members`: other nodes are forgotten."""
        for member in chosen:
            self._latest += 1
            self[member.node_id] = self._latest
        if len(self) > 2 * len(members):
            for gone in self.keys() - {member.node_id for member in members}:
                del self[gone]


@attrs.frozen
class StartRefusal:
    """Why a node has not started an actor: a sentence that names the node. `is_full`: less of a
    resource is left there than the actor takes; False for a node that leaves or is out of reach.
    """

    text: str
    is_full: bool = True


Refusals = Mapping[NodeId, StartRefusal]
"""The nodes that have refused to start an actor: each knows best what is left of its resources
(`runtime.hosting.allocations`), and whether it leaves. They are not asked again for the same actor.
"""


def refusal_of(error: BaseException, options: SpawnOptions) -> StartRefusal | None:
    """Return what the error of a start says about its node, if it says nothing about other nodes,
    and the actor may be started on one of them; else None. This alone decides that, for all ways to
    start actors.
    """
    if isinstance(error, NoPlacementError):
        return StartRefusal(str(error))
    # Certainly not started there. What has begun, a node that leaves has ended before it says so.
    if options.on is None and isinstance(error, NodeDrainingError | NodeUnreachableError):
        return StartRefusal(str(error), is_full=False)
    return None


@attrs.define
class NodeLoad:
    """The load of a node: actors and resources."""

    actors: int = 0
    taken: dict[str, float] = attrs.field(factory=dict)


def choose_node(
    members: Sequence[Member],
    options: SpawnOptions,
    loads: Mapping[NodeId, NodeLoad],
    draw: float,
    turns: Mapping[NodeId, int] = NO_TURNS,
    refusals: Refusals = NO_REFUSALS,
) -> Member:
    """Return the member to place an actor on. Of nodes with equal loads, "pack" takes the one that
    was chosen last, and otherwise the one whose last choice is the longest ago (`turns`); `draw` in
    [0, 1) breaks ties of these. No node of `refusals` fits. Raises `NodeNotFoundError` if `on`
    names a node that is no member, `NoPlacementError` if no node meets the requirements.
    """
    members = _eligible(members, options)
    fitting = [member for member in members if not _lacks(member, options, loads, refusals)]
    if not fitting:
        # Those first that have refused: what they say is certain.
        members = sorted(members, key=lambda member: member.node_id not in refusals)
        reasons = "; ".join(
            refusals[member.node_id].text
            if member.node_id in refusals
            else f"{member.name} {_lacks(member, options, loads, refusals)}"
            for member in members[:REASONS_SHOWN]
        )
        others = len(members) - REASONS_SHOWN
        more = f"; and {others} more" if others > 0 else ""
        next_step = NEXT_STEP if any(one.is_full for one in refusals.values()) else ""
        raise NoPlacementError(
            f"no node fits {options.name or 'the actor'}: {reasons}{more}{next_step}",
            actor=options.name,
        )
    counts = {
        member.name: loads[member.node_id].actors if member.node_id in loads else 0
        for member in fitting
    }
    extreme = max if options.placement == "pack" else min
    wanted = extreme(counts.values())
    best = [member for member in fitting if counts[member.name] == wanted]
    # Actors without names are no load, because the store does not know them: turns spread them.
    turn = extreme(turns.get(member.node_id, 0) for member in best)
    best = [member for member in best if turns.get(member.node_id, 0) == turn]
    return best[int(draw * len(best))]


def _eligible(members: Sequence[Member], options: SpawnOptions) -> Sequence[Member]:
    """Return the members that may be chosen at all. Raises what `choose_node` raises if there are
    none.
    """
    if options.on is not None:
        named = [member for member in members if member.name == options.on]
        if not named:
            known = ", ".join(member.name for member in members)
            raise NodeNotFoundError(
                f"there is no node called {options.on!r} in the cluster; its nodes are: {known}",
                node=options.on,
            )
        return named
    if not any(member.state == "up" for member in members):
        leaving = [member.name for member in members if member.state == "draining"]
        more = f" and {len(leaving) - REASONS_SHOWN} more" if len(leaving) > REASONS_SHOWN else ""
        which = f": {', '.join(leaving[:REASONS_SHOWN])}{more} leave in order" if leaving else ""
        raise NoPlacementError(f"no node of the cluster is up{which}", actor=options.name)
    members = [
        member for member in members if member.state == "up" and CALLS_ONLY not in member.labels
    ]
    if not members:
        raise NoPlacementError(
            "all nodes of the cluster that are up are clients (scripts), which only make calls; "
            "start a node with `understudy node`, or name one of them with on=",
            actor=options.name,
        )
    return members


def fits_somewhere(
    members: Sequence[Member], options: SpawnOptions, loads: Mapping[NodeId, NodeLoad]
) -> bool:
    """Return True if `choose_node` would return a member."""
    return any(
        not _lacks(member, options, loads, NO_REFUSALS)
        for member in members
        if (
            member.name == options.on
            if options.on is not None
            else member.state == "up" and CALLS_ONLY not in member.labels
        )
    )


def check_candidate(member: Member, options: SpawnOptions) -> None:
    """Raise NoPlacementError if the member may not run an actor with these options whatever is left
    of its resources.
    """
    lacks = _lacks(member, attrs.evolve(options, resources={}), NO_LOADS, NO_REFUSALS)
    if options.on not in (None, member.name):
        lacks = f"is not {options.on}, on which alone {options.name} may run"
    if lacks:
        raise NoPlacementError(f"node {member.name} {lacks}", actor=options.name, node=member.name)


def nearest_node(
    members: Sequence[Member],
    options: SpawnOptions,
    loads: Mapping[NodeId, NodeLoad],
    draw: float,
    refusals: Refusals,
) -> Member | None:
    """Return the member that lacks the least of the resources, of those that would fit if nothing
    was taken there: some of what was taken may be free again, and be reported later. None if there
    is none. Raises what `choose_node` raises where no member may be chosen at all.
    """
    lacking = {
        member.node_id: _shortage(member, options, loads.get(member.node_id))
        for member in _eligible(members, options)
        if not _lacks(member, options, NO_LOADS, refusals)
    }
    if not lacking:
        return None
    least = min(lacking.values())
    best = [member for member in members if lacking.get(member.node_id) == least]
    return best[int(draw * len(best))]


def _shortage(member: Member, options: SpawnOptions, load: NodeLoad | None) -> float:
    """Return the greatest part of an amount that the member lacks."""
    taken = load.taken if load is not None else {}
    return max(
        (
            1.0 - (member.resources.get(name, 0.0) - taken.get(name, 0.0)) / amount
            for name, amount in options.resources.items()
            if amount
        ),
        default=0.0,
    )


def refused_by_many(options: SpawnOptions, refusals: Refusals) -> NoPlacementError:
    """Make the error of a start for which no further nodes are asked."""
    reasons = "; ".join(one.text for one in tuple(refusals.values())[:REASONS_SHOWN])
    is_full = any(one.is_full for one in refusals.values())
    return NoPlacementError(
        f"{options.name or 'the actor'} was not started: {len(refusals)} nodes were asked, and "
        f"none {'had room for' if is_full else 'could start'} it: {reasons}; "
        f"and {len(refusals) - REASONS_SHOWN} more{NEXT_STEP if is_full else ''}",
        actor=options.name,
    )


def spread_over(
    members: Sequence[Member],
    options: SpawnOptions,
    loads: Mapping[NodeId, NodeLoad],
    count: int,
    random: Callable[[], float],
    turns: Mapping[NodeId, int] = NO_TURNS,
    refusals: Refusals = NO_REFUSALS,
) -> list[Member]:
    """Return the nodes for `count` actors with these options, chosen one after the other: each
    actor counts as load for the next. Raises what `choose_node` raises if one fits nowhere.
    """
    if options.resources:
        return as_many_as_fit(members, options, loads, count, random, refusals, least=count)
    first = choose_node(members, options, loads, random(), turns, refusals)
    if options.on is not None or options.placement == "pack":
        return [first] * count
    # Without resources all nodes that fit now will fit: only the numbers of actors change.
    queue = [
        (
            loads[member.node_id].actors if member.node_id in loads else 0,
            turns.get(member.node_id, 0),
            random(),
            place,
        )
        for place, member in enumerate(members)
        if member.state == "up"
        and CALLS_ONLY not in member.labels
        and not _lacks(member, options, loads, refusals)
    ]
    heapq.heapify(queue)
    chosen: list[Member] = []
    for _ in range(count):
        actors, turn, draw, place = queue[0]
        chosen.append(members[place])
        heapq.heapreplace(queue, (actors + 1, turn, draw, place))
    return chosen


def as_many_as_fit(
    members: Sequence[Member],
    options: SpawnOptions,
    loads: Mapping[NodeId, NodeLoad],
    count: int,
    random: Callable[[], float],
    refusals: Refusals = NO_REFUSALS,
    *,
    least: int = 1,
) -> list[Member]:
    """Return the nodes for `count` actors that take resources, chosen one after the other, or for
    fewer if there is no room for all. Raises what `choose_node` raises if fewer than `least` fit.
    """
    present = dict(loads)
    chosen: list[Member] = []
    for _ in range(count):
        try:
            member = choose_node(members, options, present, random(), refusals=refusals)
        except NoPlacementError:
            if len(chosen) < least:
                raise
            break
        before = present.get(member.node_id, NodeLoad())
        taken = dict(before.taken)
        for name, amount in options.resources.items():
            taken[name] = taken.get(name, 0.0) + amount
        present[member.node_id] = NodeLoad(before.actors + 1, taken)
        chosen.append(member)
    return chosen


def _lacks(
    member: Member,
    options: SpawnOptions,
    loads: Mapping[NodeId, NodeLoad],
    refusals: Refusals,
) -> str:
    """Describe what the member lacks; "" if nothing."""
    if member.node_id in refusals:
        return refusals[member.node_id].text
    for key, value in options.labels.items():
        if member.labels.get(key) != value:
            return f"does not carry the label {key}={value}"
    load = loads.get(member.node_id)
    for name, amount in options.resources.items():
        has = member.resources.get(name, 0.0)
        left = has - (load.taken.get(name, 0.0) if load is not None else 0.0)
        # As the node itself decides.
        if left < amount - TOLERANCE:
            return f"has {left_of(name, left, has)}, and {amount:g} is asked for"
    return ""


# The loads of all nodes, as one node knows them: read from the names before a placement, and kept
# up to date by the changes of the names.
#
# A start that was placed counts before its name is claimed: otherwise starts that are placed at the
# same moment would all go to one node.


@attrs.frozen
class PlacedActor:
    """A named actor: its node, the resources that it allocates, and the revision of this
    information.
    """

    node: NodeId
    resources: Mapping[str, float]
    revision: int


class NodeLoads:
    """The loads of all nodes: one entry for each node with a named actor. `known`: from `fill`
    until `forget`. Changes are counted from `expect` on.
    """

    def __init__(self) -> None:
        self.known = False
        self.of: dict[NodeId, NodeLoad] = {}
        self._missed = 0
        self._expected = False
        self._carried: dict[str, PlacedActor] = {}
        self._gone: dict[str, int] = {}
        self.freed = 0
        """How often resources were given back. A placement that found none waits for the next."""
        self._stopped: dict[str, float] = {}
        """Names whose actors were stopped before their claims were reported, until their releases
        are: the claims must not count then. The revision of the release, or one that is not above
        it; infinite for a name that no other actor gets.
        """
        self._placed: dict[str, tuple[NodeId, Mapping[str, float]]] = {}

    @property
    def counts_changes(self) -> bool:
        """True from `expect` until `forget`: changes before that are of no use."""
        return self._expected

    def expect(self) -> int:
        """Count changes from now on, because all names are about to be read. Returns the number to
        pass to `fill`.
        """
        self._expected = True
        return self._missed

    def fill(self, names: Iterable[tuple[str, PlacedActor]], expected: int) -> None:
        """Enter all names, as they were read after `expect` had returned `expected`. Later changes
        that were seen meanwhile stay.

        Does nothing if the loads are known already, because releases that were seen since then are
        not recorded, or if changes were missed since `expect`.
        """
        # If changes were missed since `expect`, this answer may be older than what is known.
        if self.known or expected != self._missed:
            return
        for name, carried in names:
            self.put(name, carried)
        self.known = True
        self._gone.clear()

    def put(self, name: str, carried: PlacedActor) -> None:
        """Count an actor that has the name."""
        if not self._expected:
            return
        before = self._carried.get(name)
        known_until = max(
            before.revision if before is not None else 0,
            self._gone.get(name, 0),
            self._stopped.get(name, 0),
        )
        if known_until >= carried.revision:
            return
        self._remove(name)
        self.on_settled(name)
        self._carried[name] = carried
        self._add(carried.node, carried.resources)

    def on_gone(self, name: str, revision: int) -> None:
        """Note that no actor has the name since this revision."""
        if not self._expected:
            return
        stopped = self._stopped.get(name)
        if stopped is not None and (stopped <= revision or stopped == math.inf):
            del self._stopped[name]
        before = self._carried.get(name)
        if before is None or before.revision < revision:
            self._remove(name)
            if not self.known:
                # The names that are being read may be older than this release, and contain it.
                self._gone[name] = revision

    def on_stopped(self, name: str, revision: int) -> None:
        """Like `on_gone`, for an actor whose claim of the name, before this revision, has not been
        reported yet.
        """
        if not self._expected:
            return
        before = self._carried.get(name)
        if before is None or before.revision < revision:
            self._remove(name)
            # Bounded by the changes that are about to be reported: each of these takes one out.
            self._stopped[name] = max(revision, self._stopped.get(name, 0))

    def on_over(self, name: str) -> None:
        """Like `on_stopped`, between `on_placed` and `on_settled`, for an actor whose revision is
        not known, and whose name no other actor gets.
        """
        carried = self._carried.get(name)
        if carried is not None:
            self.on_stopped(name, carried.revision + 1)
        elif name in self._placed:
            self.on_settled(name)
            if self._expected:
                self._stopped[name] = math.inf

    def on_placed(self, name: str, node: NodeId, resources: Mapping[str, float]) -> None:
        """An actor of this name is about to start on that node."""
        self.on_settled(name)
        if name not in self._carried:
            self._placed[name] = (node, resources)
            self._add(node, resources)

    def on_settled(self, name: str) -> None:
        """The start of this name has succeeded or failed."""
        found = self._placed.pop(name, None)
        if found is not None:
            self._take(*found)

    def on_refused(self, name: str) -> None:
        """Like `on_settled`, for a start for which its node had no room: it gives nothing back."""
        freed = self.freed
        self.on_settled(name)
        self.freed = freed

    def forget(self) -> None:
        """Drop all loads but those of starts, because changes were missed."""
        self.known = False
        self._expected = False
        self._missed += 1
        self._carried.clear()
        self._gone.clear()
        self._stopped.clear()
        # A new table: `ActorPlacement.place` may still use the old one.
        self.of = {}
        self.freed += 1
        for node, resources in self._placed.values():
            self._add(node, resources)

    def with_names(self, names: Iterable[tuple[str, PlacedActor]]) -> Mapping[NodeId, NodeLoad]:
        """Return the loads of all nodes, of names that were read now and the starts that are known
        here. This table stays as it is.
        """
        read = NodeLoads()
        read.fill(names, read.expect())
        for name, (node, resources) in self._placed.items():
            read.on_placed(name, node, resources)
        return read.of

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps. Looks at all names: for tests and
        simulations.
        """
        ends = self._gone or self._stopped
        assert self._expected or not (self._carried or ends or self.known)
        assert not self.known or not self._gone, "ends are kept only until all names are known"
        assert self._carried.keys().isdisjoint(self._placed), "a start counts once"
        for name, revision in (*self._gone.items(), *self._stopped.items()):
            assert name not in self._carried or revision < self._carried[name].revision
        nodes = [carried.node for carried in self._carried.values()]
        nodes += [node for node, _ in self._placed.values()]
        assert Counter(nodes) == {node: load.actors for node, load in self.of.items()}
        # Amounts like 0.1 do not add up exactly.
        assert all(left >= -1e-6 for load in self.of.values() for left in load.taken.values())

    def _remove(self, name: str) -> None:
        carried = self._carried.pop(name, None)
        if carried is not None:
            self._take(carried.node, carried.resources)

    def _add(self, node: NodeId, resources: Mapping[str, float]) -> None:
        load = self.of.setdefault(node, NodeLoad())
        load.actors += 1
        for name, amount in resources.items():
            load.taken[name] = load.taken.get(name, 0.0) + amount

    def _take(self, node: NodeId, resources: Mapping[str, float]) -> None:
        load = self.of[node]
        load.actors -= 1
        assert load.actors >= 0, "only what was added is taken away"
        self.freed += bool(resources)
        for name, amount in resources.items():
            load.taken[name] -= amount
        if not load.actors:
            del self.of[node]
