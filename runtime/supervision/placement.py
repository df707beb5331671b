"""Where an actor goes: of the nodes that meet what it asks for, the one with the fewest actors, or with the most. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from actors.errors import NodeNotFoundError, NoPlacementError
from actors.node import Member
from actors.options import SpawnOptions

Identity = tuple[str, int]


@attrs.define
class Load:
    """What a node carries already."""

    actors: int = 0
    taken: dict[str, float] = attrs.field(factory=dict)


def choose_node(members: Sequence[Member], options: SpawnOptions, loads: Mapping[Identity, Load], draw: float) -> Member:
    """The member to place an actor on; `draw` in [0, 1) breaks ties.

    Raises `NodeNotFoundError` if it must be on a node that is no member, `NoPlacementError` if no node meets what it asks for.
    """
    if options.on is not None:
        named = [member for member in members if member.name == options.on]
        if not named:
            known = ", ".join(member.name for member in members)
            raise NodeNotFoundError(f"there is no node called {options.on!r} in the cluster; its nodes are: {known}", node=options.on)
        members = named
    elif not any(member.state == "up" for member in members):
        raise NoPlacementError("no node of the cluster is up", actor=options.name)
    else:
        members = [member for member in members if member.state == "up"]
    fitting = [member for member in members if not _lacks(member, options, loads)]
    if not fitting:
        reasons = "; ".join(f"{member.name} {_lacks(member, options, loads)}" for member in members[:5])
        more = f"; and {len(members) - 5} more" if len(members) > 5 else ""
        raise NoPlacementError(f"no node fits {options.name or 'the actor'}: {reasons}{more}", actor=options.name)
    counts = {member.name: loads[_identity(member)].actors if _identity(member) in loads else 0 for member in fitting}
    wanted = max(counts.values()) if options.placement == "pack" else min(counts.values())
    best = [member for member in fitting if counts[member.name] == wanted]
    return best[int(draw * len(best))]


def _identity(member: Member) -> Identity:
    return member.name, member.incarnation


def _lacks(member: Member, options: SpawnOptions, loads: Mapping[Identity, Load]) -> str:
    """What the member has not, in words; "" if nothing."""
    for key, value in options.labels.items():
        if member.labels.get(key) != value:
            return f"does not carry the label {key}={value}"
    load = loads.get(_identity(member))
    for name, amount in options.resources.items():
        left = member.resources.get(name, 0.0) - (load.taken.get(name, 0.0) if load is not None else 0.0)
        # A thousandth of a thousandth: amounts like 0.1 do not add up exactly.
        if left < amount - 1e-6:
            return f"has {max(left, 0.0):g} {name} left of {member.resources.get(name, 0.0):g}, and {amount:g} is asked for"
    return ""
