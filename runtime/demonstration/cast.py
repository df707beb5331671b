"""Who plays in the demonstration: a stateful scheduler and stateless indexers.

The scheduler always knows who is idle: it awaits one call on each indexer, and a call ends at once when the indexer's node does. What it
has
got so far it saves through the runtime, so a successor goes on where it was killed.
"""

from __future__ import annotations

import logging
from collections import deque

import attrs
import trio

from actors import Actor, NotExecutedError, OutcomeUnknownError, message, method
from actors.errors import StoreOutcomeUnknownError, StoreUnavailableError
from runtime.demonstration.job import FileIndex, index_file

SAVE_EVERY = 0.1
"""Seconds between saves: what a killed scheduler had received since the last one is computed again."""


logger = logging.getLogger("understudy.demonstration")


@message
@attrs.frozen(kw_only=True)
class Progress:
    """Where the job stands. `busy` and `idle` are names of nodes; `rerun` counts pieces that had to be given out again."""

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
        """The index of each file. Plain `def`: it runs in a thread, so the node's heart keeps beating while it computes."""
        return [(path, index_file(path)) for path in piece]

    @method(concurrent=True, idempotent=True)
    async def echo(self, number: int) -> int:
        """Give back what came; for measuring calls."""
        return number


class Scheduler(Actor):
    """Gives pieces to whoever is idle, until all are done."""

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
        """A new indexer is there, at whatever time. When this returns, a successor will know of it too."""
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
                # Its node left or died: the piece goes to somebody else, and this indexer gets no more.
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
                    logger.warning("%d pieces are not saved yet: %s", len(self.done) - self.saved_count, error)
            await trio.sleep(SAVE_EVERY)

    async def _save(self) -> None:
        # One after the other: an earlier state must not arrive after a later one.
        async with self.saving:
            count = len(self.done)
            await self.save({"done": dict(self.done), "rerun": self.rerun, "indexers": dict(self.indexers)})
            self.saved_count = count

    async def _wait_for_change(self) -> None:
        await self.changed.wait()

    def _tell_change(self) -> None:
        changed, self.changed = self.changed, trio.Event()
        changed.set()
