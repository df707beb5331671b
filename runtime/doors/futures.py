"""The futures of the blocking door, whose outcomes come in the thread of an event loop."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import trio

from actors.own_logger import own_logger
from runtime.user_errors import traceback_of

T = TypeVar("T")

logger = own_logger("understudy.doors")


class LoopFuture(Future[T]):
    """A `concurrent.futures.Future` whose callbacks cannot end the event loop that calls them.

    `concurrent.futures` logs what they raise, but for SystemExit, KeyboardInterrupt and the like:
    these would end the loop, and with it every connection of the process.
    """

    def add_done_callback(self, fn: Callable[[Future[T]], Any]) -> None:
        """Call `fn` with the future once it has its outcome, in the loop's thread, or at once in
        this one if it has. Do nothing there that takes long: the loop stands still meanwhile.
        """

        def contained(future: Future[T]) -> None:
            try:
                fn(future)
            except Exception:
                raise
            except BaseException as error:  # noqa: ASYNC103 - no checkpoint
                if not trio.lowlevel.in_trio_run():
                    # The future had its outcome: this is the thread that has added the callback.
                    raise
                logger.error(
                    "a callback of a future has raised what does not end the program here, in the "
                    "thread of its connections:\n%s",
                    traceback_of(error),
                )

        super().add_done_callback(contained)
