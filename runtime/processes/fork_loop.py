"""The warm process: a fresh interpreter that has done the imports and forks children on request, in
about 3 ms each.

Its code is blocking and runs in one thread, because a fork copies only the calling thread. It never
runs trio, so each child starts its own event loop from nothing.

No process is left behind. The warm process is the parent of all children and reaps them. Each child
is a subreaper (prctl(2)): it adopts orphans among its descendants. So orphans reach the warm
process only when their child has ended, and then it kills them. When the socket is closed, or its
own parent ends for any reason, the warm process kills every descendant and ends. If it is killed
itself, its parent kills them: `runtime.processes.outer_process`.

The design is that of Android's zygote and of multiprocessing's fork server. Children share what was
imported, including files that user modules have opened. `random` and `numpy.random` are seeded
again in each child.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import os
import selectors
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable

import attrs

from runtime.processes import protocol
from runtime.processes.linux_processes import (
    adopt_orphans,
    children_of_this_process,
    descendants_of,
    die_with_parent,
    kill_quietly,
    name_process,
)
from runtime.processes.main_script import MainModule, run_main, unguarded_line
from runtime.user_errors import (
    MOST_TRACEBACK,
    is_machinery,
    shortened,
    summary_of,
    traceback_object,
    whole_traceback_of,
)

YOUNG, MIDDLE, OLD = 50_000, 20, 100
"""Thresholds of the collector's generations: allocations, then collections of the one before."""

MOST_REASON = 1000
"""Characters of the text of an exception that an import raised, in the one line that names it."""

_CHUNK = 64 * 1024


# The garbage collector's settings for a process that is a node and nothing else.


def settle_collector() -> None:
    """Make garbage collections rarer and smaller: freeze what exists now, because it will stay, and
    raise the thresholds, because calls leave no cycles. With Python's defaults, a busy node spends
    a quarter of its time in collections of modules, classes and idle actors.

    Only for processes of our own. A program that opens a node decides for itself
    (`docs/operate/speed.md`).
    """
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)


@attrs.frozen
class _Task:
    """The program of a freshly forked child: `target` with `argument`. `report`: the descriptor of
    its report pipe.
    """

    target: str
    argument: bytes
    report: int

    def run(self) -> None:
        module, _, path = self.target.partition(":")
        function: object = importlib.import_module(module)
        for name in path.split("."):
            function = getattr(function, name)
        assert callable(function)
        function(self.argument, self._send)

    def _send(self, message: bytes) -> None:
        rest = memoryview(protocol.encode_frame(message, protocol.MAX_REPORT_BYTES))
        while rest:
            rest = rest[os.write(self.report, rest) :]


def main(descriptor: int, parent: int) -> None:
    """Run the warm process. `descriptor`: our end of the socket pair. `parent`: the pid of the
    outer process, which forked us.

    Returns in no process: children end when their target has returned.
    """
    # While there are no children, the kernel may kill us at the parent's end: an import that hangs
    # must not outlive the parent. Later it sends SIGTERM, because then there are children to kill
    # first.
    die_with_parent(signal.SIGKILL, parent)
    adopt_orphans()
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    server = _ForkLoop(control)
    own_pid = os.getpid()
    task = None
    if server.set_up():
        die_with_parent(signal.SIGTERM, parent)
        try:
            task = server.serve()
        except BaseException:  # noqa: ASYNC103
            # The end of this process, whatever it is; no trio runs here.
            # An exception in a child belongs to the child: it must not reach the parent's clean-up
            # below.
            if os.getpid() != own_pid:
                raise
            traceback.print_exc()
    if task is None:
        server.kill_everything()
        _flush_output()
        # Not sys.exit: it would run exit handlers and wait for threads of user modules, which could
        # keep this process alive.
        os._exit(0)
    task.run()
    _exit_child()


