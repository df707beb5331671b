"""The decisions of a rendezvous: which agents take part in which round, with which ranks. States
and the time in, states out; no I/O.

The transitions are functions from one state to the next, written by the agent that comes first:
each write names the revision that it replaces. No state holds a time. An agent that waits measures
by its own clock from when it saw what it waits for, so clocks of hosts are never compared.
Heartbeats are in no state: an agent is alive while its own record, tied to its lease, exists.

A round is open until it has enough participants and its last call is over, or as many as may be.
Then it is complete: its roster does not change any more. It ends when all of its participants have
left or died, and then the next one opens, for those who wait.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import quote

import attrs

from runtime.environment import Process
from runtime.rendezvous.interface import RendezvousChange
from runtime.rendezvous.parameters import RendezvousStateError, RendezvousTimeout

# The records of a rendezvous in the store: one of who takes part, and one for each agent. Plain
# data; encoding and decoding; no I/O.
#
# They are JSON, so that an operator can read them with the store's own tools. A malformed record is
# refused as a whole.

SCHEMA = 1


LISTS = ("participants", "waiting", "spares", "roster")

FailureKind = Literal["closed", "finished", "not needed", "timeout", "mismatch", "rank taken"]


@attrs.frozen
class State:
    """The state of a rendezvous.

    `life`: drawn when the record is made. It distinguishes a record that was lost and created again
    from the first one. `lease`: the job's data is tied to it. `participants`: the agents of the
    open round, or those that are still in the complete one. `waiting`: the agents that join the
    next round. `spares`: the agents beyond `max_nodes`. `roster`: names by rank, of the latest
    complete round. `call`: the number of the last call that is running, 0 if none is; `calls`
    counts them. `wanted`: ranks that agents have asked for. `closed`: the reason, or "" while it is
    open; `finished`: it was closed because the job has finished.
    """

    min_nodes: int
    max_nodes: int
    life: str
    lease: int
    round: int = 0
    complete: bool = False
    participants: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    roster: tuple[str, ...] = ()
    call: int = 0
    calls: int = 0
    wanted: dict[str, int] = attrs.field(factory=dict)
    closed: str = ""
    finished: bool = False

    def __contains__(self, name: str) -> bool:
        return name in self.participants or name in self.waiting or name in self.spares


@attrs.frozen
class AgentRecord:
    """An agent, as it is registered. By `process`, other agents on its host see that it has ended;
    they revoke `lease` then.
    """

    process: Process
    lease: int


class Keys:
    """The keys of the records of one job."""

    def __init__(self, run_id: str) -> None:
        self.root = f"rendezvous/{quote(run_id, safe='')}/"
        self.control = self.root + "control/"
        """What agents follow."""
        self.state = self.control + "state"
        self.agents = self.control + "agents/"
        self.rounds = self.root + "rounds/"
        self.job = self.root + "job/"

    def agent(self, name: str) -> str:
        """The record of an agent, tied to its lease."""
        return self.agents + name

    def round(self, round: int) -> str:
        """The prefix of the store of the round."""
        return f"{self.rounds}{round}/"

    def round_of(self, key: str) -> int:
        """Return the round whose store contains the key."""
        return int(key.removeprefix(self.rounds).partition("/")[0])

    def fence(self, round: int) -> str:
        """The fence of a round: a key that exists from when the round is complete until the next
        one opens. Its value is the life of the state.
        """
        return self.round(round) + "open"


def encode_state(state: State) -> bytes:
    """Encode the record."""
    found = attrs.asdict(state)
    # Before it is written, not when the next agent reads it: a record that cannot be read would
    # stop all agents of the job.
    _check(found)
    return json.dumps({"schema": SCHEMA, **found}, separators=(",", ":")).encode()


def decode_state(data: bytes, where: str) -> State:
    """Decode what `encode_state` has made. Raises `RendezvousStateError`, naming the key, for
    anything else.
    """
    try:
        found: dict[str, Any] = _mapping(json.loads(data))
        schema = found.pop("schema", None)
        if schema != SCHEMA:
            raise ValueError(f"its schema is {schema!r}, and this version knows {SCHEMA}")
        for name in LISTS:
            found[name] = tuple(found[name])
        _check(found)
        state = State(**found)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RendezvousStateError(
            f"the record of the rendezvous at {where!r} cannot be understood ({error}); delete "
            "it, or give the job another id"
        ) from None
    return state


def encode_agent(record: AgentRecord) -> bytes:
    """Encode the record."""
    return json.dumps(attrs.asdict(record), separators=(",", ":")).encode()


def decode_agent(data: bytes, where: str) -> AgentRecord:
    """Decode what `encode_agent` has made. Raises `RendezvousStateError`, naming the key, for
    anything else.
    """
    try:
        found = _mapping(json.loads(data))
        process = Process(**found["process"])
        if not isinstance(found["lease"], int) or not isinstance(process.pid, int):
            raise ValueError("its lease or its pid is not a number")
        return AgentRecord(process, found["lease"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RendezvousStateError(
            f"the record of an agent at {where!r} cannot be understood ({error}); delete it"
        ) from None


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"it is not a mapping but a {type(value).__name__}")
    return cast("dict[str, Any]", value)


def _check(found: dict[str, Any]) -> None:
    """Check the types, and the invariants of every state."""
    for name in ("min_nodes", "max_nodes", "lease", "round", "call", "calls"):
        if type(found[name]) is not int or found[name] < 0:
            raise ValueError(f"{name} is not a count")
    for name, kind in (("complete", bool), ("life", str), ("closed", str), ("finished", bool)):
        if type(found[name]) is not kind:
            raise ValueError(f"{name} is not a {kind.__name__}")
    for name in LISTS:
        if not all(isinstance(one, str) for one in found[name]):
            raise ValueError(f"{name} are not names")
    everyone = (*found["participants"], *found["waiting"], *found["spares"])
    if len(set(everyone)) != len(everyone) or len(set(found["roster"])) != len(found["roster"]):
        raise ValueError("it has an agent twice")
    if not all(type(rank) is int for rank in _mapping(found["wanted"]).values()):
        raise ValueError("the wanted ranks are not whole numbers")
    if found["finished"] and not found["closed"]:
        raise ValueError("it is finished but not closed")
    if not 1 <= found["min_nodes"] <= found["max_nodes"]:
        raise ValueError(f"{found['min_nodes']} to {found['max_nodes']} nodes is not a range")
    if found["complete"] and not set(found["participants"]) <= set(found["roster"]):
        raise ValueError("a participant has no rank")


@attrs.frozen
class StateWrite:
    """Replace the state that was read by this one."""

    state: State


@attrs.frozen
class Wait:
    """Wait until the state or the agents change, or until the time `until`."""

    until: float


@attrs.frozen
class Finish:
    """The agent takes part in a round that is complete: that of `state`."""

    state: State
    rank: int


@attrs.frozen
class Fail:
    """The agent's attempt to join has failed. `text` says why."""

    kind: FailureKind
    text: str


