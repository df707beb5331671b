"""Processes of this machine: started in milliseconds, watched until they end, never left behind.

The door of the room: `open_fork_server` and what it hands out. It knows nothing of actors or nodes.
"""

from runtime.processes.child import ChildProcess
from runtime.processes.errors import ChildDiedError, ForkServerDiedError, ForkServerStartError, ProcessError
from runtime.processes.fork_server import ForkServer, open_fork_server
from runtime.processes.status import ExitStatus

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
