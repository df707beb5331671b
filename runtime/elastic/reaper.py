"""Starts the guardian of an agent's workers and keeps it alive, for our agent and for torch's."""

from __future__ import annotations

import os
import subprocess
import sys

import trio

from actors.own_logger import own_logger
from runtime.elastic import guardian
from runtime.environment import Environment

logger = own_logger("understudy.elastic")


SHARE = 0.8
"""The share of the time for which no other agent may take the workers' places. After that share the
guardian kills the workers; the rest is for the killing.
"""


BEATS = 4
"""Messages to the guardian within the time after which it kills the workers, so that some may be
late.
"""


GUARDIAN_KILL_SECONDS = 10.0
"""Seconds that the kernel may take to end what the guardian kills at the end of the agent."""


def fence_seconds(lease_seconds: float, keep_alive_interval: float) -> float:
    """Return for how many seconds an agent may be stopped before its workers are killed.

    Its last renewal may be one interval old when it stops, and its workers must be gone before the
    rest of its lease has passed.
    """
    return SHARE * (lease_seconds - keep_alive_interval)


class Reaper:
    """The agent's side of the guardian, a process that kills all processes with `mark` when this
    process has ended or has not run for `seconds`.
    """

    def __init__(self, environment: Environment, mark: str, seconds: float) -> None:
        """Start the guardian. Raises OSError if the system grants no further process."""
        self._environment = environment
        self._mark = mark
        self._seconds = seconds
        self._beat_at = environment.now()
        self._was_paused = False
        self._beating = trio.CancelScope()
        self._process, self._pipe = _start(mark, seconds)

    @property
    def guardian_pid(self) -> int:
        """The process id of the guardian. It changes when the guardian is killed and started
        again.
        """
        return self._process.pid

    @property
    def was_paused(self) -> bool:
        """True if this process was stopped for so long that the guardian has killed its processes,
        and none was started since.
        """
        return self._was_paused or self._environment.now() - self._beat_at >= self._seconds

    def on_start(self) -> None:
        """A process is being started: no earlier pause can have killed it."""
        self._was_paused = False

    async def beat(self) -> None:
        """Write to the guardian until `aclose` or cancellation, and start another guardian if it
        was killed.
        """
        with self._beating:
            while True:
                # Remember the pause before the time is overwritten: a task that sees a worker end
                # at the same moment must still learn of it.
                self._was_paused = self.was_paused
                self._beat_at = self._environment.now()
                try:
                    os.write(self._pipe, b".")
                except BlockingIOError:
                    # The guardian itself is stopped. It has enough to read when it goes on.
                    pass
                except BrokenPipeError:
                    logger.warning(
                        "the guardian of this agent's workers was killed; starting another one"
                    )
                    self._replace()
                await trio.sleep(self._seconds / BEATS)

    def _replace(self) -> None:
        killed, pipe = self._process, self._pipe
        # The new one first, so that there is a guardian at any moment from here on.
        self._process, self._pipe = _start(self._mark, self._seconds)
        os.close(pipe)
        killed.wait()

    async def aclose(self) -> None:
        """Kill every process that still has the mark, and end the guardian. Takes bounded time;
        call it shielded.
        """
        # Before the pipe is closed: a moment later its descriptor's number may be another file's. A
        # write that is due now is cancelled, too.
        self._beating.cancel()
        os.close(self._pipe)
        with trio.move_on_after(GUARDIAN_KILL_SECONDS) as waiting:
            await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
        if waiting.cancelled_caught:
            self._process.kill()


def _start(mark: str, seconds: float) -> tuple[subprocess.Popen[bytes], int]:
    """Start a guardian. Returns it and our end of the pipe to it, which does not block."""
    reader, writer = os.pipe()
    environment = {name: value for name, value in os.environ.items() if name != guardian.MARK}
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", guardian.__file__, str(reader), mark, str(seconds)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment,
            pass_fds=[reader],
            start_new_session=True,
        )
    except BaseException:
        os.close(writer)
        raise
    finally:
        os.close(reader)
    os.set_blocking(writer, False)
    return process, writer
