"""The workers of one agent as processes: starting them, watching them, and ending them with
everything that they started.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import trio

from actors.own_logger import own_logger
from runtime.elastic import guardian, runner
from runtime.elastic.budget import read_error_file
from runtime.elastic.ranks import RankAssignment
from runtime.elastic.reaper import Reaper
from runtime.elastic.settings import ElasticSettings
from runtime.elastic.watchdog import Expired, WatchdogDeadlines, decode_request
from runtime.elastic.worker_environment import environment_of, line_prefix, substituted
from runtime.elastic.worker_output import _CHUNK, Console, Streams, open_streams
from runtime.environment import Environment
from runtime.processes.child_process import LineSplitter, read_available
from runtime.processes.exit_status import ExitStatus
from runtime.processes.inherited_environment import without_secrets

logger = own_logger("understudy.elastic")

DRAIN_SECONDS = 1.0
"""Seconds to wait for the rest of an ended worker's output: a process that escaped may hold the
pipe open for ever.
"""


KILL_SECONDS = 10.0
"""Seconds that the kernel may take to end what has been killed. A process in uninterruptible sleep
takes longer.
"""

MAX_ERROR_BYTES = 1024 * 1024
"""Bytes that are read of an error file. Our runner writes less."""

_ERROR_FILE_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
"""The agent's event loop reads the file: the open of a pipe without a writer must not wait, and a
link may lead to any file of the machine.
"""


# The error file of a worker. The worker may have put anything in its place.


def error_of(path: Path) -> tuple[str, str, str]:
    """Return the message, the traceback and the path of a worker's error file; empty texts if it
    has written none.

    What is no regular file, or is too large, is not read: then the message says so. The texts are
    the worker's: they may have characters that control a terminal.
    """
    try:
        descriptor = os.open(path, _ERROR_FILE_FLAGS)
    except FileNotFoundError:
        return "", "", ""
    except OSError as error:
        return _not_read("it is a symbolic link" if path.is_symlink() else error.strerror), "", ""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return _not_read("it is no regular file"), "", ""
        if status.st_size > MAX_ERROR_BYTES:
            return _not_read(f"it has {status.st_size:,} bytes"), "", str(path)
        # The limit once more: the worker's own children may write to it still.
        with open(descriptor, "rb", closefd=False) as file:
            text = file.read(MAX_ERROR_BYTES).decode("utf-8", "replace")
    except OSError as error:
        return _not_read(error.strerror), "", ""
    finally:
        os.close(descriptor)
    message, traceback = read_error_file(text)
    return message, traceback, str(path)


def _not_read(why: str | None) -> str:
    return f"its error file was not read: {why or 'the system gives no reason'}"


@attrs.define(eq=False)
class WorkerProcess:
    """One process. `stopping`: the agent has begun to end it, so its exit status means nothing."""

    local_rank: int
    rank: int
    attempt: int
    round: int
    process: subprocess.Popen[bytes]
    pidfd: int
    mark: str
    error_file: Path
    streams: Streams
    requests: trio.lowlevel.FdStream
    started_at: float
    stopping: bool = False
    expired: Expired | None = None
    status: ExitStatus | None = None
    ended: trio.Event = attrs.field(factory=trio.Event)
    # Shielded from the agent's own cancellation: what a worker has printed is read until its pipes
    # close, or until this scope is cancelled.
    following: trio.CancelScope = attrs.field(factory=lambda: trio.CancelScope(shield=True))

    @property
    def pid(self) -> int:
        """Its process id, which is its process group's as well."""
        return self.process.pid

    def signal_group(self, signum: int) -> None:
        """Signal the process and those in its group. Only while the pid is certainly its own, that
        is, before it is reaped.
        """
        if self.status is None:
            try:
                os.killpg(self.pid, signum)
            except (ProcessLookupError, PermissionError):
                pass

    def ask_to_end(self, signum: int) -> None:
        """Signal the group, also where it is stopped (SIGSTOP, Ctrl-Z): a stopped process handles
        no signal but SIGKILL until it goes on.
        """
        self.signal_group(signum)
        # After the signal, which so is the first thing that the process sees.
        self.signal_group(signal.SIGCONT)

    def has_ended_by_itself(self) -> bool:
        """True if it has ended by itself, even if the agent has not handled that yet."""
        return (
            self.status is not None
            or os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        )


