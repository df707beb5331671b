"""What child processes print, written to this process's stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable

import trio

from runtime.stderr_writer import FLUSH_SECONDS, stderr_writer


def with_name(name: str, line: str) -> str:
    """`[name] line`."""
    return f"[{name}] {line}"


class PrintedLines:
    """Writes lines of child processes to stderr, without ever waiting for it in the event loop: a
    child waits instead, in its own write. `text_of`: the text for a child's name and its line.
    """

    def __init__(self, text_of: Callable[[str, str], str] = with_name) -> None:
        self._text_of = text_of
        self._writer = stderr_writer()

    def take(self, name: str, line: str) -> None:
        """Write a line."""
        text = self._text_of(name, line)
        if self._writer is not None:
            self._writer.write(text)
            return
        try:
            # No file, but an object of a notebook or a test.
            sys.stderr.write(f"{text}\n")
        except (AttributeError, OSError, ValueError):
            # stderr is closed. That must not end the children.
            pass

    async def wait_room(self) -> None:
        """Wait until there is room for more lines: before more of a child's output is read."""
        if self._writer is not None:
            await self._writer.wait_room()

    async def flush(self) -> None:
        """Wait until everything is written, bounded in time. Shield this from cancellation."""
        # Not `flush` in a thread: see `Warm.reap`.
        if self._writer is not None:
            with trio.move_on_after(FLUSH_SECONDS):
                await self._writer.wait_written()
