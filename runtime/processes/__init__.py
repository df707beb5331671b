"""Processes of this machine: started in milliseconds, watched until they end, never left behind.

Its public names are `open_fork_server` and what that returns. It knows nothing of actors or nodes.

Each name is imported when it is first used: the outer process imports this file, and stays small.
"""

TYPE_CHECKING = False
# To a type checker it is True, see `runtime/__init__.py`.
if TYPE_CHECKING:
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

PLACES = {
    "ChildDiedError": "exit_status",
    "ChildProcess": "child_process",
    "ExitStatus": "exit_status",
    "ForkServer": "fork_server",
    "ForkServerDiedError": "exit_status",
    "ForkServerStartError": "exit_status",
    "ProcessError": "exit_status",
    "open_fork_server": "fork_server",
}
"""The module here that defines each of them."""


if not TYPE_CHECKING:
    # A type checker would accept any name.
    def __getattr__(name: str) -> object:
        """Import what was asked for."""
        from importlib import import_module

        place = PLACES.get(name)
        if place is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{place}"), name)
