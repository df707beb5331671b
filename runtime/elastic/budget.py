"""How many restarts a job has left: pure, over the list that all its agents share in the job's store.

No clocks of hosts are compared. Each entry says how long after the one before it came, measured by the agent that added it on its own
monotonic clock, from when it first saw that one. An agent that saw it late measures too little, so it may refuse too early, never too late.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import attrs

from runtime.rendezvous.errors import RendezvousStateError

MAX_KEPT = 256
"""Entries of the list. Older ones are dropped; what was counted before is kept as a number."""


@attrs.frozen
class Counted:
    """One restart that was asked for: what for, by which agent, seconds after the one before, and whether it was granted."""

    incident: str
    agent: str
    gap: float
    granted: bool


@attrs.frozen
class History:
    """All of them, and how many granted ones are not in the list any more."""

    counted: tuple[Counted, ...] = ()
    dropped: int = 0

    @property
    def granted(self) -> int:
        """How many restarts the job has had."""
        return self.dropped + sum(entry.granted for entry in self.counted)


@attrs.frozen
class Verdict:
    """Whether a restart may happen, the list afterwards (the same if it was counted before), and how many count in the window."""

    granted: bool
    history: History
    recent: int


def recent(history: History, gap: float, window: float) -> int:
    """Granted restarts within the last `window` seconds, when the last entry is `gap` seconds old."""
    if window == math.inf:
        return history.granted
    age = gap
    found = 0
    for entry in reversed(history.counted):
        if age > window:
            break
        found += entry.granted
        age += entry.gap
    return found


def ask(history: History, incident: str, agent: str, gap: float, limit: int, window: float) -> Verdict:
    """Ask for a restart because of `incident`; `gap` is the age of the last entry in seconds, 0 where there is none.

    An incident is counted once, whoever asks: a failure in a group fails all of it, and every agent may come to ask for the same restart.
    At most `limit` restarts are granted within `window` seconds.
    """
    for entry in history.counted:
        if entry.incident == incident:
            return Verdict(entry.granted, history, recent(history, gap, window))
    used = recent(history, gap, window)
    granted = used < limit
    counted = (*history.counted, Counted(incident, agent, gap, granted))
    dropped = counted[:-MAX_KEPT]
    kept = History(counted[-MAX_KEPT:], history.dropped + sum(entry.granted for entry in dropped))
    return Verdict(granted, kept, used + granted)


def encode_history(history: History) -> bytes:
    """As it is kept in the job's store."""
    return json.dumps({"dropped": history.dropped, "counted": [attrs.astuple(entry) for entry in history.counted]}).encode()


def decode_history(value: bytes | None) -> History:
    """What `encode_history` wrote; an empty one for None. Raises `RendezvousStateError`."""
    if value is None:
        return History()
    try:
        fields = json.loads(value)
        return History(tuple(_counted(entry) for entry in fields["counted"]), int(fields["dropped"]))
    except (ValueError, KeyError, TypeError) as error:
        raise RendezvousStateError(f"the list of the job's restarts in its store cannot be understood: {error}") from error


def _counted(entry: Sequence[object]) -> Counted:
    incident, agent, gap, granted = entry
    if not isinstance(gap, int | float) or isinstance(gap, bool) or not math.isfinite(gap):
        raise ValueError(f"{gap!r} is no number of seconds")
    return Counted(str(incident), str(agent), float(gap), bool(granted))
