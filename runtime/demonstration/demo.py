"""The demo: a job runs undisturbed, and once more while, at fixed points of its progress, a node
joins, one is killed, the scheduler's own is killed, one leaves.

Nothing here helps the job along: it would end in the same way if these things happened by
themselves. Every figure is measured in the run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import trio

from actors import ChildSpec, SpawnOptions, Supervisor
from actors.errors import UnderstudyError
from runtime.cluster_processes import LocalCluster
from runtime.demonstration.job import (
    Index,
    Part,
    index_piece,
    merge,
    source_files,
    split,
    unpacked,
)
from runtime.demonstration.scheduler import Indexer, Progress, Scheduler
from runtime.environment import SystemEnvironment
from runtime.local_cluster import open_local_cluster

BURST = 1_000

BURST_SECONDS = 0.5
"""How long calls are counted for the rates that the demo shows."""

LOOK_SECONDS = 0.02
"""Seconds between looks at the job's progress."""

SEVERAL = 20
"""Pieces that end while one that was lost is surely given out again."""

PATIENCE_SECONDS = 50.0
"""How long the job and all that happens to it may take."""


@attrs.frozen(kw_only=True)
class DemoEvent:
    """One line of the time line. `at`: seconds since the beginning. `milliseconds`: how long what
    it tells of took, where that was measured.
    """

    at: float
    kind: str
    text: str
    milliseconds: float | None = None


@attrs.frozen(kw_only=True)
class Recovery:
    """What was done about one kill: `milliseconds` after it."""

    text: str
    milliseconds: float


@attrs.define(kw_only=True)
class DemoOutcome:
    """The outcome of the demo; also what `--json` prints.

    `lost` and `twice` count pieces of the job with the kills: those that its result lacks, and
    those that it has more than once. `repeated`: pieces that were begun once more, because the
    process that had them was killed. `seconds`: of that job; `seconds_undisturbed`: of the same job
    on the same cluster before; `seconds_single`: of the same work in one process.
    """

    equal: bool
    files: int
    identifiers: int
    occurrences: int
    pieces: int
    lost: int
    twice: int
    repeated: int
    recoveries: list[Recovery]
    seconds: float
    seconds_undisturbed: float
    seconds_single: float
    calls_per_second: float
    sequential_calls_per_second: float
    timeline: list[DemoEvent]


@attrs.frozen(kw_only=True)
class JobRun:
    """One run of the job on the cluster."""

    seconds: float
    parts: list[Part]


