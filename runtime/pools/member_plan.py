"""Which members of a pool are started and stopped next, and where. No I/O.

A pool has so many members in all, spread over the nodes, or so many on each node. Nodes that join
get their share; a node that opened the pool, and so drives its work, gets members only if there is
no other.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import attrs

from actors.actor import Actor
from actors.class_names import class_name
from actors.messages import import_path, message
from actors.options import MOST_NAME, CallChanges, SpawnOptions
from actors.retry import check_whole_number
from actors.short_repr import short_repr

GROWTH = 2
"""By which factor one demand may increase the number of members."""

MOST_MEMBERS = 100_000
"""The largest `size`, `per_node` and `min`: each of these members is started, needed or not."""

NAME_ROOM = 35
"""Characters for what the names of members have beside that of their pool:
"/member-<epoch>-<number>", whose two numbers may have 26 digits together.
"""

IDLE_SECONDS = 30.0
"""After so long without demand a pool shrinks to its least size."""


def for_members(options: SpawnOptions) -> SpawnOptions:
    """Return the options. Raises ValueError for those that do not concern members of pools."""
    if options.name is not None:
        raise ValueError(
            "the members of a pool get names of their own: give the pool's name to node.pool"
        )
    for option in CallChanges.__annotations__:
        if getattr(options, option) is not None:
            raise ValueError(
                f"{option} is an option of calls, and not of a pool's members: write "
                f"pool.map(..., {option}=...), or pool.choose().options({option}=...)"
            )
    if options.idempotent:
        raise ValueError(
            "idempotent= is for functions (run), and not for a pool's members: mark their methods "
            "with @method(idempotent=True), or write pool.map(..., "
            "retry=RetryPolicy(repeat_unknown=True))"
        )
    return options


def check_pool_name(name: str) -> None:
    """Raises ValueError for the name of a pool that is too long: its members get names that begin
    with it.
    """
    most = MOST_NAME - NAME_ROOM
    if len(name) > most:
        raise ValueError(
            f"{short_repr(name, 60)} cannot be the name of a pool: it has {len(name)} characters, "
            f"and {most} are possible, as the names of its members begin with it; give the pool a "
            "shorter name"
        )


def check_places(name: object, actor: object) -> None:
    """Raises TypeError if what a pool is of stands in the place of its name."""
    if callable(name) and not isinstance(name, str):
        what = class_name(name) if isinstance(name, type) else short_repr(name)
        size = f"size={actor}" if type(actor) is int else "size=8"
        raise TypeError(
            f"a pool's name, or None, stands before what it is of, and its size has a name: "
            f"pool(None, {what}, {size})"
        )


@message
@attrs.frozen(kw_only=True)
class PoolSize:
    """How many members a pool has: from `least` to `most` in all, or `per_node` on each node.

    Raises TypeError or ValueError for what makes no sense.
    """

    least: int = 0
    most: int = 0
    per_node: int | None = None

    @classmethod
    def of(
        cls,
        size: int | None = None,
        per_node: int | None = None,
        least: int | None = None,
        most: int | None = None,
        has_arguments: bool = False,
    ) -> PoolSize:
        """Make a size from the arguments of users: one of `size`, `per_node`, or `min` and `max`
        together. `has_arguments`: something was given for the members' constructor.
        """
        bound = most if least is None else least
        said = [
            name
            for name, value in (("size", size), ("per_node", per_node), ("min", bound))
            if value is not None
        ]
        for name, value in (("size", size), ("per_node", per_node), ("min", least), ("max", most)):
            if value is not None:
                check_whole_number(name, value)
                if value > MOST_MEMBERS and name != "max":
                    raise ValueError(
                        f"{name} must be at most {MOST_MEMBERS:,}, not {short_repr(value)}: a pool "
                        "starts them all. A pool that grows with its work has min= and max="
                    )
        if len(said) != 1:
            raise ValueError(
                "a pool has one size: give size=8, per_node=1, or min=2 and max=64"
                + (
                    f"; not {' and '.join(said)} together"
                    if said
                    else ". What stands behind the class is for the constructor of the members"
                    if has_arguments
                    else ""
                )
            )
        if per_node is not None:
            if per_node < 1:
                raise ValueError("per_node must be at least 1: a pool without members does no work")
            return cls(per_node=per_node)
        if size is not None:
            if size < 1:
                raise ValueError("size must be at least 1: a pool without members does no work")
            return cls(least=size, most=size)
        if most is None:
            raise ValueError(
                f"min needs a max: give min={least} and max=..., or size={least or 8} "
                "for a pool that keeps its size"
            )
        if most < 1:
            raise ValueError("max must be at least 1: a pool without members does no work")
        least = 1 if least is None else least
        if least > most:
            raise ValueError(f"min must not be above max, and {least} is above {most}")
        return cls(least=least, most=most)

    @property
    def text(self) -> str:
        """The size as people read it."""
        if self.per_node is not None:
            return f"{self.per_node} per node"
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"


@message
@attrs.frozen(kw_only=True)
class PoolSpec:
    """The specification of a pool, for its supervisor. `member`: the class of the members, or its
    path; `function`: what it runs, of a pool of a plain function. `opener`: the node that has
    opened it. `opening`: of a named pool, a text that no other call of `node.pool` has.
    """

    member: str
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = attrs.field(factory=dict)
    options: SpawnOptions = attrs.field(factory=SpawnOptions, converter=for_members)
    size: PoolSize = attrs.field(factory=lambda: PoolSize(least=1, most=1))
    named: bool = False
    opener: str = ""
    function: str = ""
    opening: str = ""

    @property
    def what(self) -> str:
        """The path of its members' class, or of the function that they run."""
        return self.function or self.member

    @staticmethod
    def member_path(actor: object) -> str:
        """The path of the members' class. Raises TypeError for what is no class of actors."""
        if isinstance(actor, type) and issubclass(actor, Actor):
            return import_path(actor)
        raise TypeError(
            "a pool is of a subclass of actors.Actor, or of a plain function, not of "
            f"{short_repr(actor)}"
        )


