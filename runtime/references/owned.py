"""The values of this node: kept, waited for, served to others, and worked with where they are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import attrs
import trio

from actors.errors import NodeDrainingError, ReferenceNotReadyError, ReferenceReleasedError
from actors.reference import Reference
from runtime.environment import Environment, Process
from runtime.references.anchors import Anchor
from runtime.references.claims import Identity, ReferenceId
from runtime.references.memory.values import Segment, Shelves
from runtime.references.methods import method_of
from runtime.references.packing import Packing
from runtime.references.table import ReferenceTable
from runtime.references.values import NOT_YET, UNKNOWN, Failure, Kept, Lent, OnDisk, Parcel, Sized, WithReferences
from runtime.system_calls import LONG_POLL_SECONDS


@attrs.frozen
class Reader:
    """Who asks for a value: a node, and the process that it is."""

    node: Identity
    process: Process


MOST_SENT = 4096
"""Bytes of a value that travel with its reference, if all the rest is read in place."""

UNKNOWN_SECONDS = 5.0
"""How long a method waits for a value that this node has not heard of."""


METHOD_THREADS = 40
"""Methods of values that may run at once, each in a thread. They are users' code: what blocks there holds up nothing else."""


class OwnValues:
    """See the module. `rebuild(failure)` gives the error to raise for a failure."""

    def __init__(
        self,
        table: ReferenceTable,
        packing: Packing,
        shelves: Shelves[ReferenceId],
        environment: Environment,
        rebuild: Callable[[Failure], Exception],
    ) -> None:
        self._table = table
        self._packing = packing
        self._environment = environment
        self._methods = trio.CapacityLimiter(METHOD_THREADS)
        self.shelves = shelves
        self._host = environment.process().host
        self._near: dict[Identity, Process] = {}
        """Nodes that have read values in place, and what processes they are."""
        self.rebuild = rebuild
        self.takes_over = True
        """False once this node, which leaves, has given away what it had."""

    async def put(self, value: object) -> Reference[Any]:
        """Keep a copy of a value; waits while too much is in memory. Raises EncodeError, ReferenceMemoryError."""
        await trio.lowlevel.checkpoint()
        await self.shelves.room()
        kept = self._packing.pack(value, "value")
        reference = self._table.keep(kept)
        self.shelves.add(reference.anchor.identity, kept.size)
        return reference

    def resolve(self, anchor: Anchor, value: object) -> int:
        """The method has returned what `anchor` is for; returns its size in bytes. Raises EncodeError."""
        kept = self._packing.pack(value, "result")
        if not anchor.is_settled:
            anchor.kept = kept
            self.shelves.add(anchor.identity, kept.size)
            anchor.tell()
        return kept.size

    def value_now(self, anchor: Anchor) -> object:
        """A copy of the value. Raises what the producing call raised, and `ReferenceNotReadyError`."""
        if anchor.kept is None:
            self._raise_failure(anchor)
            raise ReferenceNotReadyError(f"{Reference(anchor)!r} has no value yet; `await reference.fetch()` waits for it")
        if isinstance(anchor.kept, OnDisk):
            raise ReferenceNotReadyError(f"{Reference(anchor)!r} has its value on disk; `await reference.fetch()` reads it")
        self.shelves.used(anchor.identity)
        return self._packing.unpack(anchor.kept)

    async def value(self, anchor: Anchor) -> object:
        """A copy of the value, once it is there. Raises what the producing call raised."""
        while not anchor.is_settled:
            await anchor.wait_changed()
        self._raise_failure(anchor)
        assert anchor.kept is not None
        self.shelves.used(anchor.identity)
        return self._packing.unpack(await _loaded(anchor.kept))

    async def served(self, identity: ReferenceId, reader: Reader | None = None) -> object:
        """The value for another node, or the failure, or whom to ask (a pair of name and incarnation), UNKNOWN or NOT_YET.

        If `reader` says that it is on this host, it is told where the value lies, if that is where it can be read.
        """
        owner, anchor = self._find(identity)
        if anchor is None:
            return list(owner) if owner is not None else UNKNOWN
        with trio.move_on_after(LONG_POLL_SECONDS):
            while not anchor.is_settled:
                await anchor.wait_changed()
        if anchor.kept is None:
            return anchor.failure if anchor.failure is not None else NOT_YET
        self.shelves.used(identity)
        kept = await _loaded(anchor.kept)
        if reader is None or kept is not anchor.kept or not isinstance(kept, Parcel) or not kept.is_shared:
            return kept
        if not self._host or reader.process.host != self._host:
            return kept
        self._near[reader.node] = reader.process
        self.shelves.lent(identity, reader.node, reader.process)
        return Lent(kept.control, tuple(segment.place or segment.buffer for segment in kept.segments))

    def lent_to(self, anchor: Anchor, node: Identity) -> Lent | None:
        """Where a value of this node lies, for a node that is known to read there; None if it has to ask."""
        process = self._near.get(node)
        kept = anchor.kept
        if process is None or not isinstance(kept, Parcel) or not kept.is_shared:
            return None
        lent = Lent(kept.control, tuple(segment.place or segment.buffer for segment in kept.segments))
        if lent.sent > MOST_SENT:
            return None
        self.shelves.lent(anchor.identity, node, process)
        return lent

    def ended(self, node: Identity) -> None:
        """That incarnation is no more."""
        self._near.pop(node, None)

    async def outcome(self, anchor: Anchor) -> object:
        """What there is to be given to another owner: the value, or why there is none."""
        return await _loaded(anchor.kept) if anchor.kept is not None else anchor.failure

    async def adopt(self, identity: ReferenceId, outcome: object, registers: list[tuple[str, int, int]], maker: str, site: str) -> bool:
        """A value is this node's from now on; its owner leaves. False if this node has had it, and given it on, while there was no memory.

        Raises NodeDrainingError if this node leaves, too, and has no time left to give it on, and DecodeError for what is no value.
        """
        await self.shelves.room()
        if self._table.given_to(identity) is not None:
            return False
        if not self.takes_over:
            raise NodeDrainingError("this node leaves the cluster, too")
        here = self._table.find(identity)
        kept: Parcel | WithReferences | None = None
        if isinstance(outcome, Parcel) and (here is None or here.kept is None):
            # Before anything is this node's: it may be more than can be read.
            kept = self._packing.taken_over(outcome)
        anchor = self._table.adopt(identity, registers, maker, site)
        if anchor.is_settled:
            return True
        if isinstance(outcome, Failure):
            anchor.failure = outcome
        elif kept is not None:
            anchor.kept = kept
            self.shelves.add(identity, kept.size)
        anchor.tell()
        return True

    async def spill(self) -> None:
        """Write to disk what does not fit into memory, for as long as the node lives."""
        while True:
            for identity in await self.shelves.wait_full():
                await self._write(identity)
                if self.shelves.broken:
                    await self.shelves.disk_rested()
                    break

    def freed(self, identity: ReferenceId, size: int) -> None:
        """Nobody holds a value of this node any more."""
        self.shelves.remove(identity, size)

    def reader_ended(self, anchor: Anchor, reader: Identity) -> None:
        """A node that held a value has ended, or lost its lease."""
        self.shelves.reader_ended(reader, anchor.identity, anchor.kept)

    async def _write(self, identity: ReferenceId) -> None:
        # In a function of its own, so that nothing here keeps the last value that was written.
        anchor = self._table.find(identity)
        kept = anchor.kept if anchor is not None else None
        if anchor is None or not isinstance(kept, Parcel):
            return
        spilled = await self.shelves.write(identity, kept.buffers)
        if spilled is not None and anchor.kept is kept:
            anchor.kept = OnDisk(kept.control, spilled, kept.size)

    def _raise_failure(self, anchor: Anchor) -> None:
        if anchor.failure is not None:
            raise self.rebuild(anchor.failure)
        if anchor.error is not None:
            raise type(anchor.error)(*anchor.error.args)

    async def outcomes(self, identities: Sequence[ReferenceId], *, wait: bool) -> list[int]:
        """Which of them have outcomes, by their places, or are not known here; with `wait` as soon as there is one, or after a while."""
        anchors = [self._find(identity)[1] for identity in identities]
        done: list[int] = []
        with trio.move_on_after(LONG_POLL_SECONDS if wait else 0):
            while not (done := _done(anchors)) and wait:
                await self._table.wait_changed()
        return done or _done(anchors)

    async def call(self, identity: ReferenceId, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Run a method of a value in a thread. Returns [its result], or what `served` does. Raises AttributeError, and what it raises."""
        _, anchor = self._find(identity)
        answer = await self.served(identity)
        if anchor is None or not isinstance(answer, Kept):
            return answer
        method = method_of(self._packing.unpack(answer), name)
        return [await self._environment.in_thread(functools.partial(method, *args, **kwargs), self._methods)]

    async def call_and_keep(self, identity: ReferenceId, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Likewise, for a result that stays here. Raises what there is to raise: nobody can ask again."""
        with trio.move_on_after(UNKNOWN_SECONDS):
            while self._table.owner(identity) is None:
                # The call that makes it is on its way here.
                await self._table.wait_changed()
        answer: object = NOT_YET
        while answer == NOT_YET:
            answer = await self.call(identity, name, args, kwargs)
        if isinstance(answer, Failure):
            raise self.rebuild(answer)
        if isinstance(answer, list) and len(cast("list[object]", answer)) == 1:
            return cast("list[object]", answer)[0]
        raise ReferenceReleasedError(f"node {self._table.identity[0]} does not have the value whose method {name} was to be called")

    def _find(self, identity: ReferenceId) -> tuple[Identity | None, Anchor | None]:
        owner = self._table.owner(identity)
        return owner, self._table.find(identity) if owner == self._table.identity else None


async def _loaded(kept: Sized) -> Parcel | WithReferences:
    """With all of it in memory."""
    if isinstance(kept, OnDisk):
        return Parcel(kept.control, tuple(Segment(buffer) for buffer in await kept.spilled.read()))
    return kept


def _done(anchors: Sequence[Anchor | None]) -> list[int]:
    return [index for index, anchor in enumerate(anchors) if anchor is None or anchor.is_settled]
