"""The fork server as its parent uses it: one warm process, many children, none left behind.

The parent does not fork itself, because a copy of its event loop would be useless. It starts a
fresh interpreter, the warm process, which does the imports once and forks the children; see
`runtime.processes.fork_loop`. The warm process reaps its children and reports each end at once.

No child outlives the block of `open_fork_server` or the parent, even if the parent is killed by
SIGKILL. The warm process kills all its descendants when its socket closes or when the kernel
signals the end of its parent, and the kernel kills the children when the warm process ends. If the
warm process itself is killed, its children end with it and are reported as killed by SIGKILL; after
that `start` raises ForkServerDiedError.
"""

from __future__ import annotations

import array
import math
import os
import select
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from signal import SIGKILL, SIGSTOP, SIGTERM, pidfd_send_signal

import attrs
import trio

from actors.errors import UnderstudyError
from runtime.environment import process_start, unwrap
from runtime.processes import protocol
from runtime.processes.fork_loop import (
    children_of,
    describe_main,
    kill_group_quietly,
    kill_quietly,
    refuse_import_of_main,
    share_main_alias,
    state_of,
)
from runtime.processes.printed_lines import PrintedLines, with_name

# How a process ended, as its parent's wait status tells it.


@attrs.frozen
class ExitStatus:
    """The end of a process: exactly one of `code` (it exited) and `signal` (it was killed)
    is set.
    """

    code: int | None
    signal: int | None

    @classmethod
    def of_wait_status(cls, status: int) -> ExitStatus:
        """Decode the status that `os.waitpid` returns."""
        return cls.of_return_code(os.waitstatus_to_exitcode(status))

    @classmethod
    def of_return_code(cls, code: int) -> ExitStatus:
        """Decode the return code of `subprocess`, in which a negative number is a signal."""
        return cls(code, None) if code >= 0 else cls(None, -code)

    def describe(self) -> str:
        """Return a text such as `exit code 3` or `killed by SIGKILL`."""
        if self.signal is None:
            return f"exit code {self.code}"
        try:
            return f"killed by {signal.Signals(self.signal).name}"
        except ValueError:
            return f"killed by signal {self.signal}"


# Errors of the processes of this machine.


class ProcessError(UnderstudyError):
    """The base class of the errors of `runtime.processes`."""


class ForkServerStartError(ProcessError):
    """The warm process could not import what it was asked to. A note and `remote_traceback` (text)
    say where it failed.
    """

    def __init__(self, text: str, *, remote_traceback: str = "") -> None:
        super().__init__(text)
        self.remote_traceback = remote_traceback
        if remote_traceback:
            self.add_note(remote_traceback)


class ForkServerDiedError(ProcessError):
    """The warm process has ended, or is closing, and starts no more children."""


class ChildDiedError(ProcessError):
    """A child ended before it reported anything. `name`, `exit_status` and `last_lines` of its
    output say how.
    """

    def __init__(self, name: str, exit_status: ExitStatus, last_lines: tuple[str, ...]) -> None:
        text = f"process {name} ended before it was ready: {exit_status.describe()}"
        super().__init__(
            "\n  ".join([f"{text}; its last output:", *last_lines])
            if last_lines
            else f"{text}, without any output"
        )
        self.name = name
        self.exit_status = exit_status
        self.last_lines = last_lines

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.name, self.exit_status, self.last_lines), vars(self)


# Splits the output of a process into lines. Pure, and bounded for any input.

MAX_LINE_BYTES = 64 * 1024
"""Bytes after which a line is passed on in pieces."""


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


# A child process as its parent sees it: its pid, its output line by line, its first report, its
# end.

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


# The warm process from outside: starting its interpreter, and ending it if it does not end by
# itself.

