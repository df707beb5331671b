"""What can go wrong with the processes of this machine."""

from __future__ import annotations

from actors.errors import UnderstudyError
from runtime.processes.status import ExitStatus


class ProcessError(UnderstudyError):
    """The base of this room's errors."""


class ForkServerStartError(ProcessError):
    """The warm process could not import what it was asked to; a note and `remote_traceback` (text) say where it failed."""

    def __init__(self, text: str, *, remote_traceback: str = "") -> None:
        super().__init__(text)
        self.remote_traceback = remote_traceback
        if remote_traceback:
            self.add_note(remote_traceback)


class ForkServerDiedError(ProcessError):
    """The warm process has ended, or is closing, and starts no more children."""


class ChildDiedError(ProcessError):
    """A child ended before it reported anything. `name`, `exit_status` and `last_lines` (of its output) say how."""

    def __init__(self, name: str, exit_status: ExitStatus, last_lines: tuple[str, ...]) -> None:
        text = f"process {name} ended before it was ready: {exit_status.describe()}"
        super().__init__("\n  ".join([f"{text}; its last output:", *last_lines]) if last_lines else f"{text}, without any output")
        self.name = name
        self.exit_status = exit_status
        self.last_lines = last_lines

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.name, self.exit_status, self.last_lines), vars(self)
