"""The elastic jobs of a cluster for those who watch it, by the records of their rendezvous in the
store. Plain data; no I/O.

No agent is asked: it is no node, and one that is stopped would not answer. One that does not renew
its lease has no record any more, and the others take it out of the round.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

from runtime.store.interface import Entry

PREFIX = "rendezvous/"
"""Of the keys of all jobs; see `runtime.rendezvous.machine.Keys`."""

MOST_RECORDS = 2000
"""Keys of jobs that are read: each job has a few, one for each agent, and its workers' own."""

LEFT_OUT = (
    f"the first {MOST_RECORDS:,} records of jobs in the store were read, so jobs or agents may be "
    "missing"
)

MOST_AGENTS = 100
"""Agents that are named for each job, of each kind."""

MOST_NAME = 200
MOST_REASON = 400


def jobs_of(entries: Iterable[Entry]) -> dict[str, dict[str, Any]]:
    """Describe each job, by its id. `participants`: the agents of the open round, or those that are
    still in the complete one; `gone`: those that were in the complete one and have left it, or were
    in the one before the open round and do not live any more. `agents`: how many are alive.
    `silent`: agents that have not renewed their lease, and that the others have not taken out yet.
    """
    states: dict[str, bytes] = {}
    agents: dict[str, set[str]] = {}
    for entry in entries:
        run, _, rest = entry.key.removeprefix(PREFIX).partition("/")
        if rest.startswith("control/agents/"):
            agents.setdefault(run, set()).add(rest.removeprefix("control/agents/"))
        elif rest == "control/state":
            states[run] = entry.value
    return {run: _job(run, value, agents.get(run, set())) for run, value in states.items()}


def _job(run: str, value: bytes, alive: set[str]) -> dict[str, Any]:
    row: dict[str, Any] = {"name": unquote(run)[:MOST_NAME], "agents": len(alive)}
    try:
        state: dict[str, Any] = json.loads(value)
        participants, waiting, spares, roster = (
            [str(one) for one in state[kind]]
            for kind in ("participants", "waiting", "spares", "roster")
        )
        complete, closed = bool(state["complete"]), str(state.get("closed") or "")
        finished = bool(state.get("finished"))
        # No agent takes those that have left out of a job that has ended.
        has_ended = bool(closed) or finished
        everyone = (*participants, *waiting, *spares)
        # Who lives and is not in the open round yet still joins it.
        in_it = participants if complete else {*everyone, *alive}
        gone = [one for one in roster if one not in in_it]
        row |= {
            "round": int(state["round"]),
            "complete": complete,
            "min_nodes": int(state["min_nodes"]),
            "max_nodes": int(state["max_nodes"]),
            "participants": _named(participants),
            "waiting": len(waiting),
            "spares": len(spares),
            "gone": [] if has_ended else _named(gone),
            "silent": [] if has_ended else _named([one for one in everyone if one not in alive]),
            "closed": cut(closed),
            "finished": finished,
        }
    except (
        ValueError,
        KeyError,
        TypeError,
        OverflowError,
        RecursionError,
        AttributeError,
    ):
        row["problem"] = "its record cannot be read"
    return row


def _named(names: list[str]) -> list[str]:
    return [name[:MOST_NAME] for name in names[:MOST_AGENTS]]


def cut(text: str) -> str:
    """Return the reason for which a job is closed, or its beginning."""
    return text if len(text) <= MOST_REASON else f"{text[: MOST_REASON - 1]}…"


def state_of(job: dict[str, Any]) -> str:
    """The state of a job in words."""
    if "problem" in job:
        return "unreadable"
    if job["finished"]:
        return "finished"
    if job["closed"]:
        return "closed"
    return "round complete" if job["complete"] else "round open"
