"""The warm process from outside: its start, and its end if it does not end by itself."""

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
from runtime.processes.fork_loop import children_of, kill_group_quietly, kill_quietly, state_of
from runtime.processes.inherited_environment import without_secrets

_POLL_TIME = 0.002
"""Seconds between two looks at processes that end or are being killed: the kernel reports the stop
of a process only to its parent.
"""


@attrs.frozen
class Warm:
    """The warm process, our end of its socket, and the read end of its output."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    output: int

    def is_stopped(self) -> bool:
        """Return True if a signal or a debugger has stopped the process. It does nothing until it
        is continued.
        """
        return state_of(self.process.pid) in {"T", "t"}

    async def reap(self, seconds: float) -> bool:
        """Wait for the end of the process, for at most `seconds`. Returns False if it has not
        ended.
        """
        with trio.move_on_after(seconds):
            # Not in a thread: Python 3.12.0 and 3.12.1 start none from the end of the main thread
            # on, when a cluster that the program has not closed is closed.
            while self.process.poll() is None:  # noqa: ASYNC110
                await trio.sleep(_POLL_TIME)
        return self.process.returncode is not None

    async def kill_tree(self, seconds: float) -> None:
        """Kill (SIGKILL) all its descendants and then the process itself, and reap it. Gives up
        after `seconds`, because the kernel cannot end a process in uninterruptible sleep.

        The process is stopped first. While it is stopped it reaps nothing, so its children keep
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
    program = (
        f"import gc, sys; gc.disable(); sys.path[:] = {path!r}; "
        "from runtime.processes.fork_loop import main; "
        f"main({theirs.fileno()}, {os.getpid()})"
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
