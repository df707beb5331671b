"""The fork server as its parent uses it: one warm process, many children, none left behind.

The parent never forks itself, for a copy of its event loop would be of no use to anybody: it starts a fresh interpreter, the warm process,
which does the imports once and forks the children. The warm process learns of a child's end from the wait status, at once, and says so.

However the block is left, and however the parent ends, SIGKILL included, no child outlives it: the warm process kills all its
descendants when its socket closes or when the kernel tells it that its parent is gone, and the kernel kills the children when the warm
process ends. If the warm process itself is killed, its children end with it and are reported as killed by SIGKILL; only `start` raises
ForkServerDiedError.
"""

from __future__ import annotations

import array
import math
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from signal import SIGKILL, SIGTERM

import attrs
import trio

from runtime.exception_groups import unwrap
from runtime.processes import protocol
from runtime.processes.child import ChildProcess, OnLine, Output
from runtime.processes.death import kill_group_quietly
from runtime.processes.errors import ForkServerDiedError, ForkServerStartError, ProcessError
from runtime.processes.launch import launch
from runtime.processes.main_module import describe_main, main_is_being_imported, share_main_alias
from runtime.processes.status import ExitStatus

_CHUNK = 64 * 1024
_SERVER_NAME = "fork-server"
_KILL_TIME = 3.0
"""Seconds that the warm process has to kill and reap its descendants before it is killed itself."""


@asynccontextmanager
async def open_fork_server(
    *, preload: Sequence[str] = (), on_line: OnLine | None = None, grace: float = 5.0, ready_timeout: float = 30.0
) -> AsyncIterator[ForkServer]:
    """Start a warm process, and end it and all its children when the block is left.

    `preload` names modules to import once, before any child is forked; the main script of this program is imported as well, as
    `__main__`, without running what stands under `if __name__ == "__main__":`. Modules that start threads do not belong there.
    `on_line` is called with a child's name and each line that it or its descendants print (by default `[name] line` goes to stderr);
    what the imports print comes under the name `fork-server`. What it raises ends the block, and it is not called again. At the end
    children get SIGTERM, `grace` seconds to end, then SIGKILL; their orphaned descendants are killed too.

    Raises ForkServerStartError if an import fails, with the traceback, or if the imports take more than `ready_timeout` seconds;
    ForkServerDiedError if the warm process ends before it is ready.
    """
    if main_is_being_imported():
        raise ForkServerStartError(
            "this script starts processes while it is being imported by the process that they come from; "
            'put what it runs under `if __name__ == "__main__":`'
        )
    lines = _Lines(on_line or _print_line)
    server = ForkServer(lines.take, grace)
    failure: BaseException | None = None
    alone: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server._attend)
            nursery.start_soon(lines.raise_failure)
            try:
                await server._set_up(preload, ready_timeout)
                yield server
            except BaseException as error:
                failure = error
                raise
            finally:
                with trio.move_on_after(grace + 5 * _KILL_TIME, shield=True):
                    await server._close()
                server._stop_attending()
                lines.settled.set()
    except BaseExceptionGroup as group:
        # Ours is the only nursery around the caller's block: its own error, or that of `on_line`, should come out as it was raised. So
        # should Ctrl-C, which interrupts whatever runs at the moment, one of our own tasks for example.
        alone = unwrap(group)
        if not isinstance(alone, KeyboardInterrupt):
            if group.exceptions not in ((failure,), (lines.failure,)):
                raise
            alone = group.exceptions[0]
    if alone is not None:
        raise alone


