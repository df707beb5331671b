"""The story: the job runs, and at fixed points of its progress a node joins, one is killed, the scheduler's own is killed, one leaves.

Nothing here helps the job along: it would end in the same way if these things happened by themselves. Every figure is measured in the run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import trio

from actors import ChildSpec, SpawnOptions, Supervisor
from actors.errors import UnderstudyError
from runtime.demonstration.cast import Indexer, Progress, Scheduler
from runtime.demonstration.job import Index, index_alone, merge, source_files, split
from runtime.environment import SystemEnvironment
from runtime.local_cluster import LocalCluster, open_local_cluster

BURST = 1_000
BURST_SECONDS = 1.0

PATIENCE_SECONDS = 50.0
"""How long the job and all that happens to it may take."""


@attrs.frozen(kw_only=True)
class Happening:
    """One line of the time line. `at`: seconds since the beginning. `milliseconds`: how long what it tells of took, where that was
    measured.
    """

    at: float
    kind: str
    text: str
    milliseconds: float | None = None


@attrs.define(kw_only=True)
class Outcome:
    """What came of it; also what `--json` prints."""

    equal: bool
    files: int
    identifiers: int
    occurrences: int
    pieces: int
    rerun: int
    seconds: float
    seconds_alone: float
    calls_per_second: float
    sequential_calls_per_second: float
    timeline: list[Happening]


class Story:
    """One performance. `tell(happening)` and `advance(progress)` show it to somebody as it goes; `store`: see `open_local_cluster`."""

    def __init__(self, tell: Callable[[Happening], None], advance: Callable[[Progress], None], store: str | None = None) -> None:
        self._store = store
        self._tell = tell
        self._advance = advance
        # Each performance in an etcd is one of its own.
        self._cluster = "demo" if store is None else f"demo-{SystemEnvironment().token(4).hex()}"
        self._timeline: list[Happening] = []
        self._began = 0.0

    async def play(self, on_line: Callable[[str, str], None]) -> Outcome:
        """Run the job on a local cluster with all that happens to it, and then alone, and compare."""
        self._began = trio.current_time()
        files = source_files()
        pieces = split(files)
        async with open_local_cluster(nodes=0, cluster=self._cluster, store=self._store, on_line=on_line) as cluster:
            async with trio.open_nursery() as starting:
                for name in ("host-1", "host-2"):
                    starting.start_soon(self._start, cluster, name, "control")
                for name in ("worker-1", "worker-2"):
                    starting.start_soon(self._start, cluster, name, "work")
            self._say("started", f"4 node processes and this one; {len(files)} files in {len(pieces)} pieces")
            scheduler = await self._begin(cluster, pieces)
            with trio.move_on_after(PATIENCE_SECONDS) as patience:
                await self._happen(cluster, scheduler, len(pieces))
            if patience.cancelled_caught:
                progress = await scheduler.progress()
                raise UnderstudyError(
                    f"the job did not get done in {PATIENCE_SECONDS:g} s: {progress}; is this machine busy with something else?"
                )
            parts = [part for number in range(len(pieces)) for part in await scheduler.result(number)]
            progress = await scheduler.progress()
            seconds = trio.current_time() - self._began
            self._say("done", f"all {len(pieces)} pieces, {progress.rerun} given out again, nothing lost")
            sequential, pipelined = await self._measure_calls(cluster)
            await cluster.node.stop(await cluster.node.lookup("supervisor", Supervisor))
        began = trio.current_time()
        index = merge(parts)
        alone = await trio.to_thread.run_sync(index_alone, pieces)
        return self._outcome(
            index,
            alone,
            files=len(files),
            pieces=len(pieces),
            rerun=progress.rerun,
            seconds=seconds,
            seconds_alone=trio.current_time() - began,
            rates=(pipelined, sequential),
        )

    async def _begin(self, cluster: LocalCluster, pieces: list[list[str]]) -> Scheduler:
        """A supervised scheduler on one of the two hosts, and an indexer on each worker there is."""
        spec = ChildSpec(
            id="scheduler", actor=Scheduler, args=(pieces,), options=SpawnOptions(name="scheduler", labels={"role": "control"})
        )
        await cluster.node.options(name="supervisor").spawn(Supervisor, [spec], intensity=3)
        scheduler = await cluster.node.lookup("scheduler", Scheduler)
        for name in ("worker-1", "worker-2"):
            await self._hire(cluster, scheduler, name)
        return scheduler

    async def _happen(self, cluster: LocalCluster, scheduler: Scheduler, total: int) -> None:
        acts: list[tuple[float, Callable[[LocalCluster, Scheduler], Awaitable[None]]]] = [
            (0.12, self._join_late),
            (0.30, self._kill_worker),
            (0.50, self._kill_scheduler),
            (0.70, self._leave),
        ]
        while True:
            progress = await scheduler.progress()
            self._advance(progress)
            if acts and progress.done >= acts[0][0] * total:
                await acts.pop(0)[1](cluster, scheduler)
            elif progress.done == total and not acts:
                return
            await trio.sleep(0.02)

    async def _join_late(self, cluster: LocalCluster, scheduler: Scheduler) -> None:
        began = trio.current_time()
        await self._start(cluster, "worker-3", "work")
        await self._hire(cluster, scheduler, "worker-3")
        self._say("joined", "worker-3 joined late and got work", began)

    async def _kill_worker(self, cluster: LocalCluster, scheduler: Scheduler) -> None:
        while "worker-1" not in (await scheduler.progress()).busy:  # noqa: ASYNC110  asked as any outsider would
            await trio.sleep(0.001)
        self._say("killed", "SIGKILL to worker-1 in the middle of a piece")
        await self._kill_and_detect(cluster, "worker-1")
        began = trio.current_time()
        while "worker-1" in (await scheduler.progress()).busy:  # noqa: ASYNC110  asked as any outsider would
            await trio.sleep(0.001)
        self._say("rerun", "the scheduler put its piece back; somebody else gets it", began)

    async def _kill_scheduler(self, cluster: LocalCluster, scheduler: Scheduler) -> None:
        before = await scheduler.progress()
        self._say(
            "killed",
            f"SIGKILL to {before.node}, the scheduler's own process, at {before.done} of {before.total} pieces ({before.saved} saved)",
        )
        began = trio.current_time()
        await self._kill_and_detect(cluster, before.node)
        after = await scheduler.progress()
        self._say(
            "restarted",
            f"the scheduler answers on {after.node} with {after.done} pieces kept, epoch {before.epoch} -> {after.epoch}",
            began,
        )

    async def _leave(self, cluster: LocalCluster, scheduler: Scheduler) -> None:
        began = trio.current_time()
        status = await cluster.process("worker-2").leave()
        self._say("left", f"worker-2 finished its piece and left ({status.describe()})", began)

    async def _start(self, cluster: LocalCluster, name: str, role: str) -> None:
        await cluster.start_node(name, labels={"role": role})

    async def _hire(self, cluster: LocalCluster, scheduler: Scheduler, name: str) -> None:
        indexer = await cluster.node.options(name=f"indexer-{name}", on=name).spawn(Indexer)
        await scheduler.welcome(name, indexer)

    async def _kill_and_detect(self, cluster: LocalCluster, name: str) -> None:
        began = trio.current_time()
        cluster.process(name).kill()
        await cluster.node.wait_gone(name)
        self._say("detected", f"the cluster knows that {name} is dead", began)

    async def _measure_calls(self, cluster: LocalCluster) -> tuple[float, float]:
        """Calls per second to another process: one after the other, and `BURST` at a time."""
        echo = await cluster.node.lookup("indexer-worker-3", Indexer)
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
        happening = Happening(at=now - self._began, kind=kind, text=text, milliseconds=took)
        self._timeline.append(happening)
        self._tell(happening)

    def _outcome(
        self,
        index: Index,
        alone: Index,
        *,
        files: int,
        pieces: int,
        rerun: int,
        seconds: float,
        seconds_alone: float,
        rates: tuple[float, float],
    ) -> Outcome:
        occurrences = sum(count for found in index.values() for _, count in found)
        return Outcome(
            equal=index == alone,
            files=files,
            identifiers=len(index),
            occurrences=occurrences,
            pieces=pieces,
            rerun=rerun,
            seconds=seconds,
            seconds_alone=seconds_alone,
            calls_per_second=rates[0],
            sequential_calls_per_second=rates[1],
            timeline=self._timeline,
        )
