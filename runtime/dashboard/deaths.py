"""The deaths that a dashboard shows: of children what their supervisors remember, and of all other
actors, also of supervisors that gave up, what nodes remember, and what ended nodes have left in the
store. No I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from actors.supervisor import DeathReport

MOST_DEATHS = 200
MOST_TEXT = 400
MOST_TRACEBACK = 8192
"""Characters of a traceback, of which the end matters."""

Rows = dict[str, dict[str, Any]]


def death_rows(
    supervised: Iterable[tuple[DeathReport, str]], ends: Iterable[Mapping[str, Any]]
) -> tuple[Rows, int]:
    """The latest deaths, each once, and how many are left out. `supervised`: what supervisors
    remember, each with the supervisor's name. `ends`: what nodes do; see
    `runtime.logs.service.ActorEnds`.
    """
    rows: Rows = {}
    for end in ends:
        # Any member may write to the store: only the names and texts were checked.
        epoch = end["epoch"] if isinstance(end.get("epoch"), int) else None
        rows[_key(end["name"], epoch, end["time"])] = {
            "at": end["time"],
            "name": end["name"],
            "node": end["node"],
            "epoch": epoch,
            "lived": None,
            "kind": end["kind"],
            "text": cut(end["reason"], MOST_TEXT),
            "traceback": str(end.get("traceback") or "")[-MOST_TRACEBACK:],
            "supervisor": "",
        }
    # They know more of it: how long it had lived, and whose child it was.
    for death, supervisor in supervised:
        rows[_key(death.name, death.epoch, death.at)] = {
            "at": death.at,
            "name": death.name,
            "node": death.node,
            "epoch": death.epoch,
            "lived": death.at - death.started if death.started is not None else None,
            "kind": death.reason.kind,
            "text": cut(death.reason.text, MOST_TEXT),
            "traceback": death.reason.traceback[-MOST_TRACEBACK:],
            "supervisor": supervisor,
        }
    latest = sorted(rows.items(), key=lambda pair: -pair[1]["at"])[:MOST_DEATHS]
    return dict(latest), len(rows) - len(latest)


def _key(name: str, epoch: int | None, at: float) -> str:
    """A start that failed has no epoch, but its time."""
    return f"{name}\n{epoch or repr(at)}"


def cut(text: str, most: int) -> str:
    """The text, or its beginning."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
