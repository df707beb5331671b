"""The warm process from outside: its start, and its end if it does not end by itself.

The process that is started is the outer process, which forks the warm process and outlives it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from signal import SIGKILL, SIGSTOP
from typing import Any, cast

import attrs
import trio

from runtime.processes.exit_status import ForkServerStartError
from runtime.processes.inherited_environment import without_secrets
from runtime.processes.linux_processes import (
    children_of,
    kill_group_quietly,
    kill_quietly,
    state_of,
)

_POLL_TIME = 0.002
"""Seconds between two looks at processes that end or are being killed: the kernel reports the stop
of a process only to its parent.
"""


@attrs.define
class Warm:
    """The warm process, our end of its socket, and the read end of its output. `process`: the outer
    process.
    """

    process: subprocess.Popen[bytes]
    control: socket.socket
    output: int
    begun: int | None = None
    """The pid of the warm process, once it has said it."""

    @property
    def pid(self) -> int:
        """The pid of the warm process; before that has begun, of the process that becomes it or its
        parent.
        """
        return self.begun or self.process.pid

    def is_stopped(self) -> bool:
        """Return True if a signal or a debugger has stopped the process or its parent. It does
        nothing until it is continued, or its end is not noticed.
        """
        return any(state_of(pid) in {"T", "t"} for pid in (self.pid, self.process.pid))

    async def reap(self, seconds: float) -> bool:
        """Wait for the end of the process, of all its descendants and of its parent, for at most
        `seconds`. Returns False if they have not ended.
        """
        with trio.move_on_after(seconds):
            # Not in a thread: Python 3.12.0 and 3.12.1 start none from the end of the main thread
            # on, when a cluster that the program has not closed is closed.
            while self.process.poll() is None:  # noqa: ASYNC110
                await trio.sleep(_POLL_TIME)
        return self.process.returncode is not None

    async def kill_tree(self, seconds: float) -> None:
        """Kill (SIGKILL) the process, all its descendants and then its parent, and reap that. Gives
        up after `seconds`, because the kernel cannot end a process in uninterruptible sleep.

        The parent is stopped first. While it is stopped it reaps nothing, so its children keep
        their pids until they are signalled; and orphans become its children, so none of them
        escapes.
        """
        pid = self.process.pid
        if self.process.returncode is None:
            kill_quietly(pid, SIGSTOP)
            with trio.move_on_after(seconds):
                while state_of(pid) not in {"T", "t", "Z", ""}:  # noqa: ASYNC110
                    # The kernel sets no event.
                    await trio.sleep(_POLL_TIME)
                while living := [
                    child for child in children_of(pid) if state_of(child) not in {"Z", "X", ""}
                ]:
                    for child in living:
                        kill_quietly(child, SIGKILL)
                    await trio.sleep(_POLL_TIME)
            # Processes that imports started before there were children are in the group of the warm
            # process.
            kill_group_quietly(pid)
        self.process.kill()
        await self.reap(seconds)


def launch() -> Warm:
    """Start the interpreter, with the flags of this one. Raises ForkServerStartError if it is not
    known, OSError if it cannot be started.

    From the calling thread on purpose: the kernel's parent-death signal follows the thread that
    created the process, and trio's own `open_process` would use a worker thread that ends after ten
    idle seconds.
    """
    if not sys.executable:
        raise ForkServerStartError(
            "there is no Python interpreter to start: sys.executable is empty, as in a program "
            "that embeds Python"
        )
    ours, theirs = socket.socketpair()
    output, output_writer = os.pipe()
    path = list(sys.path)
    # Not `-m`: that finds this package by the current directory, which need not be where it was
    # imported from here.
    # Without garbage collection until the imports are done, see `_ForkLoop.set_up`.
    # What the first import loads is in both processes, and the second is done in the fork.
    program = (
        f"import gc, sys; gc.disable(); sys.path[:] = {path!r}; "
        "from runtime.processes.outer_process import fork_warm_process; "
        f"outer = fork_warm_process({theirs.fileno()}, {os.getpid()}); "
        "from runtime.processes.fork_loop import main; "
        f"main({theirs.fileno()}, outer)"
    )
    try:
        process = subprocess.Popen(
            [sys.executable, *_interpreter_flags(), "-P", "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=output_writer,
            stderr=output_writer,
            pass_fds=[theirs.fileno()],
            env=without_secrets(os.environ),
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        os.close(output)
        raise
    finally:
        theirs.close()
        os.close(output_writer)
    return Warm(process, ours, output)


def _interpreter_flags() -> list[str]:
    """The options -O, -W, -X and the like with which this interpreter runs. Private to Python, but
    multiprocessing's own way since 3.4.
    """
    flags: list[str] = cast("Any", subprocess)._args_from_interpreter_flags()
    return flags