@attrs.frozen
class MemberChanges:
    """The next changes: the nodes to start a member on, None where the runtime is to choose; and
    the members to stop.
    """

    starts: tuple[str | None, ...] = ()
    stops: tuple[str, ...] = ()


def wanted_members(size: PoolSize, demand: int, nodes: int) -> int:
    """How many members there should be. `demand`: how many the work could use."""
    if size.per_node is not None:
        return size.per_node * nodes
    return max(size.least, min(size.most, demand))


def plan(
    size: PoolSize,
    demand: int,
    nodes: Sequence[str],
    placed: Mapping[str, str | None],
    *,
    opener: str = "",
    free: bool = False,
    busy: Collection[str] = (),
) -> MemberChanges:
    """The next changes. `nodes`: those that members may be on. `placed`: the node of each member,
    those included that are being started. `free`: the runtime chooses the nodes. `busy`: members
    that are not to be stopped for the sake of an even spread, since they are still starting.
    """
    changes = _changes(size, demand, nodes, placed, opener=opener, free=free, busy=busy)
    assert {*changes.starts} <= {*nodes, None}, "members start where they may be"
    assert placed.keys() >= {*changes.stops}, "only members are stopped"
    assert len({*changes.stops}) == len(changes.stops), "a member is stopped once"
    return changes


def _changes(
    size: PoolSize,
    demand: int,
    nodes: Sequence[str],
    placed: Mapping[str, str | None],
    *,
    opener: str,
    free: bool,
    busy: Collection[str],
) -> MemberChanges:
    others = [node for node in nodes if node != opener]
    candidates = others or list(nodes)
    if not candidates:
        return MemberChanges()
    wanted = wanted_members(size, demand, len(candidates))
    if size.per_node is not None:
        return _on_each(size.per_node, candidates, placed)
    missing = wanted - len(placed)
    if missing < 0:
        return MemberChanges(stops=_excess(-missing, candidates, placed))
    if free:
        return MemberChanges(starts=(None,) * missing)
    counts = Counter(dict.fromkeys(candidates, 0))
    counts.update(node for node in placed.values() if node is not None and node in counts)
    starts: list[str | None] = []
    # A heap, the emptiest node first: a large pool is planned on the loop of its node.
    emptiest_first = sorted((count, node) for node, count in counts.items())
    for _ in range(missing):
        count, least = emptiest_first[0]
        heapq.heapreplace(emptiest_first, (count + 1, least))
        starts.append(least)
    if not missing and not busy:
        emptiest = min(candidates, key=lambda node: (counts[node], node))
        is_uneven = max(counts.values()) - counts[emptiest] > 1
        # The opener has members from when it was the only node; it needs its processors itself.
        is_misplaced = bool(others) and opener in placed.values()
        if is_uneven or is_misplaced:
            # One more than wanted for a moment: the next plan stops one where there are most.
            starts.append(emptiest)
    return MemberChanges(starts=tuple(starts))


def _on_each(
    per_node: int, candidates: Sequence[str], placed: Mapping[str, str | None]
) -> MemberChanges:
    counts = Counter(node for node in placed.values() if node is not None)
    starts = [node for node in candidates for _ in range(max(0, per_node - counts[node]))]
    stops: list[str] = []
    seen: Counter[str] = Counter()
    for member, node in placed.items():
        if node is None:
            continue
        seen[node] += 1
        if node not in candidates or seen[node] > per_node:
            stops.append(member)
    return MemberChanges(tuple(starts), tuple(stops))


def _excess(
    count: int, candidates: Sequence[str], placed: Mapping[str, str | None]
) -> tuple[str, ...]:
    """The members to stop: first those that are where none should be, then the latest where there
    are most.
    """
    where = {*candidates}
    stops = [member for member, node in placed.items() if node not in where]
    stops.reverse()
    del stops[count:]
    by_node: dict[str, list[str]] = {}
    for member, node in placed.items():
        if node is not None and node in where:
            by_node.setdefault(node, []).append(member)
    # A heap, the fullest node first.
    fullest_first = sorted((-len(members), node) for node, members in by_node.items())
    while len(stops) < count:
        negative, fullest = fullest_first[0]
        heapq.heapreplace(fullest_first, (negative + 1, fullest))
        stops.append(by_node[fullest].pop())
    assert len(stops) == count, "as many members stay as are wanted"
    return tuple(stops)
