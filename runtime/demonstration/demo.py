"""The demo: the job runs, and at fixed points of its progress a node joins, one is killed, the
scheduler's own is killed, one leaves.

Nothing here helps the job along: it would end in the same way if these things happened by
themselves. Every figure is measured in the run.
"""

from __future__ import annotations

import keyword
import logging
import sysconfig
import tokenize
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

import attrs
import trio

from actors import (
    Actor,
    ChildSpec,
    NotExecutedError,
    OutcomeUnknownError,
    SpawnOptions,
    Supervisor,
    message,
    method,
)
from actors.errors import StoreOutcomeUnknownError, StoreUnavailableError, UnderstudyError
from runtime.environment import SystemEnvironment
from runtime.local_cluster import LocalCluster, open_local_cluster

# The job itself, without any cluster: which files there are, how one is indexed, and how the parts
# become one index.
#
# Pure but for reading the files. The same functions compute the index in a single process, to hold
# the cluster's result against.

FileIndex = dict[str, int]
"""Identifier to the number of its occurrences in one file."""


Index = dict[str, list[tuple[str, int]]]
"""Identifier to the files it occurs in, and how often, in the order of the files' names."""


PIECE_BYTES = 256 * 1024


def source_files() -> list[Path]:
    """Every `.py` file of the running interpreter's standard library, in order."""
    root = Path(sysconfig.get_path("stdlib"))
    return sorted(path for path in root.rglob("*.py") if "site-packages" not in path.parts)


def split(files: Sequence[Path]) -> list[list[str]]:
    """The files in pieces of about `PIECE_BYTES`: enough work to be worth a call, little enough to
    be lost without grief.
    """
    pieces: list[list[str]] = []
    size = PIECE_BYTES
    for path in files:
        if size >= PIECE_BYTES:
            pieces.append([])
            size = 0
        pieces[-1].append(str(path))
        size += path.stat().st_size
    return pieces


def index_file(path: str) -> FileIndex:
    """The identifiers of one file. A file that is no valid Python, as some test data are on
    purpose, counts as far as it can be read.
    """
    found: Counter[str] = Counter()
    try:
        with tokenize.open(path) as file:
            for token in tokenize.generate_tokens(file.readline):
                if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
                    found[token.string] += 1
    except (SyntaxError, UnicodeDecodeError, tokenize.TokenError):
        pass
    return dict(found)


def merge(parts: Iterable[tuple[str, FileIndex]]) -> Index:
    """One index from the indexes of all files, whatever their order."""
    index: Index = {}
    for path, found in sorted(parts):
        for name, count in found.items():
            index.setdefault(name, []).append((path, count))
    return index


def index_in_one_process(pieces: Sequence[Sequence[str]]) -> Index:
    """The whole index, computed here and now."""
    return merge((path, index_file(path)) for piece in pieces for path in piece)


# Who plays in the demonstration: a stateful scheduler and stateless indexers.
#
# The scheduler always knows who is idle: it awaits one call on each indexer, and a call ends at
# once when the indexer's node does. What it has got so far it saves through the runtime, so a
# successor goes on where it was killed.

SAVE_EVERY = 0.1
"""Seconds between saves: what a killed scheduler had received since the last one is
computed again.
"""


logger = logging.getLogger("understudy.demonstration")


@message
@attrs.frozen(kw_only=True)
class Progress:
    """Where the job stands. `busy` and `idle` are names of nodes; `rerun` counts pieces that had to
    be given out again.
    """

    epoch: int
    node: str
    done: int
    total: int
    saved: int
    rerun: int
    busy: tuple[str, ...]
    idle: tuple[str, ...]


class Indexer(Actor):
    """Indexes the files it is given. Keeps nothing between calls."""

    @method(idempotent=True)
    def index(self, piece: list[str]) -> list[tuple[str, FileIndex]]:
        """The index of each file. Plain `def`: it runs in a thread, so the node's heart keeps
        beating while it computes.
        """
        return [(path, index_file(path)) for path in piece]

    @method(concurrent=True, idempotent=True)
    async def echo(self, number: int) -> int:
        """Return the argument; for measuring calls."""
        return number


