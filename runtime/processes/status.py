"""How a process ended, as its parent's wait status tells it."""

from __future__ import annotations

import os
import signal

import attrs


@attrs.frozen
class ExitStatus:
    """The end of a process: exactly one of `code` (it exited) and `signal` (it was killed) is set."""

    code: int | None
    signal: int | None

    @classmethod
    def of_wait_status(cls, status: int) -> ExitStatus:
        """Translate what `os.waitpid` returned."""
        return cls.of_return_code(os.waitstatus_to_exitcode(status))

    @classmethod
    def of_return_code(cls, code: int) -> ExitStatus:
        """Translate the convention of `subprocess`: a negative code is a signal."""
        return cls(code, None) if code >= 0 else cls(None, -code)

    def describe(self) -> str:
        """For people: `exit code 3`, `killed by SIGKILL`."""
        if self.signal is None:
            return f"exit code {self.code}"
        try:
            return f"killed by {signal.Signals(self.signal).name}"
        except ValueError:
            return f"killed by signal {self.signal}"