class ForkServer:
    """Starts processes; from `open_fork_server`. Its methods may be called from many tasks at once."""

    def __init__(self, on_line: OnLine, grace: float) -> None:
        self._on_line = on_line
        self._grace = grace
        self._warm = launch()
        self._control = trio.socket.from_stdlib_socket(self._warm.control)
        self._output = Output(_SERVER_NAME, self._warm.output, on_line)
        # Unbounded, so that send_signal need not wait. Whoever asks for a start waits for it, and signals are small.
        self._outgoing, self._to_send = trio.open_memory_channel[_Outgoing](math.inf)
        self._children: dict[int, ChildProcess] = {}
        self._last_number = 0
        self._accepts_starts = False
        self._attended = True
        self._lifetime = trio.CancelScope(shield=True)
        self._nursery: trio.Nursery | None = None
        self._set_up_answer: protocol.Ready | protocol.SetUpFailed | None = None
        self._set_up_answered = trio.Event()
        self._disconnected = trio.Event()
        self._silent = trio.Event()

    @property
    def pid(self) -> int:
        """The process id of the warm process."""
        return self._warm.process.pid

    async def start(self, target: str, argument: bytes, name: str) -> ChildProcess:
        """Fork a child that calls `target(argument, report)`, and return once it exists.

        `target` is `module:function`; it is imported in the child, so a mistake there ends the child with a traceback and exit code 1.
        `report` takes up to 64 KiB and sends them here: see `ChildProcess.ready`, which returns the first message; later ones are dropped.
        The child leads its own session, reads nothing from stdin, and has default signal handlers. When `target` returns it exits with
        code 0. If the caller is cancelled, the child, should it have come to exist, is killed.

        Raises ForkServerDiedError if the warm process has ended or is closing, ProcessError if the system grants no more processes,
        ValueError if `argument` is larger than 64 MiB. A checkpoint.
        """
        if not self._accepts_starts or self._nursery is None:
            raise ForkServerDiedError(
                f"cannot start {name}: the warm process (pid {self.pid}) has ended or is closing; open a new fork server"
            )
        self._last_number = number = self._last_number + 1
        request = protocol.encode(protocol.Start(number, name, target, argument))
        output, report, theirs = _pipes()
        child = ChildProcess(name, Output(name, output, self._on_line), report, partial(self._signal, number))
        self._children[number] = child
        self._nursery.start_soon(child.follow)
        self._outgoing.send_nowait(_Outgoing(request, theirs))
        try:
            await child.started.wait()
        except trio.Cancelled:
            child.send_signal(SIGKILL)
            raise
        if child.refusal is not None:
            raise ProcessError(f"cannot start {name}: {child.refusal}")
        if child.pid == 0:
            raise ForkServerDiedError(f"cannot start {name}: the warm process (pid {self.pid}) ended meanwhile; open a new fork server")
        return child

    async def _attend(self) -> None:
        """Carry messages and output until `_stop_attending`, even when our owner is cancelled."""
        try:
            with self._lifetime:
                async with trio.open_nursery() as self._nursery:
                    self._nursery.start_soon(self._output.follow)
                    self._nursery.start_soon(self._send_all)
                    self._nursery.start_soon(self._receive_all)
        finally:
            self._accepts_starts = self._attended = False
            self._set_up_answered.set()
            self._disconnected.set()
            self._silent.set()

    async def _set_up(self, preload: Sequence[str], ready_timeout: float) -> None:
        """Have the imports done, within `ready_timeout` seconds."""
        main = describe_main()
        if main is not None:
            share_main_alias()
        argv = [os.fsencode(argument) for argument in sys.argv]
        request = protocol.SetUp(argv, list(preload), main.name if main else None, os.fsencode(main.path) if main else None)
        self._outgoing.send_nowait(_Outgoing(protocol.encode(request), ()))
        with trio.move_on_after(ready_timeout) as limit:
            await self._set_up_answered.wait()
        answer = self._set_up_answer
        if limit.cancelled_caught:
            imported = ", ".join([*preload, *([main.path] if main else [])]) or "nothing"
            last = "\n  ".join(["; its last output:", *self._output.last_lines]) if self._output.last_lines else ""
            raise ForkServerStartError(
                f"the warm process (pid {self.pid}) was not ready after {ready_timeout:g} s and is killed; it was to import {imported}: "
                f"find what hangs there, or allow more time with ready_timeout{last}"
            )
        if isinstance(answer, protocol.SetUpFailed):
            raise ForkServerStartError(f"the warm process could not import {answer.what}", remote_traceback=answer.traceback)
        if answer is None:
            await self._warm.reap(_KILL_TIME)
            self._output.drain()
            code = self._warm.process.returncode
            how = "it closed its socket" if code is None else ExitStatus.of_return_code(code).describe()
            last = "\n  ".join(["", *self._output.last_lines])
            raise ForkServerDiedError(f"the warm process (pid {self.pid}) ended before it was ready: {how}{last}")
        self._accepts_starts = True

    async def _close(self) -> None:
        """End all children, then the warm process: gracefully, then by force. Its caller shields it and limits its time."""
        self._accepts_starts = False
        children = list(self._children.values())
        if self._set_up_answer is None:
            # It may be hanging in an import, and has no children of ours: there is nothing to wait for.
            await self._warm.kill_tree(_KILL_TIME)
        elif self._attended:
            for child in children:
                child.send_signal(SIGTERM)
            with trio.move_on_after(self._grace):
                for child in children:
                    await child.wait()
        try:
            self._control.shutdown(socket.SHUT_WR)
        except OSError:
            # It has ended already.
            pass
        # One that is stopped has not even seen the signals to its children, and will not see the end of its socket.
        with trio.move_on_after(0 if self._warm.is_stopped() else _KILL_TIME) as limit:
            await self._disconnected.wait()
        if limit.cancelled_caught or not await self._warm.reap(_KILL_TIME):
            await self._warm.kill_tree(_KILL_TIME)
        # Nothing more to send; with every pipe at its end, `_attend` returns.
        self._attended = False
        self._outgoing.close()
        with trio.move_on_after(_KILL_TIME):
            await self._silent.wait()

    def _stop_attending(self) -> None:
        """Release every descriptor."""
        self._warm.process.kill()
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
            self._outgoing.send_nowait(_Outgoing(protocol.encode(protocol.Signal(number, signum)), ()))

    async def _send_all(self) -> None:
        async for message in self._to_send:
            try:
                await self._send(message)
            except OSError:
                # The warm process has ended; `_receive_all` notices and tells everybody. Keep taking, to close descriptors.
                pass
            finally:
                message.close()

    async def _send(self, message: _Outgoing) -> None:
        rest = memoryview(message.data)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", message.descriptors))] if message.descriptors else []
        while rest:
            rest = rest[await self._control.sendmsg([rest], rights) :]
            rights = []

    async def _receive_all(self) -> None:
        frames = protocol.FrameReader()
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
            case protocol.Ready() | protocol.SetUpFailed():
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
        """The warm process is gone, and the kernel kills its children; those that changed their credentials escape that, but not this."""
        self._accepts_starts = False
        while self._children:
            _, child = self._children.popitem()
            if child.pid:
                kill_group_quietly(child.pid)
            child.set_ended(ExitStatus(None, SIGKILL))
        self._set_up_answered.set()
        self._disconnected.set()


class _Lines:
    """Calls the caller's `on_line` until it raises; what it raised is kept for the one task that raises it."""

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
class _Outgoing:
    """A message to the warm process, with descriptors that are the receiver's once sent, and closed here in any case."""

    data: bytes
    descriptors: tuple[int, ...]

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


def _pipes() -> tuple[int, int, tuple[int, int]]:
    """A child's output and report pipes: our read ends, and its write ends."""
    output, output_writer = os.pipe()
    try:
        report, report_writer = os.pipe()
    except OSError:
        os.close(output)
        os.close(output_writer)
        raise
    return output, report, (output_writer, report_writer)


def _print_line(name: str, line: str) -> None:
    try:
        sys.stderr.write(f"[{name}] {line}\n")
    except (OSError, ValueError):
        # Nobody is left to read it; that must not take the children down.
        pass