_POLL_TIME = 0.002
"""Seconds between two looks at processes that are being killed: the kernel reports the stop of a
process only to its parent.
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
            await trio.to_thread.run_sync(self.process.wait, abandon_on_cancel=True)
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
                while state_of(pid) not in {"T", "t", "Z", ""}:  # noqa: ASYNC110 - the kernel sets no event
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
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    return flags


_SERVER_NAME = "fork-server"

_READING_TIME = 0.5
"""Seconds that `ready` waits at least: an answer may have come while the event loop was blocked."""


_KILL_TIME = 3.0
"""Seconds that the warm process has to kill and reap its descendants before it is killed itself."""


@asynccontextmanager
async def open_fork_server(
    *,
    preload: Sequence[str] = (),
    on_line: OnLine | None = None,
    text_of: Callable[[str, str], str] = with_name,
    grace: float = 5.0,
    ready_timeout: float = 30.0,
    wait_ready: bool = True,
) -> AsyncIterator[ForkServer]:
    """Start a warm process. When the block is left, end it and all its children.

    `preload`: modules to import once, before any child is forked. The main script of this program
    is imported as well, as `__main__`, without the code under `if __name__ == "__main__":`. Do not
    preload modules that start threads, because a fork copies only one thread.

    `on_line` is called with a child's name and each line that it or its descendants print; by
    default what `text_of` makes of the two, `[name] line`, is written to stderr. Output of the
    imports has the name `fork-server`. If `on_line` raises, that error ends the block, and it is
    not called again. A stderr that nobody reads stops the children that print, not the event loop.

    When the block is left, children get SIGTERM, after `grace` seconds SIGKILL. Their orphaned
    descendants are killed too.

    `wait_ready=False`: the block begins while the imports are under way. `ForkServer.ready` waits
    for them, and raises what this would raise otherwise.

    Raises ForkServerStartError if an import fails (with its traceback), if the script lacks the
    guard, or if the imports take more than `ready_timeout` seconds; ForkServerDiedError if the warm
    process ends before it is ready.
    """
    refuse_import_of_main()
    printed = PrintedLines(text_of)
    lines = _OutputLines(on_line or printed.take)
    server = ForkServer(
        lines.take, grace, printed.wait_room if on_line is None else None, ready_timeout
    )
    failure: BaseException | None = None
    alone: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server._attend)
            nursery.start_soon(lines.raise_failure)
            try:
                await server._set_up(preload)
                if wait_ready:
                    await server.ready()
                yield server
            except BaseException as error:
                failure = error
                raise
            finally:
                # Shielded, so that a cancelled caller leaves no processes behind. Bounded by the
                # sum of the time-outs in `_close`.
                with trio.move_on_after(grace + 5 * _KILL_TIME, shield=True):
                    await server._close()
                    await printed.flush()
                server._stop_attending()
                lines.settled.set()
    except BaseExceptionGroup as group:
        # The only nursery around the caller's block is ours. So the block's own error, or that of
        # `on_line`, is raised as it is and not in a group. The same holds for Ctrl-C, which may
        # interrupt one of our own tasks.
        alone = unwrap(group)
        if not isinstance(alone, KeyboardInterrupt):
            if group.exceptions not in ((failure,), (lines.failure,)):
                raise
            alone = group.exceptions[0]
    if alone is not None:
        raise alone


class ForkServer:
    """Starts processes; from `open_fork_server`. Its methods may be called from several tasks at
    once.
    """

    def __init__(
        self, on_line: OnLine, grace: float, wait_room: WaitRoom | None, ready_timeout: float
    ) -> None:
        self._on_line = on_line
        self._wait_room = wait_room
        self._grace = grace
        self._ready_timeout = ready_timeout
        self._ready_by = trio.current_time() + ready_timeout
        self._imported = "nothing"
        self._warm = launch()
        self._control = trio.socket.from_stdlib_socket(self._warm.control)
        self._output = Output(_SERVER_NAME, self._warm.output, on_line, wait_room)
        # Unbounded, so that `send_signal` need not wait. The number of messages is bounded by the
        # tasks in `start`, each of which waits for its answer, and by signals, which are small.
        self._outgoing, self._to_send = trio.open_memory_channel[_OutgoingMessages](math.inf)
        self._children: dict[int, ChildProcess] = {}
        self._last_number = 0
        self._closing = False
        self._attended = True
        self._lifetime = trio.CancelScope(shield=True)
        self._nursery: trio.Nursery | None = None
        self._set_up_answer: protocol.ServerReady | protocol.SetUpFailed | None = None
        self._set_up_answered = trio.Event()
        self._disconnected = trio.Event()
        self._silent = trio.Event()

    @property
    def pid(self) -> int:
        """The process id of the warm process."""
        return self._warm.process.pid

    async def start(self, target: str, argument: bytes, name: str) -> ChildProcess:
        """Fork a child that calls `target(argument, report)`. Returns when the process exists.

        `target` is `module:function`. It is imported in the child, so if it does not exist the
        child ends with a traceback and exit code 1. `report` is a function that sends up to 64 KiB
        here: `ChildProcess.ready` returns the first message, later ones are dropped. The child
        leads its own session, reads nothing from stdin, and has default signal handlers. When
        `target` returns, it exits with code 0. If the caller is cancelled, the child is killed.

        Waits for the imports, and raises what `ready` raises. Raises ForkServerDiedError if the
        warm process has ended or is closing, ProcessError if the system grants no more processes,
        ValueError if `argument` is larger than 64 MiB. A checkpoint.
        """
        failed = isinstance(self._set_up_answer, protocol.SetUpFailed)
        if failed or (self._set_up_answer is None and not self._closing):
            await self.ready()
        if self._closing or self._nursery is None:
            raise ForkServerDiedError(
                f"cannot start {name}: the warm process (pid {self.pid}) has ended or is closing; "
                "open a new fork server"
            )
        self._last_number = number = self._last_number + 1
        request = protocol.encode(protocol.StartProcess(number, name, target, argument))
        output, report, theirs = _pipes()
        child = ChildProcess(
            name,
            Output(name, output, self._on_line, self._wait_room),
            report,
            partial(self._signal, number),
        )
        self._children[number] = child
        self._nursery.start_soon(child.follow)
        self._outgoing.send_nowait(_OutgoingMessages(request, theirs))
        try:
            await child.started.wait()
        # The request cannot be withdrawn: the child may exist already, or soon. The signal follows
        # the request in the same queue, so it finds the child.
        except trio.Cancelled:
            child.send_signal(SIGKILL)
            raise
        if child.refusal is not None:
            raise ProcessError(f"cannot start {name}: {child.refusal}")
        if child.pid == 0:
            raise ForkServerDiedError(
                f"cannot start {name}: the warm process (pid {self.pid}) ended meanwhile; open a "
                "new fork server"
            )
        return child

    async def _attend(self) -> None:
        """Carry messages and output until `_stop_attending`. Its own shielded scope keeps it
        running when the owner is cancelled, because `_close` needs it.
        """
        try:
            with self._lifetime:
                async with trio.open_nursery() as self._nursery:
                    self._nursery.start_soon(self._output.follow)
                    self._nursery.start_soon(self._send_all)
                    self._nursery.start_soon(self._receive_all)
        finally:
            # However this ends, wake every task that waits for an answer of the warm process.
            self._closing, self._attended = True, False
            self._set_up_answered.set()
            self._disconnected.set()
            self._silent.set()

    async def _set_up(self, preload: Sequence[str]) -> None:
        """Send the import request. When this returns, the warm process has it, even if the event
        loop is blocked from now on.
        """
        main = describe_main()
        if main is not None:
            share_main_alias()
        argv = [os.fsencode(argument) for argument in sys.argv]
        request = protocol.SetUp(
            argv,
            list(preload),
            main.name if main else None,
            os.fsencode(main.path) if main else None,
        )
        self._imported = ", ".join([*preload, *([main.path] if main else [])]) or "nothing"
        try:
            await self._send(_OutgoingMessages(protocol.encode(request), ()))
        except OSError:
            # The warm process has ended already: `_receive_all` notices it, and `ready` says so.
            pass

    async def ready(self) -> None:
        """Wait until the warm process has imported what it was asked to. A checkpoint.

        Raises ForkServerStartError if an import fails, or if `ready_timeout` seconds have passed
        since the process was started; ForkServerDiedError if the process ends before.
        """
        by = max(self._ready_by, trio.current_time() + _READING_TIME)
        with trio.move_on_at(by) as limit:
            await self._set_up_answered.wait()
        answer = self._set_up_answer
        if limit.cancelled_caught:
            last = (
                "\n  ".join(["; its last output:", *self._output.last_lines])
                if self._output.last_lines
                else ""
            )
            raise ForkServerStartError(
                f"the warm process (pid {self.pid}) was not ready after "
                f"{self._ready_timeout:g} s and is killed; it was to import {self._imported}: "
                f"find what hangs there, or allow more time with ready_timeout{last}"
            )
        if isinstance(answer, protocol.SetUpFailed) and answer.unguarded_line:
            raise ForkServerStartError(
                f"{answer.what}, line {answer.unguarded_line}, starts processes when the script is "
                "imported, and each of these processes imports it to find your classes: put what "
                'the script runs under `if __name__ == "__main__":`'
            )
        if isinstance(answer, protocol.SetUpFailed):
            raise ForkServerStartError(
                f"the warm process could not import {answer.what}",
                remote_traceback=answer.traceback,
            )
        if answer is None:
            await self._warm.reap(_KILL_TIME)
            self._output.drain()
            code = self._warm.process.returncode
            how = (
                "it closed its socket"
                if code is None
                else ExitStatus.of_return_code(code).describe()
            )
            last = "\n  ".join(["", *self._output.last_lines])
            raise ForkServerDiedError(
                f"the warm process (pid {self.pid}) ended before it was ready: {how}{last}"
            )

    async def _close(self) -> None:
        """End all children, then the warm process: first gracefully, then by force. The caller
        shields it and bounds its time.
        """
        self._closing = True
        children = list(self._children.values())
        if self._set_up_answer is None:
            # The warm process may hang in an import. It has no children yet, so nothing has to end
            # gracefully.
            await self._warm.kill_tree(_KILL_TIME)
        elif self._attended:
            # All of them first: they end side by side within one grace period.
            for child in children:
                child.send_signal(SIGTERM)
            with trio.move_on_after(self._grace):
                for child in children:
                    await child.wait()
        try:
            self._control.shutdown(socket.SHUT_WR)
        except OSError:
            # The warm process has ended already.
            pass
        # A stopped process handles no messages: it has not forwarded the SIGTERM above, and will
        # not see the end of its socket. So do not wait for it.
        with trio.move_on_after(0 if self._warm.is_stopped() else _KILL_TIME) as limit:
            await self._disconnected.wait()
        if limit.cancelled_caught or not await self._warm.reap(_KILL_TIME):
            await self._warm.kill_tree(_KILL_TIME)
        # Nothing more is sent. `_attend` returns when every pipe is at its end.
        self._attended = False
        self._outgoing.close()
        with trio.move_on_after(_KILL_TIME):
            await self._silent.wait()

    def _stop_attending(self) -> None:
        """Close every descriptor and cancel `_attend`, whatever `_close` has achieved."""
        self._warm.process.kill()
        # The pipes first, so that `_lost` passes on no more output.
        for child in self._children.values():
            child.close()
        self._lost()
        self._lifetime.cancel()
        self._control.close()
        self._output.close()
        while True:
            try:
                self._to_send.receive_nowait().close()
            except (trio.WouldBlock, trio.ClosedResourceError, trio.EndOfChannel):
                return

    def _signal(self, number: int, signum: int) -> None:
        if self._attended:
            self._outgoing.send_nowait(
                _OutgoingMessages(protocol.encode(protocol.Signal(number, signum)), ())
            )

    async def _send_all(self) -> None:
        async for message in self._to_send:
            try:
                await self._send(message)
            except OSError:
                # The warm process has ended; `_receive_all` notices it and wakes all waiting tasks.
                # Go on, to close the descriptors of the remaining messages.
                pass
            finally:
                message.close()

    async def _send(self, message: _OutgoingMessages) -> None:
        rest = memoryview(message.data)
        rights = (
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", message.descriptors))]
            if message.descriptors
            else []
        )
        # The descriptors travel with the first byte; sending them again would duplicate them.
        while rest:
            rest = rest[await self._control.sendmsg([rest], rights) :]
            rights = []

    async def _receive_all(self) -> None:
        frames = protocol.MessageReader()
        while True:
            try:
                data = await self._control.recv(_CHUNK)
            except OSError:
                data = b""
            if not data:
                break
            for body in frames.feed(data):
                self._act_upon(protocol.decode(body))
        self._lost()

    def _act_upon(self, message: protocol.Message) -> None:
        match message:
            case protocol.ServerReady() | protocol.SetUpFailed():
                self._set_up_answer = message
                self._set_up_answered.set()
            case protocol.Started(number, pid):
                self._children[number].set_started(pid)
            case protocol.Refused(number, reason):
                self._children.pop(number).set_refused(reason)
            case protocol.Exited(number, status):
                self._children.pop(number).set_ended(ExitStatus.of_wait_status(status))
            case _:
                raise AssertionError(f"the warm process sent {message}")

    def _lost(self) -> None:
        """Handle the end of the warm process: report all children as killed. The kernel kills them
        at its end, except those that changed their credentials (that clears the parent-death
        signal), so each group is signalled here as well.
        """
        self._closing = True
        # Removed one by one, so that an error in one of them leaves none twice.
        while self._children:
            _, child = self._children.popitem()
            if child.pid:
                kill_group_quietly(child.pid)
            child.set_ended(ExitStatus(None, SIGKILL))
        self._set_up_answered.set()
        self._disconnected.set()


class _OutputLines:
    """Calls the caller's `on_line` until that raises. The error is kept for the one task that
    raises it, because the tasks that read output must go on.
    """

    def __init__(self, on_line: OnLine) -> None:
        self._on_line = on_line
        self.failure: BaseException | None = None
        self.settled = trio.Event()

    def take(self, name: str, line: str) -> None:
        if self.failure is None:
            try:
                self._on_line(name, line)
            except BaseException as error:  # noqa: ASYNC103 - raised below; a KeyboardInterrupt may come while it runs
                self.failure = error
                self.settled.set()

    async def raise_failure(self) -> None:
        await self.settled.wait()
        if self.failure is not None:
            raise self.failure


@attrs.frozen
class _OutgoingMessages:
    """A message to the warm process, with the descriptors that travel with it. They are closed here
    in any case: the receiver has its own copies.
    """

    data: bytes
    descriptors: tuple[int, ...]

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


def _pipes() -> tuple[int, int, tuple[int, int]]:
    """Create a child's output and report pipes. Returns our two read ends, and the child's two
    write ends.
    """
    output, output_writer = os.pipe()
    try:
        report, report_writer = os.pipe()
    except OSError:
        os.close(output)
        os.close(output_writer)
        raise
    return output, report, (output_writer, report_writer)
