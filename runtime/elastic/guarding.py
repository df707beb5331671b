"""The guardian of an agent's workers, started and kept alive: for our own agent and for torch's."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import trio

from runtime.elastic import guardian
from runtime.environment import Environment

SHARE = 0.8
"""Of the time for which nobody else may take the places of workers, that passes before they are killed."""
BEATS = 4
"""How often the guardian hears of the agent while it waits."""
CLOSE_SECONDS = 10.0
"""How long the kernel may take to end what the guardian kills at last."""

logger = logging.getLogger("understudy.elastic")


def fence_seconds(lease_seconds: float, keep_alive_interval: float) -> float:
    """For how many seconds an agent may not run before its workers are killed.

    Its last renewal may be an interval old when it stops, and its workers have to be gone before the rest of its lease is.
    """
    return SHARE * (lease_seconds - keep_alive_interval)


class Guarded:
    """A process beside this one that kills all that carries `mark` when this one has ended, or has not run for `seconds`."""

    def __init__(self, environment: Environment, mark: str, seconds: float) -> None:
        """Start it. Raises OSError if there can be no further process."""
        self._environment = environment
        self._mark = mark
        self._seconds = seconds
        self._beat_at = environment.now()
        self._was_paused = False
        self._beating = trio.CancelScope()
        self._process, self._pipe = _start(mark, seconds)

    @property
    def guardian_pid(self) -> int:
        """The process id of the guardian; another one after somebody has killed it."""
        return self._process.pid

    @property
    def was_paused(self) -> bool:
        """Whether this process has not run for so long that the guardian has killed what it guards, and nothing was started since."""
        return self._was_paused or self._environment.now() - self._beat_at >= self._seconds

    def starts(self) -> None:
        """Something is started, which no pause before has ended."""
        self._was_paused = False

    async def beat(self) -> None:
        """Tell the guardian, until `aclose` or cancelled, that this process runs; start another one if somebody has killed it."""
        with self._beating:
            while True:
                # Whoever sees a process end in the same moment must still hear of the pause.
                self._was_paused = self.was_paused
                self._beat_at = self._environment.now()
                try:
                    os.write(self._pipe, b".")
                except BlockingIOError:
                    # It is stopped itself, and has enough to read when it goes on.
                    pass
                except BrokenPipeError:
                    logger.warning("the guardian of this agent's workers was killed; here is another one")
                    self._replace()
                await trio.sleep(self._seconds / BEATS)

    def _replace(self) -> None:
        killed, pipe = self._process, self._pipe
        self._process, self._pipe = _start(self._mark, self._seconds)
        os.close(pipe)
        killed.wait()

    async def aclose(self) -> None:
        """Have everything killed that carries the mark still, and end the guardian. Bounded; to be called shielded."""
        # Before the pipe is closed: its number may be another file's a moment later. A beat that is due by now is cancelled, too.
        self._beating.cancel()
        os.close(self._pipe)
        with trio.move_on_after(CLOSE_SECONDS) as waiting:
            await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
        if waiting.cancelled_caught:
            self._process.kill()


def _start(mark: str, seconds: float) -> tuple[subprocess.Popen[bytes], int]:
    """The guardian, and our end of the pipe to it, which does not block."""
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
