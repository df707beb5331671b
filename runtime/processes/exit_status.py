"""The end of a process, as its parent's wait status tells it, and the errors of the processes of
this machine.
"""

from __future__ import annotations

import os
import signal
from typing import ClassVar

import attrs

from actors.errors import UnderstudyError


@attrs.frozen
class ExitStatus:
    """The end of a process: exactly one of `code` (it exited) and `signal` (it was killed)
    is set.
    """

    code: int | None
    signal: int | None

    @classmethod
    def of_wait_status(cls, status: int) -> ExitStatus:
        """Decode the status that `os.waitpid` returns."""
        return cls.of_return_code(os.waitstatus_to_exitcode(status))

    @classmethod
    def of_return_code(cls, code: int) -> ExitStatus:
        """Decode the return code of `subprocess`, in which a negative number is a signal."""
        return cls(code, None) if code >= 0 else cls(None, -code)

    def describe(self) -> str:
        """Return a text such as `exit code 3` or `killed by SIGKILL`."""
        if self.signal is None:
            return f"exit code {self.code}"
        try:
            return f"killed by {signal.Signals(self.signal).name}"
        except ValueError:
            return f"killed by signal {self.signal}"


class ProcessError(UnderstudyError):
    """The base class of the errors of `runtime.processes`."""

    has_page: ClassVar[bool] = True


class ForkServerStartError(ProcessError):
    """The warm process could not import what it was asked to. A note and `remote_traceback` (text)
    say where it failed.
    """

    has_page: ClassVar[bool] = True

    def __init__(self, text: str, *, remote_traceback: str = "") -> None:
        super().__init__(text)
        self.remote_traceback = remote_traceback
        if remote_traceback:
            self.add_note(remote_traceback)


class ForkServerDiedError(ProcessError):
    """The warm process has ended, or is closing, and starts no more children."""

    has_page: ClassVar[bool] = True


class ChildDiedError(ProcessError):
    """A child ended before it reported anything. `name`, `exit_status` and `last_lines` of its
    output say how.
    """

    def __init__(self, name: str, exit_status: ExitStatus, last_lines: tuple[str, ...]) -> None:
        text = f"process {name} ended before it was ready: {exit_status.describe()}"
        super().__init__(
            "\n  ".join([f"{text}; its last output:", *last_lines])
            if last_lines
            else f"{text}, without any output"
        )
        self.name = name
        self.exit_status = exit_status
        self.last_lines = last_lines

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.name, self.exit_status, self.last_lines), vars(self)
