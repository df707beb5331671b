"""Assign ranks to the workers of a round, without I/O. The ranks of the rendezvous say which agents
came; the ranks assigned here stay the same from round to round if possible.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import attrs

from runtime.rendezvous.parameters import RendezvousStateError


@attrs.frozen
class RankedAgent:
    """The report of an agent about itself at the start of a round. `previous`: its group rank in
    the round before, or None.
    """

    name: str
    role: str
    local_world_size: int
    previous: int | None = None


@attrs.frozen
class AgentRanks:
    """The part of one agent in a round: of the group of agents, of all workers, and of the workers
    of its role.

    `base_rank` and `role_base_rank` are those of its first worker.
    """

    name: str
    group_rank: int
    local_world_size: int
    base_rank: int
    role_base_rank: int
    role_world_size: int


@attrs.frozen
class RankAssignment:
    """A round as one agent sees it: the places of all agents, in the order of group ranks, its own,
    and the address of rank 0.

    `restarts`: the restarts that were counted for the job so far. `master_address` and
    `master_port` are set by `at`.
    """

    round: int
    own: AgentRanks
    places: tuple[AgentRanks, ...]
    world_size: int
    restarts: int = 0
    master_address: str = ""
    master_port: int = 0

    @property
    def group_world_size(self) -> int:
        """The number of agents in the round."""
        return len(self.places)

    @property
    def participants(self) -> tuple[str, ...]:
        """Names of the agents in the order of group ranks."""
        return tuple(place.name for place in self.places)

    def rank_of(self, local_rank: int) -> int:
        """Return the global rank of one of this agent's workers."""
        return self.own.base_rank + local_rank

    def at(self, address: str, port: int) -> RankAssignment:
        """Return a copy in which rank 0 listens at `address`."""
        return attrs.evolve(self, master_address=address, master_port=port)

    def same_ranks(self, other: RankAssignment) -> bool:
        """Return True if this agent's workers have the same ranks in a world of the same size."""
        return (attrs.evolve(self.own, name=""), self.world_size) == (
            attrs.evolve(other.own, name=""),
            other.world_size,
        )

    def same_master(self, other: RankAssignment) -> bool:
        """Return True if rank 0 has the same address and port."""
        return (self.master_address, self.master_port) == (other.master_address, other.master_port)


def assign(members: Sequence[RankedAgent]) -> tuple[AgentRanks, ...]:
    """Assign the places of a round, in the order of group ranks. `members` are in the order of
    their rendezvous ranks.

    An agent that took part in the round before keeps its group rank if that is still within range;
    of two claims for a rank the first wins. The other agents fill the gaps. So a spare that
    replaces an agent gets exactly its rank, and no other rank changes.
    """
    by_group_rank: list[RankedAgent | None] = [None] * len(members)
    others: list[RankedAgent] = []
    for member in members:
        wanted = member.previous
        if wanted is not None and 0 <= wanted < len(members) and by_group_rank[wanted] is None:
            by_group_rank[wanted] = member
        else:
            others.append(member)
    waiting = iter(others)
    in_order = [member if member is not None else next(waiting) for member in by_group_rank]
    role_sizes: dict[str, int] = {}
    for member in in_order:
        role_sizes[member.role] = role_sizes.get(member.role, 0) + member.local_world_size
    places: list[AgentRanks] = []
    base = 0
    role_bases = dict.fromkeys(role_sizes, 0)
    for group_rank, member in enumerate(in_order):
        places.append(
            AgentRanks(
                member.name,
                group_rank,
                member.local_world_size,
                base,
                role_bases[member.role],
                role_sizes[member.role],
            )
        )
        base += member.local_world_size
        role_bases[member.role] += member.local_world_size
    assert next(waiting, None) is None, "each agent has a place"
    assert role_bases == role_sizes, "ranks within a role have no gaps"
    assert base == sum(member.local_world_size for member in members), "nor have those of all"
    return tuple(places)


def encode_member(member: RankedAgent) -> bytes:
    """Encode an agent's description as it is written to the round's store."""
    return json.dumps(attrs.asdict(member)).encode()


def decode_member(value: bytes) -> RankedAgent:
    """Decode what `encode_member` wrote. Raises `RendezvousStateError`."""
    try:
        fields = json.loads(value)
        previous = fields["previous"]
        return RankedAgent(
            str(fields["name"]),
            str(fields["role"]),
            int(fields["local_world_size"]),
            None if previous is None else int(previous),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise RendezvousStateError(
            f"an agent's description of itself in the round's store is malformed: {error}"
        ) from error


def encode_places(places: Sequence[AgentRanks], restarts: int) -> bytes:
    """Encode the ranks of a round as its first agent writes them to the round's store."""
    return json.dumps(
        {"restarts": restarts, "places": [attrs.astuple(place) for place in places]}
    ).encode()


def decode_places(value: bytes, round_: int, name: str) -> RankAssignment:
    """Decode what `encode_places` wrote, for the agent called `name`. Raises
    `RendezvousStateError`.
    """
    try:
        fields = json.loads(value)
        places = tuple(
            AgentRanks(str(each[0]), *(int(number) for number in each[1:]))
            for each in fields["places"]
        )
        own = next(place for place in places if place.name == name)
        return RankAssignment(
            round_,
            own,
            places,
            sum(place.local_world_size for place in places),
            int(fields["restarts"]),
        )
    except StopIteration:
        raise RendezvousStateError(
            f"round {round_} has no ranks for {name}, which takes part in it"
        ) from None
    except (
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        OverflowError,
        RecursionError,
    ) as error:
        raise RendezvousStateError(
            f"the ranks of round {round_} in the round's store are malformed: {error}"
        ) from error
