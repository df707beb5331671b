"""What a host is told of an actor that runs in another process: how its start, its calls and its life ended there.

Whoever stands in for such an actor raises these where the actor itself would have raised. They never reach users.
"""

from __future__ import annotations

import traceback

from actors.errors import CallError
from actors.supervision import ExitReason


class RefusedElsewhereError(Exception):
    """A call was ended by the runtime there, with `error`; the method did not raise."""

    def __init__(self, error: CallError) -> None:
        super().__init__(str(error))
        self.error = error


class StartFailedElsewhereError(Exception):
    """The actor did not start there. `what` names the error as `Type: text`, `trace` is the traceback of that process, if there is one."""

    def __init__(self, what: str, trace: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.trace = trace


class EndedElsewhereError(Exception):
    """The actor has ended there, for `reason`."""

    def __init__(self, reason: ExitReason) -> None:
        super().__init__(f"{reason}\n\n{reason.traceback}" if reason.traceback else str(reason))
        self.reason = reason


def why_not_started(error: Exception) -> tuple[str, str]:
    """What a constructor or `on_start` raised: as `Type: text`, and its traceback."""
    if isinstance(error, StartFailedElsewhereError):
        return error.what, error.trace or error.what
    return f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))
