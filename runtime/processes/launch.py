"""The warm process from outside: how its interpreter is started, and how it is ended when it does not end by itself."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from signal import SIGKILL, SIGSTOP

import attrs
import trio

from runtime.processes.death import children_of, kill_group_quietly, kill_quietly, state_of
from runtime.processes.errors import ForkServerStartError

_POLL_TIME = 0.002


@attrs.frozen
class Warm:
    """The warm process, our end of its socket, the read end of its output."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    output: int

    def is_stopped(self) -> bool:
        """Whether a signal or a debugger has stopped it: it answers nothing until somebody lets it go on."""
        return state_of(self.process.pid) in {"T", "t"}

    async def reap(self, seconds: float) -> bool:
        """Wait for its end; False if it has not ended after `seconds`."""
        with trio.move_on_after(seconds):
            await trio.to_thread.run_sync(self.process.wait, abandon_on_cancel=True)
        return self.process.returncode is not None

    async def kill_tree(self, seconds: float) -> None:
        """SIGKILL to all its descendants, then to itself, then reap it. Gives up on what the kernel cannot end within `seconds`.

        It is stopped first. Then it reaps nothing, so its children keep their pids until they have been signalled, and it adopts the
        children of those that end, so that no descendant gets away.
        """
        pid = self.process.pid
        if self.process.returncode is None:
            kill_quietly(pid, SIGSTOP)
            with trio.move_on_after(seconds):
                while state_of(pid) not in {"T", "t", "Z", ""}:  # noqa: ASYNC110 - the kernel sets no event
                    await trio.sleep(_POLL_TIME)
                while living := [child for child in children_of(pid) if state_of(child) not in {"Z", "X", ""}]:
                    for child in living:
                        kill_quietly(child, SIGKILL)
                    await trio.sleep(_POLL_TIME)
            # What an import had started before there were children belongs to its own group.
            kill_group_quietly(pid)
        self.process.kill()
        await self.reap(seconds)


def launch() -> Warm:
    """Start the interpreter, with the flags of this one. Raises ForkServerStartError if it is not known, OSError if it cannot be started.

    From the calling thread on purpose: the kernel's parent-death signal follows the thread that created the process, and trio's own
    `open_process` would use a worker thread that ends after ten idle seconds.
    """
    if not sys.executable:
        raise ForkServerStartError("there is no Python interpreter to start: sys.executable is empty, as in a program that embeds Python")
    ours, theirs = socket.socketpair()
    output, output_writer = os.pipe()
    path = list(sys.path)
    # Not `-m`: that finds this package by the current directory, which need not be where it was imported from here.
    program = f"import sys; sys.path[:] = {path!r}; from runtime.processes.warm import main; main({theirs.fileno()}, {os.getpid()})"
    try:
        process = subprocess.Popen(
            [sys.executable, *_interpreter_flags(), "-P", "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=output_writer,
            stderr=output_writer,
            pass_fds=[theirs.fileno()],
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
    """The options -O, -W, -X and the like with which this interpreter runs. Private to Python, but multiprocessing's own way since 3.4."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    return flags