class WorkerGroup:
    """All workers of one agent. `on_exit` is called once for each worker that ends, as soon as the
    kernel reports it.
    """

    def __init__(
        self,
        settings: ElasticSettings,
        environment: Environment,
        console: Console,
        directory: Path,
        host: str,
        nursery: trio.Nursery,
        on_exit: Callable[[WorkerProcess], None],
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._console = console
        self._directory = directory
        self._host = host
        self._nursery = nursery
        self._on_exit = on_exit
        self._mark = environment.token(12).hex()
        self._attempts: dict[int, int] = {}
        self._stopping: trio.CancelScope | None = None
        self.current: dict[int, WorkerProcess] = {}
        """Workers by local rank. One that has ended stays until another takes its place."""
        self.killed: list[WorkerProcess] = []
        """Those that did not end when they were asked to, and that `stop` has killed since it last
        began.
        """
        self.membership_file = directory / "membership.json"
        self.reaper = Reaper(environment, self._mark, settings.fence_seconds)

    @property
    def running(self) -> list[WorkerProcess]:
        """The workers that have not ended."""
        return [worker for worker in self.current.values() if worker.status is None]

    def start(self, local_rank: int, placement: RankAssignment, restarts: int) -> WorkerProcess:
        """Start a worker. Raises OSError if the system has no process, descriptor or disk for it.

        From the main thread on purpose, although it takes a millisecond: the kernel's parent-death
        signal follows the thread that created the process.
        """
        assert local_rank not in self.current or self.current[local_rank].status is not None, (
            "one process at a time has a local rank"
        )
        self.reaper.on_start()
        attempt = self._attempts[local_rank] = self._attempts.get(local_rank, -1) + 1
        directory = self._directory / f"attempt_{attempt}" / str(local_rank)
        directory.mkdir(parents=True, exist_ok=True)
        rank = placement.rank_of(local_rank)
        prefix = line_prefix(
            self._settings.prefix_template, self._settings.role, rank, local_rank, self._host
        )
        mark = f"{self._mark}/{local_rank}/{attempt}"
        streams = open_streams(self._settings, local_rank, directory, self._console, prefix)
        reader, writer = os.pipe()
        try:
            environment = environment_of(
                without_secrets(os.environ),
                self._settings,
                placement,
                local_rank,
                restarts=restarts,
                error_file=str(directory / "error.json"),
                membership_file=str(self.membership_file),
                mark=mark,
                watchdog=writer,
            )
            process = subprocess.Popen(
                self._command(local_rank),
                stdin=subprocess.DEVNULL,
                stdout=streams.stdout,
                stderr=streams.stderr,
                env=environment,
                pass_fds=[writer],
                start_new_session=True,
            )
        except BaseException:
            streams.abandon()
            os.close(reader)
            raise
        finally:
            os.close(writer)
        streams.close_inherited()
        worker = WorkerProcess(
            local_rank,
            rank,
            attempt,
            placement.round,
            process,
            os.pidfd_open(process.pid),
            mark,
            directory / "error.json",
            streams,
            trio.lowlevel.FdStream(reader),
            self._environment.now(),
        )
        self.current[local_rank] = worker
        self._nursery.start_soon(self._follow, worker)
        return worker

    def notify(self, placement: RankAssignment) -> None:
        """Rewrite the membership file atomically, and signal the workers if that is configured. If
        the disk is full, the notice is lost; that is logged.
        """
        content = {
            "round": placement.round,
            "world_size": placement.world_size,
            "group_rank": placement.own.group_rank,
            "group_world_size": placement.group_world_size,
            "ranks": {
                str(local_rank): placement.rank_of(local_rank)
                for local_rank in range(placement.own.local_world_size)
            },
            "participants": list(placement.participants),
            "master_addr": placement.master_address,
            "master_port": placement.master_port,
        }
        temporary = self.membership_file.with_suffix(".new")
        try:
            temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")
            temporary.replace(self.membership_file)
        except OSError as error:
            logger.error(
                "could not notify the workers of round %d: %s cannot be written: %s",
                placement.round,
                temporary,
                error.strerror or error,
            )
            return
        if self._settings.membership_signal:
            # None of them is reaped yet, so each pid is still its own.
            for worker in self.running:
                os.kill(worker.pid, self._settings.membership_signal)

    @property
    def is_stopping(self) -> bool:
        """True while `stop` runs."""
        return self._stopping is not None

    def shorten_stop(self, signum: int, seconds: float) -> None:
        """While `stop` runs: send another signal, and leave no more than `seconds` before SIGKILL.
        Otherwise do nothing.
        """
        if self._stopping is not None:
            for worker in self.running:
                worker.ask_to_end(signum)
            self._stopping.deadline = min(
                self._stopping.deadline, self._environment.now() + seconds
            )

    async def stop(self, signum: int, seconds: float) -> list[WorkerProcess]:
        """End all running workers: send a signal, then SIGKILL after `seconds`. Return those that
        have not ended even then.
        """
        self.killed.clear()
        # Without those that have ended a moment ago: their exit status counts, and is reported when
        # the event loop comes to it.
        stopped = [worker for worker in self.running if not worker.has_ended_by_itself()]
        for worker in stopped:
            worker.stopping = True
            worker.ask_to_end(signum)
        began = self._environment.now()
        with trio.move_on_after(seconds) as self._stopping:
            await self._all_ended()
        self._stopping = None
        for worker in self.running:
            self._kill(worker, signum, self._environment.now() - began)
        with trio.move_on_after(KILL_SECONDS):
            await self._all_ended()
        for worker in stopped:
            # Children that left the group still have the mark in their environment.
            await trio.to_thread.run_sync(guardian.sweep, worker.mark, abandon_on_cancel=True)
        stuck = self.running
        for worker in stuck:
            logger.error(
                "worker of rank %d, pid %d, has not ended %g s after SIGKILL: it hangs in the "
                "kernel",
                worker.rank,
                worker.pid,
                KILL_SECONDS,
            )
        return stuck

    def _kill(self, worker: WorkerProcess, signum: int, seconds: float) -> None:
        """Kill a worker that so many seconds after a signal has not ended, and say which it was."""
        if worker.has_ended_by_itself():
            return
        self.killed.append(worker)
        logger.warning(
            "worker of rank %d (local rank %d, pid %d) has not ended %.1f s after %s; it is killed",
            worker.rank,
            worker.local_rank,
            worker.pid,
            seconds,
            signal.Signals(signum).name,
        )
        worker.signal_group(signal.SIGKILL)

    async def aclose(self) -> None:
        """Kill the workers that are left, and let the guardian kill processes that escaped. The
        time is bounded; call it shielded.
        """
        for worker in self.running:
            worker.stopping = True
            worker.signal_group(signal.SIGKILL)
        with trio.move_on_after(KILL_SECONDS):
            await self._all_ended()
        # After the wait: a task that is cancelled earlier would not reap its worker.
        for worker in self.current.values():
            worker.following.cancel()
        await self.reaper.aclose()

    async def _all_ended(self) -> None:
        for worker in list(self.current.values()):
            await worker.ended.wait()

    def _command(self, local_rank: int) -> list[str]:
        mode = self._settings.mode
        # Ignore Python's environment variables if the runner becomes a command: they must not
        # affect the few lines of the runner before that.
        flags = ["-I", "-S"] if mode == "command" else ["-u"]
        return [
            sys.executable,
            *flags,
            runner.__file__,
            mode,
            str(os.getpid()),
            *substituted(self._settings.command, local_rank),
        ]

    async def _follow(self, worker: WorkerProcess) -> None:
        """Follow one worker until its end. Shielded, so that a cancelled agent waits until its
        workers have been killed; see `aclose`.
        """
        try:
            with worker.following:
                async with trio.open_nursery() as reading:
                    for tee in worker.streams.tees:
                        reading.start_soon(tee.follow)
                    async with trio.open_nursery() as watching:
                        watching.start_soon(self._watch, worker)
                        await trio.lowlevel.wait_readable(worker.pidfd)
                        watching.cancel_scope.cancel()
                    # Kill what is left of its process group before it is reaped: until then the
                    # kernel gives the group's id to no other process.
                    worker.signal_group(signal.SIGKILL)
                    worker.status = ExitStatus.of_return_code(worker.process.wait())
                    self._on_exit(worker)
                    reading.cancel_scope.deadline = trio.current_time() + DRAIN_SECONDS
        finally:
            os.close(worker.pidfd)
            for tee in worker.streams.tees:
                tee.close()
            worker.requests.close()
            worker.ended.set()

    async def _watch(self, worker: WorkerProcess) -> None:
        """Kill a worker that stays in a scope for longer than it said. Kill a process that it has
        forked in the same way, but only that process.
        """
        deadlines, lines = WatchdogDeadlines(), LineSplitter()

        def receive(data: bytes) -> None:
            for line in lines.feed(data):
                if (request := decode_request(line)) is not None:
                    deadlines.apply(request, self._environment.now())

        while True:
            with trio.move_on_at(deadlines.next):
                data = await worker.requests.receive_some(_CHUNK)
                if not data:
                    return
                receive(data)
                continue
            # This process may have been stopped and not the worker. So read what the worker has
            # reported meanwhile before judging.
            receive(read_available(worker.requests))
            if (expired := deadlines.expired(self._environment.now())) is not None:
                if expired.pid == worker.pid:
                    worker.expired = expired
                    worker.signal_group(signal.SIGKILL)
                    return
                deadlines.forget(expired.pid)
                self._end_forked(worker, expired)

    def _end_forked(self, worker: WorkerProcess, expired: Expired) -> None:
        """Kill one forked process of a worker, and not the worker, which may be well and handles
        the end of its own processes.

        The process may have ended within its scope long ago, and its pid be another's. So it is
        killed only if it has the worker's mark.
        """
        if worker.status is None and guardian.is_marked(expired.pid, worker.mark):
            logger.warning(
                "killing process %d of worker %d: it was in scope %r for longer than %g s",
                expired.pid,
                worker.local_rank,
                expired.scope,
                expired.after,
            )
            try:
                os.kill(expired.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
