"""The agent of an elastic job on one machine: it carries out what the machine decides."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import socket
import tempfile
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO

import attrs
import trio

from actors.own_logger import own_logger
from runtime.elastic import machine
from runtime.elastic.budget import WorkerFailure
from runtime.elastic.health_port import serve_health
from runtime.elastic.machine import AgentMachine, Effect, Event
from runtime.elastic.rounds import RECORD_SECONDS, OpenHandler, Records, RoundJoinError, Rounds
from runtime.elastic.settings import ElasticSettings
from runtime.elastic.worker_output import Console
from runtime.elastic.workers import WorkerGroup, WorkerProcess, error_of
from runtime.environment import Environment
from runtime.printable import plain
from runtime.rendezvous.parameters import RendezvousError

logger = own_logger("understudy.elastic")

CUT_OFF_GRACE = 1.0
"""Seconds that workers have between SIGTERM and SIGKILL when others may take their places soon."""

AGENT_CLOSE_SECONDS = 10.0
"""How long an agent that ends may take to gather failures and to write how it has ended."""

# Events of a job, as JSON lines in a file and as counters for monitoring.


class EventLog:
    """A log file of JSON lines. Each is an object with `time` (seconds since 1970, for display
    only), `event` and the fields of that event.
    """

    def __init__(self, path: Path | None, environment: Environment, **common: object) -> None:
        self._file: IO[str] | None = None
        if path is not None:
            # `close` closes it.
            self._file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115
        self._environment = environment
        self._common = common

    def write(self, event: str, **fields: object) -> None:
        """Add a line, without the fields that are None. If the disk is full, only the line is
        lost.
        """
        if self._file is None:
            return
        line = {"time": round(self._environment.wall_time(), 3), "event": event, **self._common}
        line.update({name: value for name, value in fields.items() if value is not None})
        try:
            self._file.write(json.dumps(line) + "\n")
        except OSError:
            pass

    def close(self) -> None:
        """Close the file; later events are not written."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError:
                pass


@attrs.define
class Counts:
    """Counters of an agent since its start."""

    rounds: int = 0
    worker_starts: int = 0
    worker_failures: int = 0
    workers_stuck: int = 0
    restarts_granted: int = 0
    restarts_refused: int = 0
    membership_changes: int = 0
    cut_off: int = 0
    rendezvous_seconds: float = 0.0


def prometheus_text(
    counts: Counts, state: str, workers: dict[str, int], labels: dict[str, str]
) -> str:
    """Return the state and the counters in Prometheus' text format:
    https://prometheus.io/docs/instrumenting/exposition_formats/
    """

    def value(text: str) -> str:
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    common = ",".join(f'{name}="{value(text)}"' for name, text in labels.items())
    lines: list[str] = []
    for field in attrs.fields(Counts):
        name = f"understudy_elastic_{field.name}_total"
        lines += [f"# TYPE {name} counter", f"{name}{{{common}}} {getattr(counts, field.name):g}"]
    lines += [
        "# TYPE understudy_elastic_agent_state gauge",
        f'understudy_elastic_agent_state{{{common},state="{value(state)}"}} 1',
    ]
    lines.append("# TYPE understudy_elastic_workers gauge")
    lines += [
        f'understudy_elastic_workers{{{common},state="{name}"}} {number}'
        for name, number in workers.items()
    ]
    return "\n".join(lines) + "\n"


def as_json(fields: dict[str, object]) -> str:
    """Encode the fields of an answer as JSON text."""
    return json.dumps(fields) + "\n"


@attrs.frozen
class KilledWorker:
    """A worker that did not end when it was asked to, so that the agent killed it."""

    rank: int
    local_rank: int
    pid: int


@attrs.frozen
class JobOutcome:
    """The end of a job on this machine: an exit code, why, what failed (the root cause first),
    where the logs are, and which workers had to be killed at the end.
    """

    code: int
    text: str
    failures: tuple[WorkerFailure, ...]
    log_dir: Path
    killed: tuple[KilledWorker, ...] = ()


