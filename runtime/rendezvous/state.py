"""What the store has of a rendezvous: one record of who takes part, and one for each agent. Plain data, and back. No I/O.

JSON, so that an operator can read it with the store's own tools. A record that does not fit is refused as a whole.
"""

from __future__ import annotations

import json
from typing import Any, cast
from urllib.parse import quote

import attrs

from runtime.environment import Process
from runtime.rendezvous.errors import RendezvousStateError

SCHEMA = 1
LISTS = ("participants", "waiting", "spares", "roster")


@attrs.frozen
class State:
    """A rendezvous at one moment.

    `life`: drawn when the record is made, so that a record that was lost and made again is told from the first. `lease`: what the job
    leaves behind is tied to it. `participants`: of the round that is open, or those who are still in the one that is complete. `roster`:
    names by rank, of the latest round that was complete. `call`: the number of the last call that is running, 0 if none is; `calls` counts
    them. `wanted`: ranks that agents have asked for. `closed`: why, once it is; `finished`: because the job has come to its end.
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
    """An agent, as it is registered. `process` tells others on its host when it has ended; `lease` ends it then."""

    process: Process
    lease: int


class Keys:
    """Where the records of one job are."""

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
        """Under which the store of a round is."""
        return f"{self.rounds}{round}/"

    def round_of(self, key: str) -> int:
        """The round whose store a key is in."""
        return int(key.removeprefix(self.rounds).partition("/")[0])

    def fence(self, round: int) -> str:
        """There, with the life of the state as its value, from when a round is complete until the next one opens."""
        return self.round(round) + "open"


def encode_state(state: State) -> bytes:
    """The record as it is written."""
    return json.dumps({"schema": SCHEMA, **attrs.asdict(state)}, separators=(",", ":")).encode()


def decode_state(data: bytes, where: str) -> State:
    """What `encode_state` made. Raises `RendezvousStateError`, naming the key, for anything else."""
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
            f"the record of the rendezvous at {where!r} cannot be understood ({error}); delete it, or give the job another id"
        ) from None
    return state


def encode_agent(record: AgentRecord) -> bytes:
    """The record as it is written."""
    return json.dumps(attrs.asdict(record), separators=(",", ":")).encode()


def decode_agent(data: bytes, where: str) -> AgentRecord:
    """What `encode_agent` made. Raises `RendezvousStateError`, naming the key, for anything else."""
    try:
        found = _mapping(json.loads(data))
        process = Process(**found["process"])
        if not isinstance(found["lease"], int) or not isinstance(process.pid, int):
            raise ValueError("a number is none")
        return AgentRecord(process, found["lease"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RendezvousStateError(f"the record of an agent at {where!r} cannot be understood ({error}); delete it") from None


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"it is no mapping but a {type(value).__name__}")
    return cast("dict[str, Any]", value)


def _check(found: dict[str, Any]) -> None:
    """Types, and what holds of every state."""
    for name in ("min_nodes", "max_nodes", "lease", "round", "call", "calls"):
        if type(found[name]) is not int or found[name] < 0:
            raise ValueError(f"{name} is no count")
    for name, kind in (("complete", bool), ("life", str), ("closed", str), ("finished", bool)):
        if type(found[name]) is not kind:
            raise ValueError(f"{name} is no {kind.__name__}")
    for name in LISTS:
        if not all(isinstance(one, str) for one in found[name]):
            raise ValueError(f"{name} are no names")
    everyone = (*found["participants"], *found["waiting"], *found["spares"])
    if len(set(everyone)) != len(everyone) or len(set(found["roster"])) != len(found["roster"]):
        raise ValueError("an agent is in it twice")
    if not all(type(rank) is int for rank in _mapping(found["wanted"]).values()):
        raise ValueError("wanted are no ranks")
    if found["finished"] and not found["closed"]:
        raise ValueError("it has finished and is not closed")
    if not 1 <= found["min_nodes"] <= found["max_nodes"]:
        raise ValueError(f"from {found['min_nodes']} to {found['max_nodes']} nodes is no range")
    if found["complete"] and not set(found["participants"]) <= set(found["roster"]):
        raise ValueError("somebody takes part without a rank")
