"""The fork server as its parent uses it: one warm process, many children, none left behind.

The parent does not fork itself, because a copy of its event loop would be useless. It starts a
fresh interpreter, the warm process, which does the imports once and forks the children; see
`runtime.processes.fork_loop`. The warm process reaps its children and reports each end at once.

No child, and nothing that a child has started, outlives the block of `open_fork_server` or the
parent, even if the parent is killed by SIGKILL. The warm process kills all its descendants when its
socket closes or when the kernel signals the end of its parent. Between the two is the outer
process, see `runtime.processes.outer_process`: if the warm process itself is killed, that kills all
its descendants. Then the children are reported as killed by SIGKILL, and from then on `start`
raises ForkServerDiedError. If both are killed at the same moment, the kernel kills the children,
but not what these have started.
"""

from __future__ import annotations

import array
import math
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from signal import SIGKILL, SIGTERM

import attrs
import trio

from runtime.environment import unwrap
from runtime.processes import protocol
from runtime.processes.child_process import _CHUNK, ChildProcess, OnLine, Output, WaitRoom
from runtime.processes.exit_status import (
    ExitStatus,
    ForkServerDiedError,
    ForkServerStartError,
    ProcessError,
)
from runtime.processes.linux_processes import kill_group_quietly
from runtime.processes.main_script import describe_main, refuse_import_of_main, share_main_alias
from runtime.processes.printed_lines import PrintedLines, with_name
from runtime.processes.warm_process import launch

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
    not called again. A stderr that is not read stops the children that print, not the event loop.

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
                try:
                    with trio.move_on_after(grace + 5 * _KILL_TIME, shield=True):
                        await server._close()
                        await printed.flush()
                finally:
                    # Whatever these raise: the nursery waits for both.
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
        # Shielded: what attends to the processes runs until `_close` has ended them, and cancels
        # this.
        self._lifetime = trio.CancelScope(shield=True)
        self._nursery: trio.Nursery | None = None
        self._set_up_answer: protocol.ServerReady | protocol.SetUpFailed | None = None
        self._set_up_answered = trio.Event()
        self._disconnected = trio.Event()
        self._silent = trio.Event()

    @property
    def pid(self) -> int:
        """The process id of the warm process; before that has begun, of its parent, which is killed
        together with it.
        """
        return self._warm.pid

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
                "open the cluster, or the fork server, again"
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
                f"cannot start {name}: the warm process (pid {self.pid}) ended meanwhile; open "
                "the cluster, or the fork server, again"
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
                "find what hangs or takes long there, and do it after the import, for example in "
                f"the `on_start` of an actor{last}"
            )
        if isinstance(answer, protocol.SetUpFailed) and answer.unguarded_line:
            raise ForkServerStartError(
                f"{answer.what}, line {answer.unguarded_line}, starts processes when the script is "
                "imported, and each of these processes imports it to find your classes: put what "
                'the script runs under `if __name__ == "__main__":`'
            )
        if isinstance(answer, protocol.SetUpFailed):
            raise ForkServerStartError(
                f"the warm process could not import {answer.what}: {answer.reason}",
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
        # Usually it has ended. Not by SIGKILL: the outer process ends all others before itself.
        self._warm.process.terminate()
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
            case protocol.Begun(pid):
                self._warm.begun = pid
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
        """Handle the end of the warm process: report all children as killed. The outer process has
        killed them, unless it was killed as well. Then the kernel does, except for those that
        changed their credentials (that clears the parent-death signal), so each group is signalled
        here.
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
            except BaseException as error:  # noqa: ASYNC103
                # Raised below; a KeyboardInterrupt may come while it runs.
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