class Demo:
    """One run of the demo. `tell(event)` and `advance(progress)` show it while it runs;
    `store`: see `open_local_cluster`.
    """

    def __init__(
        self,
        tell: Callable[[DemoEvent], None],
        advance: Callable[[Progress], None],
        store: str | None = None,
    ) -> None:
        self._store = store
        self._tell = tell
        self._advance = advance
        # Each performance in an etcd is one of its own.
        self._cluster = "demo" if store is None else f"demo-{SystemEnvironment().token(4).hex()}"
        self._timeline: list[DemoEvent] = []
        self._recoveries: list[Recovery] = []
        self._began = 0.0
        self._repeated = 0

    async def play(self, on_line: Callable[[str, str], None]) -> DemoOutcome:
        """Run the job on a local cluster, once undisturbed and once with all that happens to it,
        and then alone, and compare.
        """
        self._began = trio.current_time()
        files = source_files()
        pieces = split(files)
        async with open_local_cluster(
            nodes=0, cluster=self._cluster, store=self._store, on_line=on_line
        ) as cluster:
            async with trio.open_nursery() as starting:
                for name in ("host-1", "host-2"):
                    starting.start_soon(self._start, cluster, name, "control")
                for name in ("worker-1", "worker-2"):
                    starting.start_soon(self._start, cluster, name, "work")
            self._say(
                "started",
                f"4 node processes and this one; {len(files)} files in {len(pieces)} pieces",
            )
            undisturbed = await self._run(cluster, "undisturbed", pieces, [])
            self._say("undisturbed", f"all {len(pieces)} pieces in {undisturbed.seconds:.1f} s")
            disturbed = await self._run(
                cluster,
                "disturbed",
                pieces,
                [
                    (0.12, self._join_late),
                    (0.30, self._kill_worker),
                    (0.50, self._kill_scheduler),
                    (0.70, self._leave),
                ],
            )
            self._say("done", f"all {len(pieces)} pieces in {disturbed.seconds:.1f} s")
            rates = await self._measure_calls(cluster)
        began = trio.current_time()
        alone = await trio.to_thread.run_sync(lambda: [index_piece(piece) for piece in pieces])
        return self._outcome(
            pieces,
            merge(alone),
            undisturbed,
            disturbed,
            seconds_single=trio.current_time() - began,
            rates=rates,
        )

    async def _run(
        self,
        cluster: LocalCluster,
        name: str,
        pieces: list[list[str]],
        acts: list[tuple[float, Callable[[LocalCluster, Scheduler], Awaitable[None]]]],
    ) -> JobRun:
        """The job, from the start of its scheduler to the end of the last piece. `acts`: what
        happens when such a part of it is done.
        """
        began = trio.current_time()
        spec = ChildSpec(
            id="scheduler",
            actor=Scheduler,
            args=(name, pieces),
            options=SpawnOptions(name=f"scheduler-{name}", labels={"role": "control"}),
        )
        node = cluster.node
        supervisor = await node.options(name=name).spawn(Supervisor, [spec], intensity=3)
        scheduler = await node.lookup(f"scheduler-{name}", Scheduler)
        progress = await scheduler.progress()
        with trio.move_on_after(PATIENCE_SECONDS) as patience:
            while progress.done < progress.total or acts:
                self._advance(progress)
                if acts and progress.done >= acts[0][0] * progress.total:
                    await acts.pop(0)[1](cluster, scheduler)
                else:
                    await trio.sleep(LOOK_SECONDS)
                progress = await scheduler.progress()
        if patience.cancelled_caught:
            raise UnderstudyError(
                f"the job was not done within {PATIENCE_SECONDS:g} s: {progress}; is this "
                "machine busy with something else?"
            )
        seconds = trio.current_time() - began
        self._repeated += progress.repeated
        parts = [unpacked(part) for part in await scheduler.result()]
        await node.stop(supervisor)
        return JobRun(seconds=seconds, parts=parts)

    async def _join_late(self, cluster: LocalCluster, scheduler: Scheduler) -> None:
        began = trio.current_time()
        await self._start(cluster, "worker-3", "work")
        await self._wait(scheduler, lambda progress: "worker-3" in progress.workers)
        self._say("joined", "worker-3 joined late, and gets pieces", began)

    async def _kill_worker(self, cluster: LocalCluster, scheduler: Scheduler) -> None:
        before = await scheduler.progress()
        self._say("killed", "SIGKILL to worker-1 while it works")
        began = trio.current_time()
        await self._kill_and_detect(cluster, "worker-1")
        # It may have had none, between two pieces: then others go on, and nothing is repeated.
        await self._wait(
            scheduler,
            lambda progress: (
                progress.repeated > before.repeated or progress.done >= before.done + SEVERAL
            ),
        )
        self._recovered(
            began, "rerun", "what worker-1 had is with other workers", "worker-1's pieces"
        )

    async def _kill_scheduler(self, cluster: LocalCluster, scheduler: Scheduler) -> None:
        before = await scheduler.progress()
        self._say(
            "killed",
            f"SIGKILL to {before.node}, the scheduler's own process, at {before.done} of "
            f"{before.total} pieces",
        )
        began = trio.current_time()
        # Its successor counts anew, and begins these once more.
        self._repeated += before.repeated + before.running
        await self._kill_and_detect(cluster, before.node)
        after = await self._wait(scheduler, lambda progress: progress.kept >= before.done)
        self._recovered(
            began,
            "restarted",
            f"the scheduler goes on at {after.node} with {after.kept} pieces kept, epoch "
            f"{before.epoch} -> {after.epoch}",
            "the scheduler",
        )

    async def _leave(self, cluster: LocalCluster, scheduler: Scheduler) -> None:
        began = trio.current_time()
        await self._start(cluster, "worker-4", "work")
        status = await cluster.process("worker-2").leave()
        self._say(
            "left",
            f"worker-4 takes over from worker-2, which has left ({status.describe()})",
            began,
        )

    async def _wait(self, scheduler: Scheduler, is_so: Callable[[Progress], bool]) -> Progress:
        """Ask for the progress, as any outsider would, until it is so."""
        # No event of this process says so.
        while not is_so(progress := await scheduler.progress()):  # noqa: ASYNC110
            await trio.sleep(0.002)
        return progress

    async def _start(self, cluster: LocalCluster, name: str, role: str) -> None:
        await cluster.start_node(name, labels={"role": role})

    async def _kill_and_detect(self, cluster: LocalCluster, name: str) -> None:
        began = trio.current_time()
        cluster.process(name).kill()
        await cluster.node.wait_gone(name)
        self._say("detected", f"the cluster knows that {name} is dead", began)

    async def _measure_calls(self, cluster: LocalCluster) -> tuple[float, float]:
        """Calls per second to another process: one after the other, and `BURST` at a time."""
        echo = await cluster.node.options(on="worker-3").spawn(Indexer)
        began = trio.current_time()
        count = 0
        while trio.current_time() - began < BURST_SECONDS:
            await echo.echo(count)
            count += 1
        sequential = count / (trio.current_time() - began)
        began = trio.current_time()
        count = 0
        while trio.current_time() - began < BURST_SECONDS:
            async with trio.open_nursery() as nursery:
                for number in range(BURST):
                    nursery.start_soon(echo.echo, number)
            count += BURST
        return sequential, count / (trio.current_time() - began)

    def _say(self, kind: str, text: str, since: float | None = None) -> None:
        now = trio.current_time()
        took = None if since is None else (now - since) * 1000
        event = DemoEvent(at=now - self._began, kind=kind, text=text, milliseconds=took)
        self._timeline.append(event)
        self._tell(event)

    def _recovered(self, since: float, kind: str, text: str, what: str) -> None:
        self._say(kind, text, since)
        took = (trio.current_time() - since) * 1000
        self._recoveries.append(Recovery(text=what, milliseconds=took))

    def _outcome(
        self,
        pieces: list[list[str]],
        alone: Index,
        undisturbed: JobRun,
        disturbed: JobRun,
        *,
        seconds_single: float,
        rates: tuple[float, float],
    ) -> DemoOutcome:
        index = merge(disturbed.parts)
        wanted = {piece[0] for piece in pieces}
        found = [part[0][0] for part in disturbed.parts]
        return DemoOutcome(
            equal=index == alone and merge(undisturbed.parts) == alone,
            files=sum(map(len, pieces)),
            identifiers=len(index),
            occurrences=sum(count for found in index.values() for _, count in found),
            pieces=len(pieces),
            lost=len(wanted.difference(found)),
            twice=len(found) - len(set(found)),
            repeated=self._repeated,
            recoveries=self._recoveries,
            seconds=disturbed.seconds,
            seconds_undisturbed=undisturbed.seconds,
            seconds_single=seconds_single,
            calls_per_second=rates[1],
            sequential_calls_per_second=rates[0],
            timeline=self._timeline,
        )
