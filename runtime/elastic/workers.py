"""The workers of one agent as processes: started, watched by events, and ended with everything that they started."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import trio

from runtime.elastic import guardian, runner
from runtime.elastic.guarding import Guarded
from runtime.elastic.outputs import Console, Streams, open_streams
from runtime.elastic.ranks import Placement
from runtime.elastic.settings import Settings
from runtime.elastic.surroundings import environment_of, line_prefix, substituted
from runtime.elastic.watchdog import Deadlines, Expired, decode_request
from runtime.environment import Environment
from runtime.processes.child import read_available
from runtime.processes.output import LineSplitter
from runtime.processes.status import ExitStatus

logger = logging.getLogger("understudy.elastic")

_CHUNK = 64 * 1024
DRAIN_SECONDS = 1.0
"""How long what an ended worker has printed is waited for: somebody who got away may hold the pipe."""
KILL_SECONDS = 10.0
"""How long the kernel may take to end what has been killed. A process in uninterruptible sleep takes longer."""


@attrs.define(eq=False)
class Worker:
    """One process. `stopping`: the agent has begun to end it, so that how it ends means nothing."""

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
        """Signal it and what it started, unless that belongs to another group. Only as long as the pid is certainly its own."""
        if self.status is None:
            try:
                os.killpg(self.pid, signum)
            except (ProcessLookupError, PermissionError):
                pass

    def has_ended_by_itself(self) -> bool:
        """Whether its end is there to be seen, although nobody has looked yet."""
        return self.status is not None or os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


class Workers:
    """All workers of one agent. `on_exit` is called once for each that ends, as soon as the kernel says so."""

    def __init__(
        self,
        settings: Settings,
        environment: Environment,
        console: Console,
        directory: Path,
        host: str,
        nursery: trio.Nursery,
        on_exit: Callable[[Worker], None],
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
        self.current: dict[int, Worker] = {}
        """By local rank; those that have ended included, until their place is taken."""
        self.membership_file = directory / "membership.json"
        self.guarded = Guarded(environment, self._mark, settings.fence_seconds)

    @property
    def running(self) -> list[Worker]:
        """Those that have not ended."""
        return [worker for worker in self.current.values() if worker.status is None]

    def start(self, local_rank: int, placement: Placement, restarts: int) -> Worker:
        """Start a worker. Raises OSError if the system has no process, descriptor or disk for it.

        From the main thread on purpose, although it takes a millisecond: the kernel's parent-death signal follows the thread that
        created the process.
        """
        self.guarded.starts()
        attempt = self._attempts[local_rank] = self._attempts.get(local_rank, -1) + 1
        directory = self._directory / f"attempt_{attempt}" / str(local_rank)
        directory.mkdir(parents=True, exist_ok=True)
        rank = placement.rank_of(local_rank)
        prefix = line_prefix(self._settings.prefix_template, self._settings.role, rank, local_rank, self._host)
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
        streams.started()
        worker = Worker(
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

    def tell(self, placement: Placement) -> None:
        """Rewrite the membership file in one step, and signal the workers if that is wanted. A full disk costs the notice: it is logged."""
        told = {
            "round": placement.round,
            "world_size": placement.world_size,
            "group_rank": placement.own.group_rank,
            "group_world_size": placement.group_world_size,
            "ranks": {str(local_rank): placement.rank_of(local_rank) for local_rank in range(placement.own.local_world_size)},
            "participants": list(placement.participants),
            "master_addr": placement.master_address,
            "master_port": placement.master_port,
        }
        temporary = self.membership_file.with_suffix(".new")
        try:
            temporary.write_text(json.dumps(told) + "\n", encoding="utf-8")
            temporary.replace(self.membership_file)
        except OSError as error:
            logger.error("workers cannot be told of round %d: %s", placement.round, error)
            return
        if self._settings.membership_signal:
            for worker in self.running:
                os.kill(worker.pid, self._settings.membership_signal)

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` is at work."""
        return self._stopping is not None

    def hurry(self, signum: int, seconds: float) -> None:
        """While `stop` is at work: send another signal, and leave no more than `seconds` before SIGKILL."""
        if self._stopping is not None:
            for worker in self.running:
                worker.signal_group(signum)
            self._stopping.deadline = min(self._stopping.deadline, self._environment.now() + seconds)

    async def stop(self, signum: int, seconds: float) -> list[Worker]:
        """End all that run: a signal, then SIGKILL after `seconds`; returns those that even that has not ended."""
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
            # Children that left the group have the mark all the same.
            await trio.to_thread.run_sync(guardian.sweep, worker.mark, abandon_on_cancel=True)
        stuck = self.running
        for worker in stuck:
            logger.error(
                "worker of rank %d, pid %d, has not ended %g s after SIGKILL: it hangs in the kernel", worker.rank, worker.pid, KILL_SECONDS
            )
        return stuck

    async def aclose(self) -> None:
        """Kill what is left, and let the guardian look for what got away. Bounded; to be called shielded."""
        for worker in self.running:
            worker.stopping = True
            worker.signal_group(signal.SIGKILL)
        with trio.move_on_after(KILL_SECONDS):
            await self._all_ended()
        for worker in self.current.values():
            worker.following.cancel()
        await self.guarded.aclose()

    async def _all_ended(self) -> None:
        for worker in list(self.current.values()):
            await worker.ended.wait()

    def _command(self, local_rank: int) -> list[str]:
        mode = self._settings.mode
        # A command is no business of Python's: its variables are not to disturb the few lines that become it.
        flags = ["-I", "-S"] if mode == "command" else ["-u"]
        return [sys.executable, *flags, runner.__file__, mode, str(os.getpid()), *substituted(self._settings.command, local_rank)]

    async def _follow(self, worker: Worker) -> None:
        """See to one worker until its end. Shielded: whoever cancels the agent waits until its workers have been killed; see `aclose`."""
        try:
            with worker.following:
                async with trio.open_nursery() as reading:
                    for tee in worker.streams.tees:
                        reading.start_soon(tee.follow)
                    async with trio.open_nursery() as watching:
                        watching.start_soon(self._watch, worker)
                        await trio.lowlevel.wait_readable(worker.pidfd)
                        watching.cancel_scope.cancel()
                    # Its children are no worker's any more. As long as it is not reaped, nobody else can have its group.
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

    async def _watch(self, worker: Worker) -> None:
        """Kill a worker that stays in a scope for longer than it said, and likewise, but alone, a process that it has forked."""
        deadlines, lines = Deadlines(), LineSplitter()

        def hear(data: bytes) -> None:
            for line in lines.feed(data):
                if (request := decode_request(line)) is not None:
                    deadlines.apply(request, self._environment.now())

        while True:
            with trio.move_on_at(deadlines.next):
                data = await worker.requests.receive_some(_CHUNK)
                if not data:
                    return
                hear(data)
                continue
            # It may have been this process that did not run: what the worker has said meanwhile counts.
            hear(read_available(worker.requests))
            if (expired := deadlines.expired(self._environment.now())) is not None:
                if expired.pid == worker.pid:
                    worker.expired = expired
                    worker.signal_group(signal.SIGKILL)
                    return
                deadlines.forget(expired.pid)
                self._end_forked(worker, expired)

    def _end_forked(self, worker: Worker, expired: Expired) -> None:
        """End one process of a worker's, not the worker: that may be well, and what it has forked is its own to look after.

        The process may have ended long ago, within its scope, and its id be another's: only what carries the worker's mark is its own.
        """
        if worker.status is None and guardian.is_marked(expired.pid, worker.mark):
            logger.warning(
                "process %d of worker %d is killed: it was in %r for longer than %g s",
                expired.pid,
                worker.local_rank,
                expired.scope,
                expired.after,
            )
            try:
                os.kill(expired.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
