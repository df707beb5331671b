"""What a host is told of an actor that runs in another process: how its start, its calls and its life ended there.

Whoever stands in for such an actor raises these where the actor itself would have raised. They never reach users.
"""

from __future__ import annotations

from actors.errors import ActorStartError, CallError, UnderstudyError
from actors.supervision import ExitReason
from runtime.user_errors import raised_at, summary_of, traceback_of


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


def why_not_started(error: BaseException, module: str) -> tuple[str, str]:
    """What a constructor or `on_start` raised: as `Type: text (file:line, in function)`, and its traceback. `module`: the actor's own."""
    if type(error) is StartFailedElsewhereError:
        return error.what, error.trace or error.what
    place = raised_at(error, module)
    if issubclass(type(error), UnderstudyError) and module.startswith("actors."):
        # A supervisor tells of a child of its own: where it does so is of no interest, and what it tells has the place.
        place = ""
    return f"{summary_of(error)} ({place})" if place else summary_of(error), traceback_of(error)


def with_note(error: ActorStartError) -> ActorStartError:
    """The same with a note of where the start failed, for people to see: what was raised there is no cause of it here."""
    if error.remote_traceback and not any(error.remote_traceback in note for note in getattr(error, "__notes__", ())):
        where = f" on node {error.node}" if error.node else ""
        error.add_note(f"raised in the start of {error.actor}{where}:\n{error.remote_traceback}")
    return error
