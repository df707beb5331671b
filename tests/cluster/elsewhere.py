"""The command `understudy` as on a machine of its own: other processes of this machine meet it over
TCP, and never over a Unix socket. `python -m tests.cluster.elsewhere node --name w1 ...`
"""

from __future__ import annotations

import os

from runtime.command_line.main import main
from runtime.environment import Process, SystemEnvironment


def _process(self: SystemEnvironment) -> Process:
    return Process(f"elsewhere-{os.getpid()}", os.getpid(), "")


if __name__ == "__main__":
    setattr(SystemEnvironment, "process", _process)  # noqa: B010  mypy refuses an assignment
    main()
