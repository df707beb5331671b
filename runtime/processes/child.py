"""A child process as its parent sees it: its pid, its output line by line, its first report, its end."""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable
from signal import SIGKILL, pidfd_send_signal

import trio

from runtime.liveness import process_start
from runtime.processes import protocol
from runtime.processes.errors import ChildDiedError
from runtime.processes.output import LineSplitter
from runtime.processes.status import ExitStatus

KILL_SECONDS = 1.0
"""How long the end of a process that was killed is waited for: one that the kernel cannot end now runs nothing of its own either."""

_CHUNK = 64 * 1024
_DRAIN_LIMIT = 1024 * 1024
_LAST_LINES = 20
_LAST_LINE_CHARACTERS = 500

OnLine = Callable[[str, str], None]


class Output:
    """The read end of a process's stdout and stderr. Reads no faster than `on_line` takes: a flood blocks its writer."""

    def __init__(self, name: str, descriptor: int, on_line: OnLine) -> None:
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._name = name
        self._stream = trio.lowlevel.FdStream(descriptor)
        self._on_line = on_line
        self._splitter = LineSplitter()

    async def follow(self) -> None:
        """Pass lines on until every process that holds the write end has ended."""
        try:
            while data := await self._stream.receive_some(_CHUNK):
                self._pass_on(self._splitter.feed(data))
            self._pass_on(self._splitter.flush())
        except trio.ClosedResourceError:
            # Closed meanwhile, because the process never came to exist.
            pass
        finally:
            self.close()

    def drain(self) -> None:
        """Pass on at once what its process wrote before it ended. Bounded, because a descendant may still be writing."""
        if self._stream.fileno() < 0:
            return
        for _ in range(_DRAIN_LIMIT // _CHUNK):
            data = read_available(self._stream)
            self._pass_on(self._splitter.feed(data))
            if not data:
                break
        self._pass_on(self._splitter.flush())

    def note(self, line: str) -> None:
        """Pass on a line about the process, as if it had printed it."""
        self._pass_on([line])

    def close(self) -> None:
        """Stop listening."""
        self._stream.close()

    def _pass_on(self, lines: list[str]) -> None:
        for line in lines:
            self.last_lines.append(line[:_LAST_LINE_CHARACTERS])
            self._on_line(self._name, line)


class ChildProcess:
    """A process that a fork server started, from `ForkServer.start`. Its methods may be called from many tasks at once."""

    def __init__(self, name: str, output: Output, report: int, send_signal: Callable[[int], None]) -> None:
        self._name = name
        self._pid = 0
        self._birth = ""
        """When it started, which tells it from a later process with the same id."""
        self._refusal: str | None = None
        self._output = output
        self._report = trio.lowlevel.FdStream(report)
        self._frames = protocol.FrameReader(protocol.MAX_REPORT_BYTES)
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
        """As given to `start`."""
        return self._name

    @property
    def pid(self) -> int:
        """The process id; after the end of the process the system may give it to another."""
        return self._pid

    @property
    def exit_status(self) -> ExitStatus | None:
        """How it ended; None while it runs."""
        return self._exit_status

    async def wait(self) -> ExitStatus:
        """Wait for the end of the process; all that it printed has been passed on by then. Always a checkpoint."""
        await self._ended.wait()
        assert self._exit_status is not None
        return self._exit_status

    async def ready(self) -> bytes:
        """The first message that the child reported. Always a checkpoint.

        Raises ChildDiedError if the process ends without one; a process that writes anything but reports to its report pipe is killed.
        A process that neither reports nor ends is waited for: set a deadline.
        """
        await self._settled.wait()
        if self._first_report is not None:
            return self._first_report
        assert self._exit_status is not None
        raise ChildDiedError(self._name, self._exit_status, tuple(self._output.last_lines))

    def kill(self) -> None:
        """Kill the process (SIGKILL), and return when it runs no more: this blocks for some milliseconds, at most for `KILL_SECONDS`.

        Nothing happens if it has ended.
        """
        if self._exit_status is not None:
            return
        try:
            descriptor = os.pidfd_open(self._pid)
        except OSError:
            # It has just ended, or this kernel has no such thing; the warm process knows its children in any case.
            self._send_signal(SIGKILL)
            return
        try:
            # The child is the warm process's, which may have reaped it: the descriptor is of it if it has this pid still.
            if self._birth and process_start(self._pid) == self._birth:
                pidfd_send_signal(descriptor, SIGKILL)
                poll = select.poll()
                poll.register(descriptor, select.POLLIN)
                poll.poll(KILL_SECONDS * 1000)
        except ProcessLookupError:
            # It ended by itself meanwhile.
            pass
        finally:
            os.close(descriptor)

    def send_signal(self, signum: int) -> None:
        """Have the process sent a signal, soon. Nothing happens if it has ended; its pid in other hands is never signalled."""
        if self._exit_status is None:
            self._send_signal(signum)

    async def follow(self) -> None:
        """Listen to the process's output and reports. For the fork server."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._output.follow)
            nursery.start_soon(self._follow_reports)

    def set_started(self, pid: int) -> None:
        """The process exists. For the fork server."""
        self._pid = pid
        self._birth = process_start(pid)
        self.started.set()

    @property
    def refusal(self) -> str | None:
        """Why there never was a process, once `started` is set. For the fork server."""
        return self._refusal

    def set_refused(self, reason: str) -> None:
        """The process could not be created. For the fork server."""
        self._refusal = reason
        self.close()
        self.started.set()

    def set_ended(self, status: ExitStatus) -> None:
        """The process has ended. For the fork server."""
        self._output.drain()
        while data := read_available(self._report):
            self._reported(data)
        self._report.close()
        self._exit_status = status
        self.started.set()
        self._settled.set()
        self._ended.set()

    def close(self) -> None:
        """Stop listening. For the fork server."""
        self._output.close()
        self._report.close()

    async def _follow_reports(self) -> None:
        try:
            while data := await self._report.receive_some(_CHUNK):
                self._reported(data)
        except trio.ClosedResourceError:
            # The process has ended; `set_ended` has read what was left.
            pass
        finally:
            self._report.close()

    def _reported(self, data: bytes) -> None:
        try:
            bodies = self._frames.feed(data)
        except ValueError as error:
            # Nothing that follows can be told from garbage either.
            self._report.close()
            self._output.note(f"killed, because its report pipe brought no report: {error}")
            self.send_signal(SIGKILL)
            return
        for body in bodies:
            if self._first_report is None:
                self._first_report = body
                self._settled.set()


def read_available(stream: trio.lowlevel.FdStream) -> bytes:
    """What can be read without waiting; empty if there is nothing, or the stream is closed or at its end."""
    descriptor = stream.fileno()
    if descriptor < 0:
        return b""
    try:
        return os.read(descriptor, _CHUNK)
    except BlockingIOError:
        return b""
