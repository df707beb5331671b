"""Writes lines to stderr from a thread, so that a stderr that is not read blocks no event loop.

A pipe that is full blocks the thread that writes to it: `understudy node ... | less`, a journal or
a container's log driver that stands still. In the event loop that would end the node's lease. So
lines wait in memory, bounded; further ones are dropped and counted, and a line says how many were.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable

import trio

from runtime.user_errors import whole_traceback_of

WAITING_BYTES = 1024 * 1024
"""Of lines that wait to be written, besides the one that is being written. A longer line is taken
when no other waits.
"""

LINE_COST = 100
"""Bytes that a waiting line is counted for besides its text, so that empty lines are bounded."""

FLUSH_SECONDS = 1.0
"""For what waits to be written at the end of the process."""

LOOK_SECONDS = 0.05
"""Between two looks whether there is room again."""

ATOMIC_BYTES = select.PIPE_BUF
"""A pipe that is ready takes so much without blocking."""


class StderrWriter:
    """Writes lines to the file `descriptor` in a thread. `limit`: bytes that wait at most. Any
    thread may call its methods.
    """

    def __init__(self, descriptor: int, limit: int = WAITING_BYTES) -> None:
        self._descriptor = descriptor
        self._limit = limit
        self._dropped = 0
        """Lines that were dropped and that no line has reported yet."""
        self._begin()
        # A fork copies neither the thread nor the state of a lock that another thread holds.
        begin = weakref.WeakMethod(self._begin)
        os.register_at_fork(after_in_child=lambda: _call(begin))

    def _begin(self) -> None:
        # The lock is reentrant: a signal handler, or a finalizer, may log in the middle of a call.
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._size = 0
        """Bytes of the lines that wait, and what they cost besides."""
        self._writing = False
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def _is_empty(self) -> bool:
        return not self._lines and not self._writing and not self._dropped

    @property
    def is_full(self) -> bool:
        """True while a further line may be dropped."""
        return self._size >= self._limit // 2

    def write(self, text: str) -> None:
        """Write a line, without its line break. Never waits; drops the line if too much waits."""
        # Encoded outside of the lock: a line may have megabytes.
        line = text.encode("utf-8", "backslashreplace") + b"\n"
        with self._changed:
            if self._closed or not self._start():
                self._write_ready(line)
            elif self._size and self._size + len(line) + LINE_COST > self._limit:
                self._dropped += 1
            else:
                # The count stands where the lines are missing.
                self._tell_dropped()
                self._add(line)

    def flush(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait until everything is written, at most so long. False if it is not."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_empty, seconds)

    async def wait_room(self) -> None:
        """Wait until there is room for more lines; for those who can make their source wait."""
        # No event: the writer's thread may outlive the loop that waits.
        while self.is_full:  # noqa: ASYNC110
            await trio.sleep(LOOK_SECONDS)

    async def wait_written(self) -> None:
        """Wait until everything is written; without a thread, unlike `flush` in one."""
        while not self.flush(0):  # noqa: ASYNC110
            await trio.sleep(LOOK_SECONDS)

    def close(self) -> None:
        """Take no more lines; what waits is written. A later line is written at once, if stderr
        takes it.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _start(self) -> bool:
        if self._thread is None:
            # A daemon: a thread that is blocked in a write must not keep the process.
            thread = threading.Thread(target=self._run, name="stderr writer", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # The interpreter ends, or the process may have no more threads.
                return False
            self._thread = thread
        return True

    def _add(self, line: bytes) -> None:
        self._lines.append(line)
        self._size += len(line) + LINE_COST
        self._changed.notify_all()

    def _tell_dropped(self) -> None:
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._add(b"%d lines were left out here: stderr was not read\n" % dropped)

    def _run(self) -> None:
        changed = self._changed
        while True:
            with changed:
                while not self._lines:
                    self._tell_dropped()
                    if not self._lines:
                        if self._closed:
                            return
                        changed.wait()
                line = self._lines.popleft()
                self._size -= len(line) + LINE_COST
                self._writing = True
                assert self._lines or not self._size, "each line is counted once"
            # One by one: other processes may write to the same pipe, and short lines stay whole.
            self._send(line)
            with changed:
                self._writing = False
                changed.notify_all()

    def _send(self, line: bytes) -> None:
        # Not through sys.stderr: its lock, held by a thread that is blocked in a write, ends the
        # interpreter with a fatal error when that flushes its streams.
        rest = memoryview(line)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                # Another process has made the pipe, which they share, non-blocking.
                is_ready(self._descriptor, None)
            except OSError:
                # Closed, or its reader has gone: there is nowhere to write to.
                return

    def _write_ready(self, line: bytes) -> None:
        if is_ready(self._descriptor):
            self._send(line[: ATOMIC_BYTES - 1].rstrip(b"\n") + b"\n")


class StderrHandler(logging.Handler):
    """A handler of `logging` that never waits for stderr."""

    def __init__(self, writer: StderrWriter) -> None:
        super().__init__()
        self.writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        """Format a record and queue its line; never waits."""
        try:
            self.writer.write(self.format(record))
        except RecursionError:
            # As handlers of `logging` do: to handle it here would recurse as well.
            raise
        except Exception:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        """Write why a record could not be written, as a line that does not wait either."""
        error = sys.exception()
        if logging.raiseExceptions and error is not None:
            why = whole_traceback_of(error)
            self.writer.write(
                f"a line of the logger {record.name!r} cannot be written; it is logged at "
                f"{record.pathname}:{record.lineno}\n{why.rstrip()}"
            )

    def flush(self) -> None:
        """Wait until everything is written, at most `FLUSH_SECONDS`. At the end of the process."""
        self.writer.flush()

    def close(self) -> None:
        """Write what is queued, for a bounded time, and end the writer."""
        self.writer.close()
        super().close()


def stderr_handler() -> logging.Handler:
    """A handler for stderr that never waits; an ordinary one if stderr is no file, as in notebooks
    and tests.
    """
    descriptor = _descriptor()
    if descriptor is None:
        return logging.StreamHandler(sys.stderr)
    return StderrHandler(StderrWriter(descriptor))


def stderr_writer() -> StderrWriter | None:
    """The writer of the root logger's handler, so that all lines keep their order; a new one if it
    has none. None if stderr is no file.
    """
    for handler in logging.getLogger().handlers:
        if isinstance(handler, StderrHandler):
            return handler.writer
    descriptor = _descriptor()
    return None if descriptor is None else StderrWriter(descriptor)


def flush_stderr(seconds: float = FLUSH_SECONDS) -> bool:
    """Wait until what was logged is written, at most so long. False if stderr takes nothing."""
    handlers = logging.getLogger().handlers
    return all(one.writer.flush(seconds) for one in handlers if isinstance(one, StderrHandler))


def is_ready(descriptor: int, milliseconds: int | None = 0) -> bool:
    """True if a line can be written to a file without waiting, within this time; None waits."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(milliseconds))


def _descriptor() -> int | None:
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        # None, closed, or an object that is no file.
        return None


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    found = method()
    if found is not None:
        found()
