"""The workers of one agent as processes: starting them, watching them, and ending them with
everything that they started.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import string
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import attrs
import trio

from runtime.elastic import guardian, runner
from runtime.elastic.expiry import WATCHDOG
from runtime.elastic.guardian import MARK
from runtime.elastic.ranks import RankAssignment
from runtime.elastic.runner import ERROR_FILE
from runtime.elastic.settings import ERR, OUT, ElasticSettings
from runtime.elastic.watchdog import Expired, WatchdogDeadlines, decode_request
from runtime.environment import Environment
from runtime.processes.fork_server import ExitStatus, LineSplitter, read_available

# Output of workers: to files, to the console, or both, through pipes. A pipe is read no faster than
# its files and the console accept the data.

_CHUNK = 64 * 1024
"""Bytes of one read, which is what a pipe of Linux holds."""


_LINES_WAITING = 256
"""Pieces of output that wait for the console. When they are as many, the workers' writes block."""


_DRAIN_CHUNKS = 32
"""Reads of what is left in a pipe that is being closed: a writer that escaped could fill it for
ever.
"""


STREAMS = {OUT: "stdout.log", ERR: "stderr.log"}
"""By stream: the log file of one worker."""


FILTERED = {OUT: "filtered_stdout.log", ERR: "filtered_stderr.log"}
"""By stream: the file for filtered lines of all workers of one start."""


class Console:
    """Writes to the agent's own standard output and error. If the terminal is stopped or the reader
    of a pipe is slow, the workers are held up, not the agent.
    """

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[tuple[int, bytes]](_LINES_WAITING)
        self._broken: set[int] = set()
        self._idle = trio.Event()
        self._idle.set()

    async def write(self, stream: int, text: str) -> None:
        """Queue lines; waits for room."""
        self._idle = trio.Event()
        await self._send.send((stream, text.encode()))

    async def run(self) -> None:
        """Write queued lines in order, until cancelled."""
        while True:
            if not self._receive.statistics().current_buffer_used:
                self._idle.set()
            stream, data = await self._receive.receive()
            if stream not in self._broken:
                await trio.to_thread.run_sync(self._write, stream, data, abandon_on_cancel=True)

    async def drain(self, seconds: float) -> None:
        """Wait until everything is written, for at most `seconds`."""
        with trio.move_on_after(seconds):
            await self._idle.wait()

    def _write(self, stream: int, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(stream, rest) :]
        except OSError:
            # The reader has gone, as with `| head`. The log files still get the lines.
            self._broken.add(stream)


@attrs.frozen
class Filtered:
    """A file that collects the lines of a stream which contain one of `texts`, each with a prefix.
    It is appended to in whole lines.
    """

    texts: tuple[str, ...]
    file: IO[bytes]

    def write(self, lines: list[str], prefix: str) -> None:
        """Add the lines that contain one of the texts."""
        found = "".join(
            f"{prefix}{line}\n" for line in lines if any(text in line for text in self.texts)
        )
        try:
            if found:
                self.file.write(found.encode())
        except OSError:
            # The disk is full: the log is lost, and the worker goes on.
            pass


