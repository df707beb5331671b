"""A child process as its parent sees it: its pid, its output line by line, its first report, and
its end.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Awaitable, Callable
from signal import SIGKILL, pidfd_send_signal

import trio

from runtime.environment import process_start
from runtime.processes import protocol
from runtime.processes.exit_status import ChildDiedError, ExitStatus

MAX_LINE_BYTES = 64 * 1024
"""Bytes after which a line is passed on in pieces."""

KILL_SECONDS = 1.0
"""Seconds that `kill` waits for the end of the process. A process that the kernel cannot end in
this time is in uninterruptible sleep and runs no code either.
"""

_CHUNK = 64 * 1024
"""Bytes of one read, which is what a pipe of Linux holds."""

_DRAIN_LIMIT = 1024 * 1024
"""Bytes that are read of an ended process's output without waiting."""

_LAST_LINES = 20
"""Lines of its output that the error of a process quotes."""

_LAST_LINE_CHARACTERS = 500
"""Characters of each of these lines."""

OnLine = Callable[[str, str], None]
"""Called with the name of a process and a line that it has printed."""

WaitRoom = Callable[[], Awaitable[None]]
"""Waits until `on_line` may be called again."""


class LineSplitter:
    """Bytes in, text lines out; invalid UTF-8 becomes U+FFFD. Keeps less than `MAX_LINE_BYTES`
    between calls.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that `data` completes, without line ends."""
        *whole, rest = (self._rest + data).split(b"\n")
        lines = [text for line in whole for text in self._pieces(line)]
        while len(rest) >= MAX_LINE_BYTES:
            cut = _character_boundary(rest, MAX_LINE_BYTES)
            lines.append(_text(rest[:cut]))
            rest = rest[cut:]
        assert len(rest) < MAX_LINE_BYTES, "the rest of a line is bounded"
        self._rest = rest
        return lines

    def flush(self) -> list[str]:
        """Return the last line if it has no line end."""
        rest, self._rest = self._rest, b""
        return self._pieces(rest) if rest else []

    def _pieces(self, line: bytes) -> list[str]:
        line = line.removesuffix(b"\r")
        if len(line) <= MAX_LINE_BYTES:
            return [_text(line)]
        pieces = []
        while line:
            cut = _character_boundary(line, MAX_LINE_BYTES)
            pieces.append(_text(line[:cut]))
            line = line[cut:]
        return pieces


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")


def _character_boundary(line: bytes, limit: int) -> int:
    """Return the largest cut up to `limit` that does not split a UTF-8 character (at most four
    bytes).
    """
    if len(line) <= limit:
        return len(line)
    for cut in range(limit, limit - 4, -1):
        if line[cut] & 0xC0 != 0x80:
            return cut
    return limit