Decision = StateWrite | Wait | Finish | Fail


def join(state: State, name: str, wanted: int | None = None) -> State:
    """Add an agent: to this round if it is open, otherwise to the next. An agent of the complete
    round leaves that round. `wanted`: its fixed rank, if it has one.
    """
    if state.closed or (name in state and not (state.complete and name in state.participants)):
        return state
    ranks = state.wanted if wanted is None else {**state.wanted, name: wanted}
    if name in state.participants:
        # It took part before, so newcomers must not make it a spare.
        return _settled(
            attrs.evolve(
                state,
                participants=_without(state.participants, [name]),
                waiting=(*state.waiting, name),
            )
        )
    if state.complete and len(state.participants) + len(state.waiting) >= state.max_nodes:
        return attrs.evolve(state, spares=(*state.spares, name), wanted=ranks)
    return _settled(attrs.evolve(state, waiting=(*state.waiting, name), wanted=ranks))


def leave(state: State, names: Collection[str]) -> State:
    """Remove agents that have left or died."""
    if not any(name in state for name in names):
        return state
    return _settled(
        attrs.evolve(
            state,
            participants=_without(state.participants, names),
            waiting=_without(state.waiting, names),
            spares=_without(state.spares, names),
            wanted={name: rank for name, rank in state.wanted.items() if name not in names},
        )
    )


def remove_dead(state: State, alive: Collection[str]) -> State:
    """Remove the agents whose names are not in `alive`."""
    return leave(
        state,
        [
            name
            for name in (*state.participants, *state.waiting, *state.spares)
            if name not in alive
        ],
    )


def complete(state: State) -> State:
    """Begin the round with the agents that have joined."""
    assert not state.complete, "the roster of a complete round does not change"
    roster = _ranked(state.participants, state.roster, state.wanted)
    assert sorted(roster) == sorted(state.participants), "each participant has one rank"
    return attrs.evolve(state, complete=True, call=0, roster=roster, participants=roster)


def close(state: State, reason: str, *, finished: bool = False) -> State:
    """Close the rendezvous: no round follows. The first reason stays."""
    return (
        state
        if state.closed
        else attrs.evolve(state, closed=reason or "no reason was given", finished=finished)
    )


def reopen(state: State) -> State:
    """Open the rendezvous again; agents that waited before have to join again."""
    return _settled(attrs.evolve(state, closed="", finished=False)) if state.closed else state


