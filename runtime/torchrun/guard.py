"""A guardian for the workers of an agent of torch, which does not have one: they end with their agent, in whatever way that ends."""

from __future__ import annotations

import logging
import os

import trio

from runtime.elastic import guardian
from runtime.elastic.guarding import start_guardian

BEATS = 4
"""How often the guardian hears of the agent while it waits."""
CLOSE_SECONDS = 5.0

logger = logging.getLogger("understudy.rendezvous")


class Guard:
    """A process that kills all that carry `mark` when this process has ended, or when it has not run for `seconds`.

    Whatever this process starts from now on carries the mark: torch gives its own environment to its workers.
    """

    def __init__(self, mark: str, seconds: float) -> None:
        self._seconds = seconds
        self._beating = trio.CancelScope()
        self._process, self._writer = start_guardian(mark, seconds)
        os.environ[guardian.MARK] = mark

    async def beat(self) -> None:
        """Tell it, until `aclose` or cancelled, that this process runs."""
        with self._beating:
            while True:
                try:
                    os.write(self._writer, b".")
                except BlockingIOError:
                    # It has not been running for long, and finds enough when it does.
                    pass
                except BrokenPipeError:
                    logger.warning("the guardian of this agent's workers was killed: what it would have done is not done any more")
                    return
                await trio.sleep(self._seconds / BEATS)

    async def aclose(self) -> None:
        """Have everything killed that carries the mark still, and end the guardian. Bounded."""
        os.environ.pop(guardian.MARK, None)
        # Before the pipe is closed: its number may be another file's a moment later.
        self._beating.cancel()
        await trio.lowlevel.checkpoint()
        os.close(self._writer)
        with trio.move_on_after(CLOSE_SECONDS):
            await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)


def is_guarded() -> bool:
    """Whether this process is itself guarded by somebody, who looks after all that it starts."""
    return guardian.MARK in os.environ