class Output:
    """The read end of a process's stdout and stderr. It is read no faster than `on_line` and
    `wait_room` return, so a process that prints too fast blocks in its write.
    """

    def __init__(
        self, name: str, descriptor: int, on_line: OnLine, wait_room: WaitRoom | None
    ) -> None:
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._name = name
        self._stream = trio.lowlevel.FdStream(descriptor)
        self._on_line = on_line
        self._wait_room = wait_room
        self._splitter = LineSplitter()

    async def follow(self) -> None:
        """Pass lines to `on_line` until every process that holds the write end has ended."""
        try:
            while data := await self._stream.receive_some(_CHUNK):
                self._pass_on(self._splitter.feed(data))
                if self._wait_room is not None:
                    await self._wait_room()
            self._pass_on(self._splitter.flush())
        except trio.ClosedResourceError:
            # Closed by `close`, because the process could not be created.
            pass
        finally:
            self.close()

    def drain(self) -> None:
        """Pass on what the process wrote before it ended, without waiting. Bounded by
        `_DRAIN_LIMIT`, because a descendant may still be writing.
        """
        if self._stream.fileno() < 0:
            return
        for _ in range(_DRAIN_LIMIT // _CHUNK):
            data = read_available(self._stream)
            self._pass_on(self._splitter.feed(data))
            if not data:
                break
        self._pass_on(self._splitter.flush())

    def note(self, line: str) -> None:
        """Pass on a line about the process, as if the process had printed it."""
        self._pass_on([line])

    def close(self) -> None:
        """Close the read end."""
        self._stream.close()

    def _pass_on(self, lines: list[str]) -> None:
        for line in lines:
            self.last_lines.append(line[:_LAST_LINE_CHARACTERS])
            self._on_line(self._name, line)


class ChildProcess:
    """A process that a fork server started, from `ForkServer.start`. Its methods may be called from
    several tasks at once.
    """

    def __init__(
        self, name: str, output: Output, report: int, send_signal: Callable[[int], None]
    ) -> None:
        self._name = name
        self._pid = 0
        self._birth = ""
        """The start time of the process, which distinguishes it from a later process with the same
        pid.
        """
        self._refusal: str | None = None
        self._output = output
        self._report = trio.lowlevel.FdStream(report)
        self._frames = protocol.MessageReader(protocol.MAX_REPORT_BYTES)
        self._first_report: bytes | None = None
        self._exit_status: ExitStatus | None = None
        self._send_signal = send_signal
        self.started = trio.Event()
        self._settled = trio.Event()
        self._ended = trio.Event()

    def __repr__(self) -> str:
        state = "running" if self._exit_status is None else self._exit_status.describe()
        return f"<ChildProcess {self._name} pid={self._pid} {state}>"

    @property
    def name(self) -> str:
        """The name that was given to `start`."""
        return self._name

    @property
    def pid(self) -> int:
        """The process id. After the process has ended, the system may reuse the id."""
        return self._pid

    @property
    def exit_status(self) -> ExitStatus | None:
        """How the process ended; None while it runs."""
        return self._exit_status

    async def wait(self) -> ExitStatus:
        """Wait for the end of the process. By then all its output has been passed on. Always a
        checkpoint.
        """
        await self._ended.wait()
        assert self._exit_status is not None
        return self._exit_status

    async def ready(self) -> bytes:
        """Return the first message that the child reported. Always a checkpoint.

        Raises ChildDiedError if the process ends without a report. A process that writes anything
        else to its report pipe is killed. There is no time-out: set a deadline.
        """
        await self._settled.wait()
        if self._first_report is not None:
            return self._first_report
        assert self._exit_status is not None
        raise ChildDiedError(self._name, self._exit_status, tuple(self._output.last_lines))

    def kill(self) -> None:
        """Kill the process (SIGKILL) and wait until it has ended: this blocks the thread for some
        milliseconds, at most for `KILL_SECONDS`. Does nothing if it has ended.

        It is synchronous: when it returns, the process runs no code any more.
        """
        if self._exit_status is not None:
            return
        try:
            descriptor = os.pidfd_open(self._pid)
        except OSError:
            # The process has just ended, or the kernel has no pidfd. The warm process, which reaps
            # the child, can signal it safely in any case.
            self._send_signal(SIGKILL)
            return
        try:
            # The warm process may have reaped the child, and its pid may be another process's. The
            # descriptor is the child's if the pid still has the child's start time after the
            # descriptor was opened.
            if self._birth and process_start(self._pid) == self._birth:
                pidfd_send_signal(descriptor, SIGKILL)
                poll = select.poll()
                poll.register(descriptor, select.POLLIN)
                poll.poll(KILL_SECONDS * 1000)
            else:
                # It has ended, or cannot be seen, as where this process is out of descriptors: as
                # above.
                self._send_signal(SIGKILL)
        except ProcessLookupError:
            # The process ended by itself in the meantime.
            pass
        finally:
            os.close(descriptor)

    def send_signal(self, signum: int) -> None:
        """Ask the warm process to signal the child. Does nothing if the child has ended, and never
        signals another process that has its pid.
        """
        if self._exit_status is None:
            self._send_signal(signum)

    async def follow(self) -> None:
        """Read the process's output and reports. For the fork server."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._output.follow)
            nursery.start_soon(self._follow_reports)

    def set_started(self, pid: int) -> None:
        """The process exists. For the fork server."""
        assert self._exit_status is None, "a process exists before it ends"
        self._pid = pid
        self._birth = process_start(pid)
        self.started.set()

    @property
    def refusal(self) -> str | None:
        """Why the process could not be created, or None. Valid once `started` is set. For the fork
        server.
        """
        return self._refusal

    def set_refused(self, reason: str) -> None:
        """The process could not be created. For the fork server."""
        self._refusal = reason
        self.close()
        self.started.set()

    def set_ended(self, status: ExitStatus) -> None:
        """The process has ended. For the fork server, once for each process."""
        assert self._exit_status is None, "a process ends once"
        # First read what is still in the pipes: `wait` promises that all output has been passed on,
        # and a report may have arrived with the end.
        self._output.drain()
        while data := read_available(self._report):
            self._reported(data)
        self._report.close()
        self._exit_status = status
        self.started.set()
        self._settled.set()
        self._ended.set()

    def close(self) -> None:
        """Close the pipes. For the fork server."""
        self._output.close()
        self._report.close()

    async def _follow_reports(self) -> None:
        try:
            while data := await self._report.receive_some(_CHUNK):
                self._reported(data)
        except trio.ClosedResourceError:
            # Closed by `set_ended`, which has read the rest.
            pass
        finally:
            self._report.close()

    def _reported(self, data: bytes) -> None:
        try:
            bodies = self._frames.feed(data)
        except ValueError as error:
            # After an invalid length the boundaries of messages are lost, so nothing that follows
            # can be decoded.
            self._report.close()
            self._output.note(
                f"killed, because it wrote no valid report to its report pipe: {error}"
            )
            self.send_signal(SIGKILL)
            return
        for body in bodies:
            if self._first_report is None:
                self._first_report = body
                self._settled.set()


def read_available(stream: trio.lowlevel.FdStream) -> bytes:
    """Return what can be read without waiting; b"" if there is nothing, or the stream is closed or
    at its end.
    """
    descriptor = stream.fileno()
    if descriptor < 0:
        return b""
    try:
        return os.read(descriptor, _CHUNK)
    except BlockingIOError:
        return b""