class Scheduler(Actor):
    """Gives pieces to idle indexers until all are done."""

    def __init__(self, pieces: list[list[str]]) -> None:
        self.pieces = pieces
        self.waiting: deque[int] = deque()
        self.done: dict[int, list[tuple[str, FileIndex]]] = {}
        self.saved_count = 0
        self.rerun = 0
        self.indexers: dict[str, Indexer] = {}
        self.busy: set[str] = set()
        self.changed = trio.Event()
        self.saving = trio.Lock()

    async def on_start(self) -> None:
        """Take over from a predecessor, if there was one."""
        state = await self.saved()
        indexers: dict[str, Indexer] = {}
        if state is not None:
            self.done = dict(state["done"])
            self.rerun = state["rerun"]
            indexers = state["indexers"]
        self.saved_count = len(self.done)
        self.waiting.extend(number for number in range(len(self.pieces)) if number not in self.done)
        for node, indexer in indexers.items():
            self._employ(node, indexer)
        self.nursery.start_soon(self._keep_saving)

    @method
    async def welcome(self, node: str, indexer: Indexer) -> None:
        """A new indexer is there, at whatever time. When this returns, a successor will know of it
        too.
        """
        self._employ(node, indexer)
        await self._save()

    @method(concurrent=True, idempotent=True)
    async def progress(self) -> Progress:
        """Where the job stands now."""
        idle = tuple(sorted(set(self.indexers) - self.busy))
        return Progress(
            epoch=self.epoch,
            node=self.node.name,
            done=len(self.done),
            total=len(self.pieces),
            saved=self.saved_count,
            rerun=self.rerun,
            busy=tuple(sorted(self.busy)),
            idle=idle,
        )

    @method(idempotent=True)
    async def result(self, piece: int) -> list[tuple[str, FileIndex]]:
        """The index of one finished piece."""
        return self.done[piece]

    def _employ(self, node: str, indexer: Indexer) -> None:
        if node not in self.indexers:
            self.indexers[node] = indexer
            self.nursery.start_soon(self._keep_busy, node, indexer)

    async def _keep_busy(self, node: str, indexer: Indexer) -> None:
        """Give pieces to one indexer until it is no longer there."""
        while len(self.done) < len(self.pieces):
            if not self.waiting:
                await self._wait_for_change()
                continue
            number = self.waiting.popleft()
            self.busy.add(node)
            try:
                self.done[number] = await indexer.index(self.pieces[number])
            except (NotExecutedError, OutcomeUnknownError):
                # Its node left or died: the piece goes to another indexer, and this indexer gets no
                # more.
                self.waiting.appendleft(number)
                self.rerun += 1
                del self.indexers[node]
                return
            finally:
                self.busy.discard(node)
                self._tell_change()

    async def _keep_saving(self) -> None:
        while self.saved_count < len(self.pieces):
            if len(self.done) > self.saved_count:
                try:
                    await self._save()
                except (StoreUnavailableError, StoreOutcomeUnknownError) as error:
                    logger.warning(
                        "%d pieces are not saved yet: %s", len(self.done) - self.saved_count, error
                    )
            await trio.sleep(SAVE_EVERY)

    async def _save(self) -> None:
        # One after the other: an earlier state must not arrive after a later one.
        async with self.saving:
            count = len(self.done)
            await self.save(
                {"done": dict(self.done), "rerun": self.rerun, "indexers": dict(self.indexers)}
            )
            self.saved_count = count

    async def _wait_for_change(self) -> None:
        await self.changed.wait()

    def _tell_change(self) -> None:
        changed, self.changed = self.changed, trio.Event()
        changed.set()


BURST = 1_000


BURST_SECONDS = 1.0


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