class Tee:
    """One stream of a worker. It is written to a file as it comes, to the console in whole lines
    with a prefix (none if `plain`), and to a file of `filtered` lines.
    """

    def __init__(
        self,
        descriptor: int,
        file: IO[bytes] | None,
        console: Console | None,
        stream: int,
        prefix: str,
        filtered: Filtered | None = None,
        *,
        plain: bool = False,
    ) -> None:
        self._stream = trio.lowlevel.FdStream(descriptor)
        self._file = file
        self._filtered = filtered
        self._shown_prefix = "" if plain else prefix
        self._console = console
        self._number = stream
        self._prefix = prefix
        self._splitter = LineSplitter()

    async def follow(self) -> None:
        """Read until all processes that hold the write end have closed it."""
        try:
            while data := await self._stream.receive_some(_CHUNK):
                lines = self._keep(data)
                await self._show(lines)
            await self._show(self._split(self._splitter.flush()))
        except trio.ClosedResourceError:
            # `close` has closed our end, because a process that escaped still holds the other one.
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Stop reading. What is still in the pipe goes to the file, so that a slow console loses no
        log.
        """
        for _ in range(_DRAIN_CHUNKS):
            data = read_available(self._stream)
            if not data:
                break
            self._keep(data)
        self._split(self._splitter.flush())
        self._stream.close()
        for file in (self._file, self._filtered.file if self._filtered is not None else None):
            if file is not None:
                file.close()

    def _keep(self, data: bytes) -> list[str]:
        """Write data to the files. Returns the lines that it completes."""
        try:
            if self._file is not None:
                self._file.write(data)
        except OSError:
            # The disk is full: the log is lost, and the worker goes on.
            pass
        return self._split(self._splitter.feed(data))

    def _split(self, lines: list[str]) -> list[str]:
        if self._filtered is not None and lines:
            self._filtered.write(lines, self._prefix)
        return lines

    async def _show(self, lines: list[str]) -> None:
        if self._console is not None and lines:
            await self._console.write(
                self._number, "".join(f"{self._shown_prefix}{line}\n" for line in lines)
            )


@attrs.define
class Streams:
    """The output of one worker: the descriptors for its process, the streams that are read here,
    and what to close here once the process has started.
    """

    stdout: int | IO[bytes] | None = None
    stderr: int | IO[bytes] | None = None
    tees: list[Tee] = attrs.field(factory=list)
    to_close: list[int | IO[bytes]] = attrs.field(factory=list)

    def close_inherited(self) -> None:
        """Close the ends that the started process has inherited. The pipe then ends with the last
        process that holds it.
        """
        for each in self.to_close:
            if isinstance(each, int):
                os.close(each)
            else:
                each.close()
        self.to_close.clear()

    def abandon(self) -> None:
        """Close everything, because the process could not be started."""
        self.close_inherited()
        for tee in self.tees:
            tee.close()


def open_streams(
    settings: ElasticSettings, local_rank: int, directory: Path, console: Console, prefix: str
) -> Streams:
    """Open the output of a worker according to its masks."""
    streams = Streams()
    shown = settings.local_ranks is None or local_rank in settings.local_ranks
    try:
        for number, file_name in STREAMS.items():
            target: int | IO[bytes] | None = None if shown else subprocess.DEVNULL
            teed, texts = settings.tee.get(local_rank, 0) & number, settings.filters.get(number, ())
            redirected = settings.redirects.get(local_rank, 0) & number
            if teed or texts:
                reader, target = os.pipe()
                streams.to_close.append(target)
                # The tee closes both files.
                file = filtered = None
                if teed or redirected:
                    file = open(directory / file_name, "ab", buffering=0)  # noqa: SIM115
                if texts:
                    part = open(directory.parent / FILTERED[number], "ab", buffering=0)  # noqa: SIM115
                    filtered = Filtered(texts, part)
                to_console = console if shown and (teed or not redirected) else None
                streams.tees.append(
                    Tee(reader, file, to_console, number, prefix, filtered, plain=not teed)
                )
            elif redirected:
                target = open(directory / file_name, "ab", buffering=0)  # noqa: SIM115 - closed once the process has it
                streams.to_close.append(target)
            if number == OUT:
                streams.stdout = target
            else:
                streams.stderr = target
    except BaseException:
        streams.abandon()
        raise
    return streams


# The environment and the command line of a worker; no I/O. The names of the variables are
# torchrun's, so that scripts written for torchrun run unchanged.

MEMBERSHIP_FILE = "UNDERSTUDY_MEMBERSHIP_FILE"


def environment_of(
    inherited: Mapping[str, str],
    settings: ElasticSettings,
    placement: RankAssignment,
    local_rank: int,
    *,
    restarts: int,
    error_file: str,
    membership_file: str,
    mark: str,
    watchdog: int,
) -> dict[str, str]:
    """Return all environment variables of a worker. `restarts`: the restarts that were counted
    before this start. `watchdog`: the descriptor of its pipe to us.
    """
    own = placement.own
    given = {
        "RANK": placement.rank_of(local_rank),
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": placement.world_size,
        "LOCAL_WORLD_SIZE": own.local_world_size,
        "GROUP_RANK": own.group_rank,
        "GROUP_WORLD_SIZE": placement.group_world_size,
        "ROLE_NAME": settings.role,
        "ROLE_RANK": own.role_base_rank + local_rank,
        "ROLE_WORLD_SIZE": own.role_world_size,
        "MASTER_ADDR": placement.master_address,
        "MASTER_PORT": placement.master_port,
        "TORCHELASTIC_RESTART_COUNT": restarts,
        "TORCHELASTIC_MAX_RESTARTS": settings.max_restarts,
        "TORCHELASTIC_RUN_ID": settings.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        ERROR_FILE: error_file,
        MEMBERSHIP_FILE: membership_file,
        MARK: mark,
        WATCHDOG: watchdog,
    }
    defaults = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    if own.local_world_size > 1:
        # Otherwise each worker would use all processors.
        defaults["OMP_NUM_THREADS"] = "1"
    return {**defaults, **inherited, **{name: str(value) for name, value in given.items()}}


def substituted(command: Sequence[str], local_rank: int) -> list[str]:
    """Return the arguments with `${local_rank}` replaced. Other texts with a dollar sign stay
    unchanged.
    """
    return [string.Template(part).safe_substitute(local_rank=str(local_rank)) for part in command]


def line_prefix(template: str, role: str, rank: int, local_rank: int, host: str) -> str:
    """Return the prefix of a worker's lines on the console."""
    if not template:
        return f"[{role}{rank}]: "
    return string.Template(template).safe_substitute(
        role_name=role, rank=str(rank), local_rank=str(local_rank), hostname=host
    )


# Starting the guardian of an agent's workers and keeping it alive, for our own agent and for
# torch's.