def _settled(state: State) -> State:
    """Apply what follows from the agents that have joined."""
    if state.closed:
        return state
    if state.complete and not state.participants:
        state = attrs.evolve(state, round=state.round + 1, complete=False, call=0)
    assert state.participants or not state.complete, "a round without participants is over"
    if state.complete:
        # A free place goes to a spare: it counts as waiting from now on, and the agents of the
        # round learn of it.
        places = max(0, state.max_nodes - len(state.participants) - len(state.waiting))
        return attrs.evolve(
            state, waiting=(*state.waiting, *state.spares[:places]), spares=state.spares[places:]
        )
    # Agents of the round before come first, then the others in the order of arrival.
    before = [name for name in state.waiting if name in state.roster]
    queue = (*before, *_without(state.waiting, before), *state.spares)
    places = max(0, state.max_nodes - len(state.participants))
    state = attrs.evolve(
        state,
        participants=(*state.participants, *queue[:places]),
        waiting=(),
        spares=queue[places:],
    )
    assert not state.spares or len(state.participants) >= state.max_nodes, (
        "no spare waits while a place is free"
    )
    if len(state.participants) == state.max_nodes:
        return complete(state)
    if len(state.participants) < state.min_nodes:
        return attrs.evolve(state, call=0)
    # A new number for each call, so that one that was cut short is not mistaken for the next.
    return state if state.call else attrs.evolve(state, call=state.calls + 1, calls=state.calls + 1)


def _ranked(
    participants: Sequence[str], previous: Sequence[str], wanted: Mapping[str, int]
) -> tuple[str, ...]:
    """Return the names by rank. An agent of the previous round keeps its rank if possible; the
    others follow by name, hosts together. Rank 0 goes to an agent of the previous round, if there
    is any: it has the present state of the job.
    """
    if wanted:
        return tuple(sorted(participants, key=lambda name: wanted.get(name, math.inf)))
    by_rank: list[str | None] = [None] * len(participants)
    stayed = [name for name in previous if name in participants]
    # If the former rank 0 has gone, the next agent that stayed takes its rank.
    if stayed and stayed[0] != previous[0]:
        by_rank[0] = stayed.pop(0)
    for name in stayed:
        # A rank beyond the new size is lost: ranks have no gaps.
        if (rank := previous.index(name)) < len(by_rank):
            by_rank[rank] = name
    others = iter(sorted(set(participants) - set(by_rank)))
    return tuple(name if name is not None else next(others) for name in by_rank)


def _without(names: Sequence[str], gone: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in gone)


class RoundId(NamedTuple):
    """One round of a rendezvous: the number, and the life of the state that counts the rounds."""

    life: str
    round: int


