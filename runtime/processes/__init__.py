"""Processes of this machine: started in milliseconds, watched until they end, never left behind.

Its public names are `open_fork_server` and what that returns. It knows nothing of actors or nodes.
"""

from runtime.processes.child_process import ChildProcess
from runtime.processes.exit_status import (
    ChildDiedError,
    ExitStatus,
    ForkServerDiedError,
    ForkServerStartError,
    ProcessError,
)
from runtime.processes.fork_server import ForkServer, open_fork_server

__all__ = [
    "ChildDiedError",
    "ChildProcess",
    "ExitStatus",
    "ForkServer",
    "ForkServerDiedError",
    "ForkServerStartError",
    "ProcessError",
    "open_fork_server",
]