SHARE = 0.8
"""The share of the time for which no other agent may take the workers' places. After that share the
guardian kills the workers; the rest is for the killing.
"""


BEATS = 4
"""Messages to the guardian within the time after which it kills the workers, so that some may be
late.
"""


GUARDIAN_KILL_SECONDS = 10.0
"""Seconds that the kernel may take to end what the guardian kills at the end of the agent."""


logger = logging.getLogger("understudy.elastic")


def fence_seconds(lease_seconds: float, keep_alive_interval: float) -> float:
    """Return for how many seconds an agent may be stopped before its workers are killed.

    Its last renewal may be one interval old when it stops, and its workers must be gone before the
    rest of its lease has passed.
    """
    return SHARE * (lease_seconds - keep_alive_interval)


class Reaper:
    """The agent's side of the guardian, a process that kills all processes with `mark` when this
    process has ended or has not run for `seconds`.
    """

    def __init__(self, environment: Environment, mark: str, seconds: float) -> None:
        """Start the guardian. Raises OSError if the system grants no further process."""
        self._environment = environment
        self._mark = mark
        self._seconds = seconds
        self._beat_at = environment.now()
        self._was_paused = False
        self._beating = trio.CancelScope()
        self._process, self._pipe = _start(mark, seconds)

    @property
    def guardian_pid(self) -> int:
        """The process id of the guardian. It changes when the guardian is killed and started
        again.
        """
        return self._process.pid

    @property
    def was_paused(self) -> bool:
        """True if this process was stopped for so long that the guardian has killed its processes,
        and none was started since.
        """
        return self._was_paused or self._environment.now() - self._beat_at >= self._seconds

    def on_start(self) -> None:
        """A process is being started: no earlier pause can have killed it."""
        self._was_paused = False

    async def beat(self) -> None:
        """Write to the guardian until `aclose` or cancellation, and start another guardian if it
        was killed.
        """
        with self._beating:
            while True:
                # Remember the pause before the time is overwritten: a task that sees a worker end
                # at the same moment must still learn of it.
                self._was_paused = self.was_paused
                self._beat_at = self._environment.now()
                try:
                    os.write(self._pipe, b".")
                except BlockingIOError:
                    # The guardian itself is stopped. It has enough to read when it goes on.
                    pass
                except BrokenPipeError:
                    logger.warning(
                        "the guardian of this agent's workers was killed; starting another one"
                    )
                    self._replace()
                await trio.sleep(self._seconds / BEATS)

    def _replace(self) -> None:
        killed, pipe = self._process, self._pipe
        # The new one first, so that there is a guardian at any moment from here on.
        self._process, self._pipe = _start(self._mark, self._seconds)
        os.close(pipe)
        killed.wait()

    async def aclose(self) -> None:
        """Kill every process that still has the mark, and end the guardian. Takes bounded time;
        call it shielded.
        """
        # Before the pipe is closed: a moment later its descriptor's number may be another file's. A
        # write that is due now is cancelled, too.
        self._beating.cancel()
        os.close(self._pipe)
        with trio.move_on_after(GUARDIAN_KILL_SECONDS) as waiting:
            await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
        if waiting.cancelled_caught:
            self._process.kill()


def _start(mark: str, seconds: float) -> tuple[subprocess.Popen[bytes], int]:
    """Start a guardian. Returns it and our end of the pipe to it, which does not block."""
    reader, writer = os.pipe()
    environment = {name: value for name, value in os.environ.items() if name != guardian.MARK}
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", guardian.__file__, str(reader), mark, str(seconds)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment,
            pass_fds=[reader],
            start_new_session=True,
        )
    except BaseException:
        os.close(writer)
        raise
    finally:
        os.close(reader)
    os.set_blocking(writer, False)
    return process, writer


DRAIN_SECONDS = 1.0
"""Seconds to wait for the rest of an ended worker's output: a process that escaped may hold the
pipe open for ever.
"""


KILL_SECONDS = 10.0
"""Seconds that the kernel may take to end what has been killed. A process in uninterruptible sleep
takes longer.
"""


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
                os.environ,
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
            logger.error("could not notify the workers of round %d: %s", placement.round, error)
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
                worker.signal_group(signum)
            self._stopping.deadline = min(
                self._stopping.deadline, self._environment.now() + seconds
            )

    async def stop(self, signum: int, seconds: float) -> list[WorkerProcess]:
        """End all running workers: send a signal, then SIGKILL after `seconds`. Return those that
        have not ended even then.
        """
        # Without those that have ended a moment ago: their exit status counts, and is reported when
        # the event loop comes to it.
        stopped = [worker for worker in self.running if not worker.has_ended_by_itself()]
        for worker in stopped:
            worker.stopping = True
            worker.signal_group(signum)
        with trio.move_on_after(seconds) as self._stopping:
            await self._all_ended()
        self._stopping = None
        for worker in self.running:
            worker.signal_group(signal.SIGKILL)
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
