"""Promises: names that will be had again, because a supervisor restarts those who have them.

While nobody has a promised name, calls to it wait instead of failing. A promise is as good as whoever gave it: one by a supervisor that is
itself supervised outlives its node, for the next incarnation of that supervisor keeps it, and it stands as long as somebody will start that
one; one by a supervisor that nobody restarts ends with its node's lease. The children that were added while their supervisor ran are
recorded beside the promises, so that its next incarnation knows of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import cast

from actors.children import ChildSpec
from runtime.store.interface import Compare, Delete, Entry, Get, Operation, Put, Store

NAMES = "names/"
SUPERVISED = "supervised/"
CHILDREN = "children/"
CANDIDATES = "candidates/"

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

    async def give(self, name: str, supervisor: str, epoch: int | None, *, lasting: bool, added: ChildSpec | None = None) -> None:
        """The supervisor will start `name` again. `epoch`: of the supervisor's own name, None if it has none: one that has lost its name
        gives no promises. `lasting`: somebody will restart the supervisor. `added`: the spec of a child that its constructor does not know.
        """
        lease = 0 if lasting else self._lease
        then: list[Operation] = []
        if added is None or added.restart != "temporary":
            then.append(Put(SUPERVISED + name, self._encode([supervisor, lasting]), lease))
        if added is not None:
            then.append(Put(_child(supervisor, added.id), self._encode(added), lease))
        await self._write(supervisor, epoch, then)

    async def withdraw(self, name: str, supervisor: str, epoch: int | None, *, forget: str | None = None) -> None:
        """Nobody will start `name` any more: those who wait for it learn so. `forget`: the id of a child that was added, too."""
        then: list[Operation] = [Delete(SUPERVISED + name)]
        if forget is not None:
            then.append(Delete(_child(supervisor, forget)))
        await self._write(supervisor, epoch, then)

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

    async def stand_down(self, name: str, node: str) -> None:
        """This node is no candidate any more; the singleton is nobody's to wait for if it was the last."""
        await self._store.delete(candidate(name, node))
        if not (await self._store.range(candidate(name, ""))).entries:
            await self._store.delete(SUPERVISED + name)

    async def _write(self, supervisor: str, epoch: int | None, then: list[Operation]) -> None:
        ours = [] if epoch is None else [Compare(NAMES + supervisor, "mod_revision", epoch)]
        result = await self._store.transaction(ours, then)
        if not result.succeeded:
            logger.info("%s (epoch %s) has lost its name: what it promises about its children does not count", supervisor, epoch)


def candidate(name: str, node: str) -> str:
    """The key of a candidate for a singleton."""
    return f"{CANDIDATES}{name}\0{node}"


def _child(supervisor: str, id: str) -> str:
    return f"{CHILDREN}{supervisor}\0{id}"