async def run_agent(
    settings: ElasticSettings,
    open_handler: OpenHandler,
    environment: Environment,
    master_address: str,
) -> JobOutcome:
    """Run this machine's part of a job until it has ended. However it ends, no process that it
    started is left.

    Raises what making a rendezvous handler raises, and OSError if a log file cannot be opened, a
    port cannot be bound or a process cannot be started.
    """
    return await Agent(settings, open_handler, environment, master_address).run()


class Agent:
    """One agent; see `run_agent`."""

    def __init__(
        self,
        settings: ElasticSettings,
        open_handler: OpenHandler,
        environment: Environment,
        master_address: str,
    ) -> None:
        self.machine = AgentMachine(settings.rules)
        self.counts = Counts()
        self.health_port = 0
        self._settings = settings
        self._environment = environment
        self._host = socket.gethostname()
        self._records = Records(environment, settings.max_restarts, settings.restart_window)
        self._rounds = Rounds(open_handler, settings, self._records, environment, master_address)
        self._console = Console()
        self._log = EventLog(
            settings.event_log,
            environment,
            run_id=settings.run_id,
            role=settings.role,
            host=self._host,
            agent_pid=os.getpid(),
        )
        # Unbounded, but few: each event comes from one process, one round or one signal, and is
        # handled at once.
        self._events: deque[Event] = deque()
        self._has_events = trio.Event()
        self._joining = trio.CancelScope()
        self._roll_call = trio.CancelScope()
        self._end: machine.End | None = None
        # Unbounded for the same reason: one failure for each worker that ends.
        self._to_write, self._failed = trio.open_memory_channel[WorkerFailure](math.inf)
        self._unwritten = 0
        self._all_written = trio.Event()
        self._found: list[WorkerFailure] = []
        self._worker_restarts: dict[int, int] = {}
        self._join_began = 0.0

    async def run(self) -> JobOutcome:
        """Run until the job has ended on this machine, and return its outcome."""
        directory, temporary = make_run_directory(self._settings.log_dir, self._settings.run_id)
        try:
            async with trio.open_nursery() as self._nursery:
                self._workers = WorkerGroup(
                    self._settings,
                    self._environment,
                    self._console,
                    directory,
                    self._host,
                    self._nursery,
                    self._worker_ended,
                )
                try:
                    self._nursery.start_soon(self._console.run)
                    self._nursery.start_soon(self._write_failures)
                    if self._settings.fence_seconds < math.inf:
                        self._nursery.start_soon(self._workers.reaper.beat)
                    if self._settings.signals:
                        await self._nursery.start(self._receive_signals)
                    if self._settings.health_port is not None:
                        self.health_port = await self._nursery.start(
                            serve_health, self._settings.health_port, self._answer
                        )
                    outcome = await self._decide(directory)
                finally:
                    # The workers first: only when they have ended may the lease, which `_rounds`
                    # gives back, let other agents take their places.
                    with trio.CancelScope(shield=True), trio.move_on_after(4 * AGENT_CLOSE_SECONDS):
                        await self._workers.aclose()
                        await self._rounds.aclose()
                        await self._console.drain(1.0)
                    self._nursery.cancel_scope.cancel()
        finally:
            self._log.close()
            # A temporary directory stays after a failure: the report names its files.
            if temporary and not (self._end is not None and self._end.code):
                shutil.rmtree(directory, ignore_errors=True)
            elif temporary:
                # It has no files if no worker was started: the rendezvous had failed.
                with suppress(OSError):
                    directory.rmdir()
        return outcome

    async def _decide(self, directory: Path) -> JobOutcome:
        """Feed the machine until it has ended."""
        self._log.write(
            "agent started",
            local_world_size=self._settings.local_world_size,
            policy=self._settings.rules.policy,
        )
        for effect in self.machine.begin():
            await self._carry_out(effect)
        while self._end is None:
            while self._events and self._end is None:
                event = self._events.popleft()
                self._observe(event)
                before = self.machine.state
                for effect in self.machine.handle(event):
                    await self._carry_out(effect)
                if self.machine.state != before:
                    self._log.write(
                        "agent state", state=self.machine.state, before=before, round=self._round
                    )
            if self._end is None:
                # An event that came during an effect has set it already; then the wait ends at
                # once, and finds the queue empty.
                await self._has_events.wait()
                self._has_events = trio.Event()
        self._log.write("agent ended", code=self._end.code, text=self._end.text or None)
        return JobOutcome(
            self._end.code,
            self._end.text,
            tuple(self._found) if self._end.code == 1 else (),
            directory,
            tuple(
                KilledWorker(worker.rank, worker.local_rank, worker.pid)
                for worker in self._workers.killed
            ),
        )

    @property
    def guardian_pid(self) -> int:
        """The process id of the guardian, which kills the workers when this process cannot."""
        return self._workers.reaper.guardian_pid

    @property
    def _round(self) -> int | None:
        return self.machine.placement.round if self.machine.placement is not None else None

    def _emit(self, event: Event) -> None:
        self._events.append(event)
        self._has_events.set()

    async def _carry_out(self, effect: Effect) -> None:
        match effect:
            case machine.Join():
                self._joining.cancel()
                self._joining = trio.CancelScope()
                self._nursery.start_soon(self._join, effect, self._joining)
            case machine.CancelJoin():
                self._joining.cancel()
            case machine.StartWorkers(local_ranks):
                self._start(local_ranks)
            case machine.StopWorkers(signum, at_once):
                self._stop(signum or signal.SIGTERM, at_once=at_once)
            case machine.AskRestart(incident, seconds):
                self._roll_call = trio.CancelScope()
                self._nursery.start_soon(self._ask, incident, seconds, self._roll_call)
            case machine.CancelAsk():
                self._roll_call.cancel()
            case machine.Notify():
                assert self.machine.placement is not None
                self._workers.notify(self.machine.placement)
                self._log.write("workers notified", round=self._round)
            case machine.End():
                self._end = effect
            case machine.MarkDone() | machine.Leave() | machine.Close():
                await self._part(effect)

    async def _part(self, effect: machine.MarkDone | machine.Leave | machine.Close) -> None:
        """Record that the agent is done, or leave, or close the rendezvous, within bounded time: a
        store that does not answer must not keep an agent from ending.
        """
        self._joining.cancel()
        try:
            with trio.move_on_after(AGENT_CLOSE_SECONDS):
                await self._gather_failures()
                if isinstance(effect, machine.MarkDone):
                    await self._mark_done(failed=effect.failed)
                elif isinstance(effect, machine.Close):
                    await self._rounds.close(effect.reason)
                await self._rounds.aclose()
        except RendezvousError as error:
            logger.warning("could not write to the job's store that this agent ends: %s", error)

    async def _gather_failures(self) -> None:
        """Read the failures of all agents in the latest round for the report, while the store can
        still be reached.
        """
        with trio.move_on_after(RECORD_SECONDS):
            while self._unwritten:
                await self._all_written.wait()
        self._found = await self._records.failures(self._round if self._round is not None else 0)

    async def _mark_done(self, *, failed: bool) -> None:
        assert self.machine.placement is not None
        await self._rounds.answer_in_advance()
        # First its own record, then those of all: whichever agent writes last sees them all, and
        # closes the rendezvous.
        await self._records.mark_done(self._rounds.name, failed=failed)
        everyone = self.machine.placement.participants
        done = await self._records.done(everyone)
        if len(done) == len(everyone):
            if any(done.values()):
                await self._rounds.close("failed: a worker failed, and no restart was left")
            else:
                await self._rounds.close(machine.FINISHED, finished=True)

    async def _join(self, order: machine.Join, scope: trio.CancelScope) -> None:
        """Take part in a round, and pass what happens to it to the machine until the next one is
        wanted.
        """
        with scope:
            self._join_began = self._environment.now()
            try:
                placement = await self._rounds.join(order, self.machine.placement, self._nursery)
            except RoundJoinError as error:
                if not scope.cancel_called:
                    self._emit(error.event)
                return
            # The machine has cancelled this attempt while it succeeded: it waits for another one.
            if scope.cancel_called:
                return
            self._emit(machine.Joined(placement))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    self._rounds.answer_roll_calls, lambda: not self._workers.reaper.was_paused
                )
                async for change in self._rounds.follow():
                    self._emit(change)
                # An agent that was cut off is no part of the round any more.
                nursery.cancel_scope.cancel()

    async def _ask(self, incident: str, seconds: float, scope: trio.CancelScope) -> None:
        if seconds:
            # The policies with a roll call stop all workers for one incident, so there is one
            # request at a time, and one scope is enough.
            with scope, trio.move_on_after(seconds):
                await self._rounds.roll_call()
            if scope.cancel_called:
                return
        granted, text = await self._records.ask_restart(incident, self._rounds.name)
        if granted:
            self.counts.restarts_granted += 1
        else:
            self.counts.restarts_refused += 1
            logger.error("%s", text)
        self._log.write(
            "restart", granted=granted, incident=incident, text=text or None, round=self._round
        )
        self._emit(machine.Answered(incident, granted, text))

    def _start(self, local_ranks: tuple[int, ...]) -> None:
        placement = self.machine.placement
        assert placement is not None
        # Before they start, since they may read the file at once.
        self._workers.notify(placement)
        for local_rank in local_ranks:
            by_worker = self._settings.rules.policy == "worker"
            restarts = self._worker_restarts.get(local_rank, 0) if by_worker else placement.restarts
            self._worker_restarts[local_rank] = self._worker_restarts.get(local_rank, 0) + 1
            worker = self._workers.start(local_rank, placement, restarts)
            self.counts.worker_starts += 1
            self._log.write(
                "worker started",
                round=placement.round,
                rank=worker.rank,
                local_rank=local_rank,
                pid=worker.pid,
                attempt=worker.attempt,
            )

    def _stop(self, signum: int, *, at_once: bool) -> None:
        seconds = (
            min(CUT_OFF_GRACE, self._settings.shutdown_timeout)
            if at_once
            else self._settings.shutdown_timeout
        )
        if self._workers.is_stopping:
            # `Stopped` comes once, from the task that stops them already.
            self._workers.shorten_stop(signum, seconds)
        else:
            self._nursery.start_soon(self._stop_all, signum, seconds)

    async def _stop_all(self, signum: int, seconds: float) -> None:
        began = self._environment.now()
        stuck = await self._workers.stop(signum, seconds)
        self._log.write(
            "workers stopped",
            round=self._round,
            seconds=round(self._environment.now() - began, 3),
            killed=[worker.rank for worker in self._workers.killed] or None,
            stuck=len(stuck) or None,
        )
        pids = ", ".join(str(worker.pid) for worker in stuck)
        self._emit(
            machine.Stopped(
                f"SIGKILL does not end the workers with pid {pids}: they hang in the kernel; this "
                "machine cannot run workers any more"
                if stuck
                else ""
            )
        )

    def _worker_ended(self, worker: WorkerProcess) -> None:
        status = worker.status
        assert status is not None
        seconds = round(self._environment.now() - worker.started_at, 3)
        self._log.write(
            "worker ended",
            round=worker.round,
            rank=worker.rank,
            local_rank=worker.local_rank,
            pid=worker.pid,
            exit_code=status.code,
            signal=status.signal,
            stopped=worker.stopping or None,
            seconds=seconds,
        )
        if (
            not worker.stopping
            and status.signal == signal.SIGKILL
            and self._workers.reaper.was_paused
        ):
            # No failure of the worker's: the guardian killed it, and no restart is counted.
            worker.stopping = True
            self._emit(
                machine.AgentLost(
                    "this agent did not run for so long that its guardian killed the workers"
                )
            )
        if worker.stopping:
            return
        failed = status.code != 0
        if failed:
            self.counts.worker_failures += 1
            if not self._unwritten:
                # Only with none unwritten, so that no task waits for the event that is replaced.
                self._all_written = trio.Event()
            self._unwritten += 1
            self._to_write.send_nowait(self._failure_of(worker))
        self._emit(machine.WorkerExited(worker.local_rank, failed))

    def _failure_of(self, worker: WorkerProcess) -> WorkerFailure:
        status = worker.status
        assert status is not None
        why = ""
        if worker.expired is not None:
            self.counts.workers_stuck += 1
            why = (
                f"stuck: in {worker.expired.scope!r} for longer than {worker.expired.after:g} "
                "s, so the agent killed it"
            )
        message, traceback, error_file = error_of(worker.error_file)
        failure = WorkerFailure(
            number=0,
            round=worker.round,
            rank=worker.rank,
            local_rank=worker.local_rank,
            role=self._settings.role,
            agent=self._rounds.name,
            host=self._host,
            pid=worker.pid,
            code=status.code,
            signal=status.signal,
            why=why,
            message=message,
            traceback=traceback,
            error_file=error_file,
        )
        first = message.strip().partition("\n")[0]
        # Plain: both come from the worker, and go to a terminal.
        logger.warning(
            "%s", plain(f"{failure.headline()}: {first}" if first else failure.headline())
        )
        return failure

    async def _write_failures(self) -> None:
        """Write failures to the job's store one after the other, in the order in which they were
        observed: the store numbers them.
        """
        async for failure in self._failed:
            await self._records.add_failure(failure)
            assert self._unwritten > 0, "each failure is counted before it is queued"
            self._unwritten -= 1
            if not self._unwritten:
                self._all_written.set()

    def _observe(self, event: Event) -> None:
        """Count an event and write it to the log."""
        match event:
            case machine.Joined(placement):
                seconds = self._environment.now() - self._join_began
                self.counts.rounds += 1
                self.counts.rendezvous_seconds += seconds
                self._log.write(
                    "round began",
                    round=placement.round,
                    group_rank=placement.own.group_rank,
                    group_world_size=placement.group_world_size,
                    world_size=placement.world_size,
                    agents=list(placement.participants),
                    restarts=placement.restarts,
                    seconds=round(seconds, 3),
                )
            case machine.MembershipChanged(left, waiting, closed):
                self.counts.membership_changes += 1
                self._log.write(
                    "membership changed",
                    round=self._round,
                    left=list(left),
                    waiting=waiting,
                    closed=closed or None,
                )
            case machine.AgentLost(text):
                self.counts.cut_off += 1
                logger.warning("this agent is cut off from its job and stops its workers: %s", text)
                self._log.write("cut off", round=self._round, text=text)
            case machine.JoinFailed(kind, text):
                self._log.write("no round", kind=kind, text=text)
            case machine.Signalled(signum):
                self._log.write("signalled", signal=signum)
            case _:
                pass

    async def _receive_signals(self, *, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(
            *(signal.Signals(number) for number in self._settings.signals)
        ) as signals:
            task_status.started()
            async for signum in signals:
                self._emit(machine.Signalled(signum))

    def _answer(self, path: str) -> tuple[int, str, str] | None:
        """Return status, content type and text for a path of the health port, or None."""
        running = len(self._workers.running)
        if path == "/healthz":
            fields: dict[str, object] = {
                "state": self.machine.state,
                "rejoining": self.machine.rejoining,
                "run_id": self._settings.run_id,
                "round": self._round,
                "workers_running": running,
                "workers_finished": len(self.machine.succeeded),
                "workers_given_up": len(self.machine.given_up),
            }
            return (503 if self.machine.failing else 200), "application/json", as_json(fields)
        if path == "/metrics":
            workers = {
                "running": running,
                "finished": len(self.machine.succeeded),
                "given_up": len(self.machine.given_up),
            }
            labels = {"run_id": self._settings.run_id, "role": self._settings.role}
            return (
                200,
                "text/plain; version=0.0.4",
                prometheus_text(self.counts, self.machine.state, workers, labels),
            )
        return None


def make_run_directory(log_dir: Path | None, run_id: str) -> tuple[Path, bool]:
    """Make a directory for this run only, and return it and whether it is temporary. It is
    `<log_dir>/<run_id>`, with a number if that exists.
    """
    if log_dir is None:
        return Path(tempfile.mkdtemp(prefix="understudy-")), True
    log_dir.mkdir(parents=True, exist_ok=True)
    name = run_id.replace("/", "_")
    number = 0
    # `mkdir` decides which of two agents gets a name; each further attempt tries a new number.
    while True:
        directory = log_dir.resolve() / (name if number == 0 else f"{name}_{number}")
        try:
            directory.mkdir()
        except FileExistsError:
            number += 1
        else:
            return directory, False