@attrs.define(kw_only=True)
class DemoOutcome:
    """The outcome of the demo; also what `--json` prints."""

    equal: bool
    files: int
    identifiers: int
    occurrences: int
    pieces: int
    rerun: int
    seconds: float
    seconds_single: float
    calls_per_second: float
    sequential_calls_per_second: float
    timeline: list[DemoEvent]


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
        self._began = 0.0

    async def play(self, on_line: Callable[[str, str], None]) -> DemoOutcome:
        """Run the job on a local cluster with all that happens to it, and then alone, and
        compare.
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
            scheduler = await self._begin(cluster, pieces)
            with trio.move_on_after(PATIENCE_SECONDS) as patience:
                await self._happen(cluster, scheduler, len(pieces))
            if patience.cancelled_caught:
                progress = await scheduler.progress()
                raise UnderstudyError(
                    f"the job was not done within {PATIENCE_SECONDS:g} s: {progress}; is this "
                    "machine busy with something else?"
                )
            parts = [
                part for number in range(len(pieces)) for part in await scheduler.result(number)
            ]
            progress = await scheduler.progress()
            seconds = trio.current_time() - self._began
            self._say(
                "done", f"all {len(pieces)} pieces, {progress.rerun} given out again, nothing lost"
            )
            sequential, pipelined = await self._measure_calls(cluster)
            await cluster.node.stop(await cluster.node.lookup("supervisor", Supervisor))
        began = trio.current_time()
        index = merge(parts)
        alone = await trio.to_thread.run_sync(index_in_one_process, pieces)
        return self._outcome(
            index,
            alone,
            files=len(files),
            pieces=len(pieces),
            rerun=progress.rerun,
            seconds=seconds,
            seconds_single=trio.current_time() - began,
            rates=(pipelined, sequential),
        )

    async def _begin(self, cluster: LocalCluster, pieces: list[list[str]]) -> Scheduler:
        """A supervised scheduler on one of the two hosts, and an indexer on each worker
        there is.
        """
        spec = ChildSpec(
            id="scheduler",
            actor=Scheduler,
            args=(pieces,),
            options=SpawnOptions(name="scheduler", labels={"role": "control"}),
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
        # asked as any outsider would
        while "worker-1" not in (await scheduler.progress()).busy:  # noqa: ASYNC110
            await trio.sleep(0.001)
        self._say("killed", "SIGKILL to worker-1 in the middle of a piece")
        await self._kill_and_detect(cluster, "worker-1")
        began = trio.current_time()
        # asked as any outsider would
        while "worker-1" in (await scheduler.progress()).busy:  # noqa: ASYNC110
            await trio.sleep(0.001)
        self._say("rerun", "the scheduler put its piece back; another worker gets it", began)

    async def _kill_scheduler(self, cluster: LocalCluster, scheduler: Scheduler) -> None:
        before = await scheduler.progress()
        self._say(
            "killed",
            f"SIGKILL to {before.node}, the scheduler's own process, at {before.done} of "
            f"{before.total} pieces ({before.saved} saved)",
        )
        began = trio.current_time()
        await self._kill_and_detect(cluster, before.node)
        after = await scheduler.progress()
        self._say(
            "restarted",
            f"the scheduler answers on {after.node} with {after.done} pieces kept, epoch "
            f"{before.epoch} -> {after.epoch}",
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
        event = DemoEvent(at=now - self._began, kind=kind, text=text, milliseconds=took)
        self._timeline.append(event)
        self._tell(event)

    def _outcome(
        self,
        index: Index,
        alone: Index,
        *,
        files: int,
        pieces: int,
        rerun: int,
        seconds: float,
        seconds_single: float,
        rates: tuple[float, float],
    ) -> DemoOutcome:
        occurrences = sum(count for found in index.values() for _, count in found)
        return DemoOutcome(
            equal=index == alone,
            files=files,
            identifiers=len(index),
            occurrences=occurrences,
            pieces=pieces,
            rerun=rerun,
            seconds=seconds,
            seconds_single=seconds_single,
            calls_per_second=rates[0],
            sequential_calls_per_second=rates[1],
            timeline=self._timeline,
        )