def _exit_child() -> None:
    """End a child whose target has returned, as Python ends: wait for its threads, run its exit
    handlers, write its output.

    What is left out is that Python frees all modules and objects. That writes to nearly all memory
    that the child shares with the warm process, which the kernel would have to copy first.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _flush_output()
    # Of C libraries, which have buffers of their own.
    ctypes.CDLL(None).fflush(None)
    os._exit(0)


class _ForkLoop:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._frames = protocol.MessageReader()
        self._pending: deque[protocol.Message] = deque()
        self._descriptors: deque[int] = deque()
        self._numbers: dict[int, int] = {}
        """The numbers of living children, by pid."""
        self._pids: dict[int, int] = {}
        """The same, the other way round."""
        self._older: frozenset[int] = frozenset()
        """Processes that imports started before there were children. They are not orphans of
        children, so `_end_what_was_left` spares them.
        """
        self._connected = True
        self._pid = os.getpid()
        self._wakeup, self._wakeup_writer = socket.socketpair()

    def set_up(self) -> bool:
        """Say which process this is. Then do the imports that the other end of the socket asks for,
        and report the result. Returns False if the process must end.
        """
        self._send(protocol.Begun(self._pid))
        while not self._pending and self._connected:
            self._receive()
        if not self._connected:
            return False
        request = self._pending.popleft()
        assert isinstance(request, protocol.SetUp)
        sys.argv = [os.fsdecode(argument) for argument in request.argv]
        what = ""
        try:
            for what in request.preload:
                importlib.import_module(what)
            # Collections would look at all of it again and again, and find nothing. The script of
            # the user may make garbage.
            gc.freeze()
            gc.enable()
            if request.main_path is not None:
                what = os.fsdecode(request.main_path)
                run_main(MainModule(request.main_name, what))
        except BaseException as error:  # noqa: ASYNC103
            # A script that exits is a failure to report as well; no trio runs here.
            line = unguarded_line(error, what)
            trace = "" if line else shortened(whole_traceback_of(error), MOST_TRACEBACK)
            self._send(protocol.SetUpFailed(_utf8(what), _utf8(trace), line, _utf8(_reason(error))))
            return False  # noqa: ASYNC104
        # Nothing imported so far is garbage. Excluding it from collections keeps its pages shared
        # with the children, because collections write to the objects that they look at.
        gc.freeze()
        self._older = frozenset(children_of_this_process())
        self._take_signals()
        self._send(protocol.ServerReady())
        return True

    def serve(self) -> _Task | None:
        """Fork and reap children until the socket is closed or the parent is gone, then return
        None. In a new child,
        returns its task.
        """
        with selectors.PollSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._wakeup, selectors.EVENT_READ)
            while self._connected:
                for key, _ in selector.select():
                    if key.fileobj is self._wakeup:
                        with contextlib.suppress(BlockingIOError):
                            self._wakeup.recv(_CHUNK)
                    else:
                        self._receive()
                self._reap(os.WNOHANG)
                while self._pending:
                    task = self._act_upon(self._pending.popleft())
                    if task is not None:
                        return task
        return None

    def kill_everything(self) -> None:
        """Kill (SIGKILL) and reap every descendant. Orphans of a killed child become our children,
        hence the loop.
        """
        while True:
            for pid in {*children_of_this_process(), *self._numbers}:
                kill_quietly(pid, signal.SIGKILL)
            if not self._reap(0):
                return

    def _act_upon(self, message: protocol.Message) -> _Task | None:
        if isinstance(message, protocol.Signal):
            # Safe from pid reuse: only this process reaps the child, so a pid in the table is still
            # the child's.
            if (pid := self._pids.get(message.number)) is not None:
                kill_quietly(pid, message.signum)
            return None
        assert isinstance(message, protocol.StartProcess)
        output, report = (
            self._descriptors.popleft() for _ in range(protocol.DESCRIPTORS_PER_START)
        )
        _flush_output()
        # Block signals until the child has its own handlers. Until then it shares our wake-up
        # socket, so a signal to the child would be written there, and the child would never see it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
        except OSError as error:
            pid = -1
            self._send(protocol.Refused(message.number, str(error)))
        if pid == 0:
            self._become_child(message.name, output)
            return _Task(message.target, message.argument, report)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(output)
        os.close(report)
        if pid > 0:
            # No child is reaped between the fork and this, so its pid is not in the table yet.
            assert pid not in self._numbers, "a pid in the table belongs to a living child"
            self._numbers[pid] = message.number
            self._pids[message.number] = pid
            assert len(self._numbers) == len(self._pids)
            self._send(protocol.Started(message.number, pid))
        return None

    def _become_child(self, name: str, output: int) -> None:
        """Release what belongs to the server: its session, signals and descriptors. Set up those of
        the child.
        """
        die_with_parent(signal.SIGKILL, self._pid)
        # Orphans among the child's descendants stay its descendants, even in sessions of their own,
        # so that they can be found and killed when it ends.
        adopt_orphans()
        # A session of its own: Ctrl-C in a terminal reaches only the parent, which decides what it
        # means for the children.
        os.setsid()
        signal.set_wakeup_fd(-1)
        for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if callable(signal.getsignal(signum)):
                signal.signal(signum, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for connection in (self._control, self._wakeup, self._wakeup_writer):
            connection.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # Whole lines, also with PYTHONUNBUFFERED: there, `print` writes a text and its line
                # break apart, and a line of another thread may come between them.
                stream.reconfigure(
                    encoding="utf-8",
                    errors="backslashreplace",
                    line_buffering=True,
                    write_through=False,
                )
        name_process(name)
        # Python seeds `random` after a fork. numpy's global generator is not seeded, so all
        # children would draw the same numbers.
        seed: Callable[[], object] | None = getattr(sys.modules.get("numpy.random"), "seed", None)
        if seed is not None:
            seed()

    def _take_signals(self) -> None:
        self._wakeup.setblocking(False)
        self._wakeup_writer.setblocking(False)
        signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda signum, frame: None)
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._terminated)
        # The process that started us may have blocked these signals, and the mask is inherited.
        # With SIGCHLD blocked we would not learn of a child's end.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT})

    def _terminated(self, signum: int, frame: object) -> None:
        self._connected = False

    def _reap(self, options: int) -> bool:
        """Reap children that have ended, and report their ends. Returns False if there are no
        children at all. With WNOHANG, reaps all that have ended; otherwise waits for one.
        """
        while True:
            try:
                pid, status = os.waitpid(-1, options)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            number = self._numbers.pop(pid, None)
            # Before the end is reported: the parent may start a successor at once, which must not
            # meet processes of its predecessor.
            self._end_what_was_left()
            if number is not None:
                del self._pids[number]
                self._send(protocol.Exited(number, status))
            if not options & os.WNOHANG:
                return True

    def _end_what_was_left(self) -> None:
        """Kill (SIGKILL) all processes that children left behind when they ended. They are reaped
        later like children.
        """
        for pid in children_of_this_process():
            if pid not in self._numbers and pid not in self._older:
                for left in (pid, *descendants_of(pid)):
                    kill_quietly(left, signal.SIGKILL)

    def _receive(self) -> None:
        descriptors = array.array("i")
        room = socket.CMSG_SPACE(protocol.DESCRIPTORS_PER_START * descriptors.itemsize)
        try:
            data, ancillary, flags, _ = self._control.recvmsg(_CHUNK, room, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            data, ancillary, flags = b"", [], 0
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(payload)
        # MSG_CTRUNC: the kernel dropped descriptors because this process has too many. The stream
        # of messages still counts them, so every later child would get those of another.
        if flags & socket.MSG_CTRUNC:
            raise OSError(
                "too many open files: the descriptors of a child's pipes were lost; raise "
                "the limit (ulimit -n)"
            )
        self._descriptors.extend(descriptors)
        self._connected = self._connected and bool(data)
        self._pending.extend(protocol.decode(body) for body in self._frames.feed(data))

    def _send(self, message: protocol.Message) -> None:
        try:
            self._control.sendall(protocol.encode(message))
        except OSError:
            self._connected = False


def _reason(error: BaseException) -> str:
    """`Type: text, at file:line`: what an import raised, and the innermost line of code that is
    neither the runtime's nor that of Python's imports; without the line if there is none.
    """
    text = shortened(summary_of(error), MOST_REASON)
    lines = [
        f"{file}:{line}"
        for frame, line in traceback.walk_tb(traceback_object(error))
        if not is_machinery(file := frame.f_code.co_filename)
        and not file.startswith("<frozen importlib")
        and file != importlib.__file__
    ]
    return f"{text}, at {lines[-1]}" if lines else text


def _utf8(text: str) -> str:
    """Return `text` with escapes for what UTF-8 cannot encode, such as file names that are not
    text.
    """
    return text.encode("utf-8", "backslashreplace").decode()


def _flush_output() -> None:
    """Flush all output streams. After a fork, every child would print what is still buffered once
    more.
    """
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