class Joining:
    """One agent that joins a round. `now` and `decide`'s `now` are seconds on one clock. `left`:
    the round that it was in before and leaves, if any. `wanted`: its fixed
    rank, if it has one. `lease_seconds`: the longest time until a dead agent counts as dead.
    """

    def __init__(
        self,
        name: str,
        min_nodes: int,
        max_nodes: int,
        timeout: RendezvousTimeout,
        now: float,
        *,
        left: RoundId | None = None,
        wanted: int | None = None,
        lease_seconds: float = 15.0,
    ) -> None:
        self._name = name
        self._nodes = (min_nodes, max_nodes)
        self._timeout = timeout
        self._deadline = now + timeout.join
        self._left = left
        self._wanted = wanted
        self._lease_seconds = lease_seconds
        self._call: tuple[str, int, int] | None = None
        self._call_ends = math.inf
        self._was_spare = False
        self._rank_taken_since: dict[str, float] = {}

    def on_renamed(self, name: str) -> None:
        """The agent lost its lease and is registered again, under another name."""
        self._name = name

    def decide(self, state: State, alive: Collection[str], now: float) -> Decision:
        """Decide what to do in a state, with these agents alive. The agent itself is among them."""
        name = self._name
        if (state.min_nodes, state.max_nodes) != self._nodes:
            return Fail(
                "mismatch",
                f"another job has this id, with {state.min_nodes} to {state.max_nodes} "
                f"nodes instead of {self._nodes[0]} to "
                f"{self._nodes[1]}; give this one another id, or the same numbers to all of its "
                "agents",
            )
        if state.closed:
            if name in state.spares:
                return Fail("not needed", f"the job has ended without this spare: {state.closed}")
            return Fail(
                "finished" if state.finished else "closed",
                f"the rendezvous is closed: {state.closed}",
            )
        if (
            state.complete
            and name in state.participants
            and RoundId(state.life, state.round) != self._left
        ):
            return Finish(state, state.roster.index(name))
        changed = remove_dead(state, alive)
        if self._is_of_another_kind(changed):
            return Fail(
                "mismatch",
                "another job has this id: give fixed ranks to all agents of a job or to none",
            )
        if (
            self._wanted is not None
            and (conflict := self._rank_conflict(changed, self._wanted, now)) is not None
        ):
            return conflict
        if RoundId(changed.life, changed.round) == self._left or name not in changed:
            changed = join(changed, name, self._wanted)
        assert name in changed, "an agent that joins is in the round, or waits for the next"
        self._restart_deadline_of_spare(name in changed.spares, now)
        if self._is_last_call_over(changed, now):
            changed = complete(changed)
        # Before the write: an agent that gives up at this moment must not join first.
        if now >= self._deadline:
            return Fail("timeout", self._missing(changed))
        if changed != state:
            return StateWrite(changed)
        return Wait(min(self._deadline, self._call_ends))

    def _is_of_another_kind(self, state: State) -> bool:
        others = [
            name
            for name in (*state.participants, *state.waiting, *state.spares)
            if name != self._name
        ]
        return any((name in state.wanted) != (self._wanted is not None) for name in others)

    def _restart_deadline_of_spare(self, is_spare: bool, now: float) -> None:
        """A spare of a full round waits without a time-out. Its time-out begins when there is a
        place for it.
        """
        if is_spare:
            self._deadline = math.inf
        elif self._was_spare:
            self._deadline = now + self._timeout.join
        self._was_spare = is_spare

    def _is_last_call_over(self, state: State, now: float) -> bool:
        """Measured on this agent's own clock, from when it saw that the call began."""
        if state.complete or not state.call or self._name not in state.participants:
            self._call, self._call_ends = None, math.inf
            return False
        call = (state.life, state.round, state.call)
        if call != self._call:
            self._call, self._call_ends = call, now + self._timeout.last_call
        return now >= self._call_ends

    def _rank_conflict(self, state: State, wanted: int, now: float) -> Decision | None:
        """Decide what to do if another agent has the rank: it may have died and keep its lease for
        a while, or the rank was given twice. None if no other agent has it.
        """
        holder = next(
            (name for name, rank in state.wanted.items() if rank == wanted and name != self._name),
            None,
        )
        if holder is None:
            self._rank_taken_since.clear()
            return None
        since = self._rank_taken_since.setdefault(holder, now)
        # Longer than the lease of a holder that has died, which may have been renewed just before.
        ends = since + 1.5 * self._lease_seconds
        if now >= min(ends, self._deadline):
            return Fail(
                "rank taken",
                f"two agents ask for rank {wanted}: {holder} has it, and is alive; give each agent "
                "a rank of its own",
            )
        return Wait(min(ends, self._deadline))

    def _missing(self, state: State) -> str:
        where = f"within {self._timeout.join:g} s; trying again is safe"
        if self._name in state.participants and not state.complete:
            return (
                f"{len(state.participants)} of at least {state.min_nodes} agents have come {where}"
            )
        return f"round {state.round} is complete and has not ended {where}"


class RoundWatch:
    """The changes of one complete round, as one of its agents sees them. Each change is reported
    once.
    """

    def __init__(self, name: str, state: State) -> None:
        self._name = name
        self._of = (state.life, state.round)
        self._roster = state.roster
        self._gone: frozenset[str] = frozenset()
        self._waiting: frozenset[str] = frozenset()
        self._closed = False

    @property
    def round(self) -> int:
        """The number of the round."""
        return self._of[1]

    def look(
        self, state: State | None, alive: Collection[str], *, cut_off: bool
    ) -> RendezvousChange | None:
        """Return what has happened since the last change that was returned; None if nothing has.
        `cut_off`: the agent cannot rely on its own lease.
        """
        found = remove_dead(state, alive) if state is not None else None
        present = (
            state.participants
            if state is not None and (state.life, state.round) == self._of
            else ()
        )
        gone = frozenset(
            name
            for name in self._roster
            if name not in present or name not in alive or (cut_off and name == self._name)
        )
        waiting = found.waiting if found is not None else ()
        closed = state.closed if state is not None and not self._closed else ""
        left = tuple(name for name in self._roster if name in gone and name not in self._gone)
        joined = tuple(
            name for name in waiting if name not in self._waiting and name not in self._roster
        )
        assert gone <= set(self._roster), "those who leave a round were in it"
        self._gone |= gone
        self._waiting = frozenset(waiting)
        if not left and not joined and not closed:
            return None
        self._closed |= bool(closed)
        return RendezvousChange(
            self.round,
            left,
            joined,
            len(waiting),
            closed,
            bool(closed) and state is not None and state.finished,
        )
