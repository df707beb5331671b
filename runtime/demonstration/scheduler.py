"""Who plays in the demo: a stateful scheduler, and stateless indexers that come and go.

The indexers are the members of a pool, one on each node for work. The pool finds nodes that join,
replaces members that die, and repeats what they had. The scheduler keeps in the journal of its map
which pieces are done, so a successor goes on where it was killed.
"""

from __future__ import annotations

from typing import cast

import attrs

from actors import Actor, message, method
from actors.handle import Handle
from runtime.demonstration.job import index_piece, packed
from runtime.pools.map_run import MapResults

POOL = "indexers"


@message
@attrs.frozen(kw_only=True)
class Progress:
    """Where the job stands. `workers` are names of nodes; `kept` counts pieces that an earlier
    incarnation of the scheduler has done; `repeated`: pieces that were given out once more.
    """

    epoch: int
    node: str
    done: int
    total: int
    kept: int
    running: int
    repeated: int
    workers: tuple[str, ...]


class Indexer(Actor):
    """Indexes the files it is given. Keeps nothing between calls."""

    @method(idempotent=True)
    def index(self, piece: list[str]) -> bytes:
        """The index of each file. Plain `def`: it runs in a thread, so the node's heart keeps
        beating while it computes.
        """
        return packed(index_piece(piece))

    @method(concurrent=True, idempotent=True)
    async def echo(self, number: int) -> int:
        """Return the argument; for measuring calls."""
        return number


class Scheduler(Actor):
    """Has all pieces indexed by the workers that are there."""

    def __init__(self, job: str, pieces: list[list[str]]) -> None:
        self.job = job
        self.pieces = pieces
        self.parts: list[bytes] = []

    async def on_start(self) -> None:
        """Begin, or go on where a predecessor was."""
        self.pool = await self.node.pool(POOL, Indexer, per_node=1, labels={"role": "work"})
        results = self.pool.map(Indexer.index, self.pieces, journal=self.job)
        self.results = cast("MapResults[bytes]", results)
        self.nursery.start_soon(self._collect)

    async def _collect(self) -> None:
        async for part in self.results:
            self.parts.append(part)

    @method(concurrent=True, idempotent=True)
    async def progress(self) -> Progress:
        """Where the job stands now."""
        counts = self.results.counts()
        return Progress(
            epoch=self.epoch,
            node=self.node.name,
            done=counts.done,
            total=len(self.pieces),
            kept=counts.resumed,
            running=counts.running,
            repeated=counts.repeated,
            workers=tuple(cast("Handle", member).address.node for member in self.pool.members()),
        )

    @method(concurrent=True, idempotent=True)
    async def result(self) -> list[bytes]:
        """The indexes of the pieces that are done, in the order of the pieces."""
        return self.parts
