"""Deadlines that workers have set themselves, without I/O. The agent's own monotonic clock measures
them.
"""

from __future__ import annotations

import json
import math
from typing import Literal

import attrs

MAX_MESSAGE_BYTES = 4096
"""Bytes of one message of a worker: what a pipe takes in one piece (PIPE_BUF), so that messages of
several processes never mix.
"""

MAX_SCOPES = 1024
"""Deadlines that one worker may have at a time. Further ones are ignored."""


@attrs.frozen
class DeadlineRequest:
    """A process enters a scope, in which it stays for at most `after` seconds, or leaves it.
    `pid`: its own.
    """

    what: Literal["enter", "leave"]
    scope: str
    after: float = 0.0
    pid: int = 0


def encode_request(request: DeadlineRequest) -> bytes:
    """Encode a request as one line. Raises ValueError if it is too long to be written in one
    piece.
    """
    line = json.dumps([request.what, request.scope, request.after, request.pid]).encode() + b"\n"
    if len(line) > MAX_MESSAGE_BYTES:
        raise ValueError(
            f"the name of the scope is {len(request.scope)} characters long; use at most about 500"
        )
    return line


def decode_request(line: str) -> DeadlineRequest | None:
    """Decode a line that a worker wrote; return None for anything else, which is ignored: user code
    can write to the pipe as well.
    """
    try:
        what, scope, after, pid = json.loads(line)
        seconds = float(after)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
    if (
        what not in ("enter", "leave")
        or not isinstance(scope, str)
        or isinstance(after, bool)
        or not isinstance(after, int | float)
    ):
        return None
    if isinstance(pid, bool) or not isinstance(pid, int) or pid < 0:
        return None
    return DeadlineRequest(what, scope, seconds, pid) if math.isfinite(seconds) else None


@attrs.frozen
class Expired:
    """A process has been in a scope for longer than it said."""

    scope: str
    after: float
    pid: int = 0


class WatchdogDeadlines:
    """The deadlines of one worker and of the processes that it has forked, which have its pipe as
    well. A scope belongs to the process that entered it.

    Entering a scope again replaces its deadline.
    """

    def __init__(self) -> None:
        self._scopes: dict[tuple[int, str], tuple[float, float]] = {}

    def apply(self, request: DeadlineRequest, now: float) -> None:
        """Enter or remove the deadline of a request that arrived at `now`."""
        key = (request.pid, request.scope)
        if request.what == "leave":
            self._scopes.pop(key, None)
        elif key in self._scopes or len(self._scopes) < MAX_SCOPES:
            self._scopes[key] = (now + request.after, request.after)
        # User code can write to this pipe, so the number of deadlines is bounded: it must not fill
        # the agent's memory.
        assert len(self._scopes) <= MAX_SCOPES

    def forget(self, pid: int) -> None:
        """Remove the scopes of a process that has ended."""
        self._scopes = {key: kept for key, kept in self._scopes.items() if key[0] != pid}

    @property
    def next(self) -> float:
        """Return the time of the earliest deadline; infinity if there is none."""
        return min((deadline for deadline, _ in self._scopes.values()), default=math.inf)

    def expired(self, now: float) -> Expired | None:
        """Return the scope whose deadline passed first, if any has passed."""
        over = [
            (deadline, scope, after, pid)
            for (pid, scope), (deadline, after) in self._scopes.items()
            if deadline <= now
        ]
        return Expired(*min(over)[1:]) if over else None
