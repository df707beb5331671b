"""Promises: names that will be had again, because a supervisor restarts those who have them.

While nobody has a promised name, calls to it wait instead of failing. A promise is as good as whoever gave it: one by a supervisor that is
itself supervised outlives its node, for the next incarnation of that supervisor keeps it, and it stands as long as somebody will start that
one; one by a supervisor that nobody restarts ends with its node's lease. The children that were added while their supervisor ran are
recorded beside the promises, so that its next incarnation knows of them.

A supervisor that will be restarted leaves its promises behind when it ends, however it ends: calls to its children wait for the whole
branch as they do for a single child. So each such supervisor records which names it promises, and whoever withdraws the promise of the
supervisor itself withdraws these as well, and those below them.

Where children failed and are not started again, the store says for a while how: those who waited for them are told.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import trio

from actors.children import ChildSpec
from actors.errors import StoreError
from runtime.store.interface import MAX_OPERATIONS, Compare, Delete, Entry, Get, Operation, Put, Response, Store

NAMES = "names/"
SUPERVISED = "supervised/"
CHILDREN = "children/"
CANDIDATES = "candidates/"
LAST_ENDS = "last-ends/"

TOLD_SECONDS = 10.0
"""How long the store says how children have ended that are not started again: those who wait for them look several times meanwhile."""

STATIC = "promised/"
"""The names of the children that each supervisor began with."""

CLUSTER = "@cluster"
"""Who supervises a singleton: its candidates, each for the time that it lives."""

logger = logging.getLogger("understudy.supervision")


class Promises:
    """As one node gives and finds them."""

    def __init__(self, store: Store, lease: int, encode: Callable[[object], bytes], decode: Callable[[bytes], object]) -> None:
        self._store = store
        self._lease = lease
        self._encode = encode
        self._decode = decode
        self._told: deque[tuple[float, list[str]]] = deque()
        """What is to be taken out of the store again, and when."""
        self._telling = trio.Event()

    async def run(self) -> None:
        """Take out of the store again what it need not say any longer; for ever. What fails goes with this node's lease."""
        while True:
            await self._telling.wait()
            while self._told:
                due, keys = self._told.popleft()
                await trio.sleep_until(due)
                try:
                    await self._store.transaction([], [Delete(key) for key in keys])
                except StoreError as error:
                    logger.info("how %d children ended stays in the store as long as this node: %s", len(keys), error)
            self._telling = trio.Event()

    async def tell(self, ends: Mapping[str, str]) -> None:
        """How actors of these names have ended that will not be started again, or why those who would start them do not."""
        told = list(ends.items())
        for start in range(0, len(told), MAX_OPERATIONS):
            part = told[start : start + MAX_OPERATIONS]
            await self._store.transaction([], [Put(LAST_ENDS + name, self._encode([why]), self._lease) for name, why in part])
            self._told.append((trio.current_time() + TOLD_SECONDS, [LAST_ENDS + name for name, _ in part]))
            self._telling.set()

    async def last_end(self, name: str, promise: Entry | None) -> str:
        """What was told a moment ago of the end of `name`, or of those who would have started it. `promise`: one that does not stand."""
        while True:
            told = await self._store.get(LAST_ENDS + name)
            if told is not None:
                return str(cast("list[object]", self._decode(told.value))[0])
            if promise is None:
                return ""
            name = str(cast("list[object]", self._decode(promise.value))[0])
            promise = await self._store.get(SUPERVISED + name)

    async def give(self, name: str, supervisor: str, epoch: int | None, *, lasting: bool, added: ChildSpec | None = None) -> None:
        """The supervisor will start `name` again. `epoch`: of the supervisor's own name, None if it has none: one that has lost its name
        gives no promises. `lasting`: somebody will restart the supervisor. `added`: the spec of a child that its constructor does not know.
        """
        lease = 0 if lasting else self._lease
        then: list[Operation] = []
        if added is None or added.restart != "temporary":
            then.append(Put(SUPERVISED + name, self._encode([supervisor, lasting]), lease))
        if added is not None:
            then.append(Put(_child(supervisor, added.id), self._encode(added.to_keep()), lease))
        await self._write(supervisor, epoch, then)

    async def begin(self, supervisor: str, epoch: int | None, names: Sequence[str]) -> None:
        """A supervisor that somebody will restart begins, with children of these names. What earlier incarnations promised besides ends."""
        key = STATIC + supervisor
        found = await self._write(supervisor, epoch, [Get(key), Put(key, self._encode(list(names)))])
        before = cast("list[str]", self._decode(found[0].value)) if found and isinstance(found[0], Entry) else []
        await self.withdraw(supervisor, epoch, sorted(set(before) - set(names)))

    async def withdraw(
        self, supervisor: str, epoch: int | None, names: Sequence[str], *, forget: Sequence[str] = (), last: bool = False
    ) -> None:
        """Nobody will start these names any more: those who wait for them, or for what is below them, learn so.

        `forget`: the ids of children that were added, too. `last`: the supervisor ends, and nobody will restart it.
        """
        deletes: list[Operation] = [Delete(_child(supervisor, id)) for id in forget]
        if last:
            deletes.append(Delete(STATIC + supervisor))
        for start in range(0, len(deletes), MAX_OPERATIONS):
            await self._write(supervisor, epoch, deletes[start : start + MAX_OPERATIONS])
        most = MAX_OPERATIONS // 2
        for start in range(0, len(names), most):
            part = names[start : start + most]
            then: list[Operation] = [Delete(SUPERVISED + name) for name in part]
            found = await self._write(supervisor, epoch, [*then, *(Get(STATIC + name) for name in part)])
            for name, entry in zip(part, found[len(part) :], strict=False):
                if entry is not None:
                    await self.withdraw_below(name)

    async def withdraw_below(self, supervisor: str) -> None:
        """Nobody will start this supervisor any more: nor its children, nor theirs. Those who are there again meanwhile keep theirs."""
        left = deque([supervisor])
        while left:
            name = left.popleft()
            gone = [Compare(NAMES + name, "create_revision", 0), Compare(SUPERVISED + name, "create_revision", 0)]
            static = await self._store.get(STATIC + name)
            names = cast("list[str]", self._decode(static.value)) if static is not None else []
            added = (await self._store.range(_child(name, ""))).entries
            specs = [cast("ChildSpec", self._decode(entry.value)) for entry in added]
            names += [spec.options.name or f"{name}/{spec.id}" for spec in specs]
            below: list[str] = []
            for start in range(0, len(names), MAX_OPERATIONS // 2):
                part = names[start : start + MAX_OPERATIONS // 2]
                operations: list[Operation] = [Delete(SUPERVISED + each) for each in part]
                result = await self._store.transaction(gone, [*operations, *(Get(STATIC + each) for each in part)])
                if not result.succeeded:
                    return
                below += [each for each, entry in zip(part, result.responses[len(part) :], strict=True) if entry is not None]
            # What tells of them goes last: an attempt that was cut short is made good by the next incarnation.
            records = [*(entry.key for entry in added), STATIC + name]
            for start in range(0, len(records), MAX_OPERATIONS):
                await self._store.transaction(gone, [Delete(key) for key in records[start : start + MAX_OPERATIONS]])
            left.extend(below)

    async def added(self, supervisor: str) -> list[ChildSpec]:
        """The children that earlier incarnations of this supervisor were given while they ran, and have not dropped."""
        found = await self._store.range(_child(supervisor, ""))
        return [cast("ChildSpec", self._decode(entry.value)) for entry in found.entries]

    async def supervised(self, name: str) -> bool:
        """True if somebody has `name`, or will."""
        result = await self._store.transaction([], [Get(NAMES + name), Get(SUPERVISED + name)])
        entry, promise = result.responses
        return entry is not None or (isinstance(promise, Entry) and await self.stands(name, promise))

    async def stands(self, name: str, promise: Entry) -> bool:
        """True if whoever promised `name` is there, or will be."""
        while True:
            supervisor, lasting = cast("tuple[str, bool]", self._decode(promise.value))
            if supervisor == CLUSTER:
                return bool((await self._store.range(candidate(name, ""))).entries)
            if not lasting:
                return True
            result = await self._store.transaction([], [Get(NAMES + supervisor), Get(SUPERVISED + supervisor)])
            owner, next_promise = result.responses
            if owner is not None:
                return True
            if not isinstance(next_promise, Entry):
                return False
            name, promise = supervisor, next_promise

    async def stand_for(self, name: str, node: str) -> None:
        """This node is a candidate for the singleton `name` from now on, as long as it lives."""
        put = Put(candidate(name, node), b"", self._lease)
        await self._store.transaction([], [put, Put(SUPERVISED + name, self._encode([CLUSTER, True]))])

    async def stand_down(self, name: str, node: str, *, for_good: bool) -> None:
        """This node is no candidate any more. Nobody is to wait for the singleton if it was the last, or if that has ended `for_good`."""
        await self._store.delete(candidate(name, node))
        if for_good or not (await self._store.range(candidate(name, ""))).entries:
            # Unless somebody has begun it anew: then others stand for it.
            await self._store.transaction([Compare(NAMES + name, "create_revision", 0)], [Delete(SUPERVISED + name)])
            await self.withdraw_below(name)

    async def _write(self, supervisor: str, epoch: int | None, then: Sequence[Operation]) -> Sequence[Response]:
        ours = [] if epoch is None else [Compare(NAMES + supervisor, "mod_revision", epoch)]
        result = await self._store.transaction(ours, then)
        if not result.succeeded:
            logger.info("%s (epoch %s) has lost its name: what it promises about its children does not count", supervisor, epoch)
            return ()
        return result.responses


def candidate(name: str, node: str) -> str:
    """The key of a candidate for a singleton."""
    return f"{CANDIDATES}{name}\0{node}"


def _child(supervisor: str, id: str) -> str:
    return f"{CHILDREN}{supervisor}\0{id}"
