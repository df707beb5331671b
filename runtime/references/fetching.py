"""The values of other nodes: fetched, waited for, and worked with through their owners."""

from __future__ import annotations

import logging
import math
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import trio

from actors.errors import (
    ActorNotFoundError,
    ConnectionLostError,
    NodeDiedError,
    NodeUnreachableError,
    NotTheOwnerError,
    ReferenceReleasedError,
)
from actors.reference import Reference
from runtime.environment import Environment
from runtime.exception_groups import first
from runtime.lifetime import Lifetime
from runtime.references.anchors import Anchor
from runtime.references.claims import Identity, ReferenceId
from runtime.references.memory.ends import Ends
from runtime.references.memory.lent import MemoryOfOthers, NotLendableError
from runtime.references.memory.place import Place
from runtime.references.memory.values import Segment
from runtime.references.values import UNKNOWN, Failure, Lent, Parcel

if TYPE_CHECKING:
    from runtime.references.owned import OwnValues
    from runtime.references.packing import Packing
    from runtime.references.table import ReferenceTable

CACHE_BYTES = 256 * 1024 * 1024
"""How much of what was fetched is kept, by default."""

CACHE_SECONDS = 5.0
"""How long it is kept when nothing here refers to it any more."""

UNKNOWN_SECONDS = 5.0
"""How long an owner is asked again that does not know a value which it has confirmed to this node, before that is believed."""

AGAIN_SECONDS = 0.02

PASSING = (ActorNotFoundError, ConnectionLostError, NodeDiedError, NodeUnreachableError)
"""What is raised when an owner has ended, or cannot be reached at the moment: the first is soon known here, the other passes."""


logger = logging.getLogger("understudy.references")


class Fetching:
    """See the module. `service(node, incarnation)` gives a handle of that node's `ReferenceService`."""

    def __init__(
        self,
        service: Callable[[str, int], Any],
        environment: Environment,
        lifetime: Lifetime,
        *,
        shared: bool,
        cache_limit: int = CACHE_BYTES,
    ) -> None:
        self.lifetime = lifetime
        self._service = service
        self._now = environment.now
        self._process = environment.process()
        self._shared = shared and bool(self._process.host)
        self._others = MemoryOfOthers()
        self._guards: Ends[Anchor] = Ends()
        self._processes: dict[Identity, int] = {}
        self._unreadable: set[Identity] = set()
        """Owners whose memory cannot be read from here."""
        self._cache_limit = cache_limit
        self._cached: OrderedDict[ReferenceId, Parcel] = OrderedDict()
        self._left: deque[tuple[float, ReferenceId]] = deque()
        self.cached_bytes = 0
        self._changed: trio.Event | None = None
        self._table: ReferenceTable
        self._values: OwnValues
        self._packing: Packing

    def use(self, table: ReferenceTable, values: OwnValues, packing: Packing) -> None:
        """What is made after this."""
        self._table = table
        self._values = values
        self._packing = packing

    async def fetch(self, anchor: Anchor) -> object:
        """See `Reference.fetch`."""
        self.lifetime.check()
        await trio.lowlevel.checkpoint()
        while True:
            parcel = self._cached.get(anchor.identity)
            if parcel is not None:
                self._cached.move_to_end(anchor.identity)
                return self._packing.unpack(parcel)
            self._raise_failure(anchor)
            if self._is_here(anchor):
                return await self._values.value(anchor)
            if anchor.lent is not None:
                read = self._read_in_place(anchor, anchor.lent)
                if read is not None:
                    return self._packing.unpack(read)
            if anchor.moving is None:
                anchor.moving = trio.Lock()
            async with anchor.moving:
                if anchor.identity not in self._cached and anchor.failure is None and not self._is_here(anchor):
                    parcel = await self._bring(anchor)
                    if parcel is not None:
                        return self._packing.unpack(parcel)

    def local_value(self, anchor: Anchor) -> object:
        """See `Reference.local_value`."""
        self.lifetime.check()
        if not self._is_here(anchor):
            raise NotTheOwnerError(
                f"{Reference(anchor)!r} has its value on node {anchor.owner}, and this is node {self._table.identity[0]}; "
                "`await reference.fetch()` brings it here"
            )
        return self._values.value_now(anchor)

    async def call(self, anchor: Anchor, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """See `RemoteMethod.__call__`."""
        answer: Any = None
        while not isinstance(answer, list):
            answer = await self._answer(
                anchor, lambda home: self._service(*home).call_value(list(anchor.identity), name, list(args), kwargs)
            )
        return cast("list[object]", answer)[0]

    async def call_and_keep(self, anchor: Anchor, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Reference[object]:
        """See `RemoteMethod.remote`."""
        service = self._service(*anchor.home)
        return cast("Reference[object]", await service.call_and_keep.remote(list(anchor.identity), name, list(args), kwargs))

    async def wait_some(self, anchors: Sequence[Anchor], count: int, timeout: float | None) -> frozenset[int]:
        """See `actors.reference.Anchor.wait_some`. A `count` of 0 asks those who know, and waits for nothing else."""
        self.lifetime.check()
        await trio.lowlevel.checkpoint()
        try:
            with trio.move_on_after(math.inf if timeout is None else timeout):
                await self._wait_some(anchors, count)
        except BaseExceptionGroup as group:
            # That several nodes were asked side by side is no business of those who wait.
            raise first(group) from None
        return _done(anchors)

    async def _wait_some(self, anchors: Sequence[Anchor], count: int) -> None:
        async with trio.open_nursery() as nursery:
            watched: dict[Identity, list[Anchor]] = {}
            for anchor in anchors:
                if not anchor.is_settled and not anchor.is_done and not self._is_told(anchor):
                    watched.setdefault(anchor.home, []).append(anchor)
            if count:
                for home, those in watched.items():
                    nursery.start_soon(self._watch, home, those)
                while len(_done(anchors)) < count:
                    await self.wait_changed()
                nursery.cancel_scope.cancel()
            else:
                for home, those in watched.items():
                    nursery.start_soon(self._look, home, those)

    def tell(self) -> None:
        """Something has changed for an anchor."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def wait_changed(self) -> None:
        """Wait until something does."""
        if self._changed is None:
            self._changed = trio.Event()
        await self._changed.wait()
        self.lifetime.check()

    def freed(self, identity: ReferenceId) -> None:
        """Nothing refers to the value here any more. What was fetched of it is kept a little longer: the next message may name it again."""
        parcel = self._cached.get(identity)
        if parcel is None:
            return
        if parcel.references:
            self._forget(identity)
        else:
            self._left.append((self._now() + CACHE_SECONDS, identity))

    def tidy(self) -> None:
        """Forget what was fetched and nobody has named since, and what was read in place and is not any more."""
        self._guards.gone()
        while self._left and self._left[0][0] <= self._now():
            _, identity = self._left.popleft()
            if self._table.find(identity) is None:
                self._forget(identity)

    @property
    def keeps_unnamed(self) -> bool:
        """True if `tidy` will have something to do."""
        return bool(self._left)

    def ended(self, owner: Identity) -> None:
        """That incarnation is no more: keep nothing mapped of its memory."""
        self._unreadable.discard(owner)
        process = self._processes.pop(owner, None)
        if process is not None:
            self._others.forget(process)

    def close(self) -> None:
        """Nothing is read in place any more but what is at the moment."""
        self._others.close()

    def _forget(self, identity: ReferenceId) -> None:
        parcel = self._cached.pop(identity, None)
        if parcel is not None:
            self.cached_bytes -= parcel.size

    def _is_here(self, anchor: Anchor) -> bool:
        return anchor.home == self._table.identity

    def _is_told(self, anchor: Anchor) -> bool:
        """True if this node hears of the outcome without asking."""
        return self._is_here(anchor) or self._table.state(anchor) == "making"

    def _raise_failure(self, anchor: Anchor) -> None:
        if anchor.failure is not None:
            raise self._values.rebuild(anchor.failure)
        if anchor.error is not None:
            raise type(anchor.error)(*anchor.error.args)

    async def _bring(self, anchor: Anchor) -> Parcel | None:
        """Fetch the value, and keep it if there is room; None if it is to be looked for anew."""
        answer = await self._answer(anchor, lambda home: self._service(*home).fetch(list(anchor.identity), self._reader(home)))
        if isinstance(answer, Lent):
            anchor.lent = answer
            anchor.is_done = True
            return self._read_in_place(anchor, answer)
        if not isinstance(answer, Parcel):
            return None
        parcel = self._packing.received(answer)
        if parcel.size <= self._cache_limit:
            self._forget(anchor.identity)
            self._cached[anchor.identity] = parcel
            self.cached_bytes += parcel.size
            anchor.is_done = True
            while self.cached_bytes > self._cache_limit:
                self._forget(next(iter(self._cached)))
        return parcel

    def _reader(self, home: Identity) -> list[object] | None:
        """What an owner is told so that it need not send what can be read where it lies."""
        if not self._shared or home in self._unreadable:
            return None
        process = self._process
        return [*self._table.identity, process.host, process.pid, process.started]

    def _read_in_place(self, anchor: Anchor, lent: Lent) -> Parcel | None:
        """The value of a process of this host; None if its memory cannot be read: then it has to be sent.

        Whatever is made of it keeps the anchor: its owner uses the memory for something else when this node does not hold the value.
        """
        segments: list[Segment] = []
        try:
            for one in lent.segments:
                if isinstance(one, Place):
                    self._processes[anchor.home] = one.process
                    segments.append(Segment(self._others.lend(one, self._guards.token(anchor))))
                else:
                    segments.append(Segment(one))
        except NotLendableError as error:
            logger.info("values of node %s are not read in place: %s", anchor.owner, error)
            self._unreadable.add(anchor.home)
            anchor.lent = None
            return None
        return Parcel(lent.control, tuple(segments))

    async def _answer(self, anchor: Anchor, ask: Callable[[Identity], Awaitable[object]]) -> object:
        """What the owner answers, wherever it is by now; None if there is nothing yet. Raises what the producing call did."""
        since: float | None = None
        while True:
            self._raise_failure(anchor)
            if self._table.state(anchor) == "making":
                # The owner may not have heard of it, and tells when it is there.
                await anchor.wait_changed()
                continue
            home = anchor.home
            try:
                answer = await ask(home)
            except PASSING:
                # If the owner has ended, that is about to be known here; it may have handed the value on.
                await trio.sleep(AGAIN_SECONDS)
                continue
            if isinstance(answer, Failure):
                anchor.failure = answer
                anchor.tell()
            elif type(answer) is int and answer == UNKNOWN:
                since = await self._unknown(anchor, home, since)
            elif isinstance(answer, list) and len(cast("list[object]", answer)) == 2:
                self._table.moved(anchor.identity, (answer[0], answer[1]))
            elif type(answer) is int:
                return None
            else:
                return answer

    async def _unknown(self, anchor: Anchor, home: Identity, since: float | None) -> float | None:
        """The owner knows nothing of the value: it may not have heard of it yet. Returns since when it says so of what it confirmed."""
        state = self._table.state(anchor)
        if state in ("claiming", "asking"):
            await anchor.wait_changed()
            return None
        if state == "held" and anchor.home == home:
            now = self._now()
            if since is not None and now - since > UNKNOWN_SECONDS:
                raise ReferenceReleasedError(f"{Reference(anchor)!r} was freed by its owner")
            await trio.sleep(AGAIN_SECONDS)
            return since or now
        await trio.lowlevel.checkpoint()
        return None

    async def _watch(self, home: Identity, anchors: list[Anchor]) -> None:
        """Note which of these have outcomes at their owner, until all have."""
        waiting = list(anchors)
        while waiting := [anchor for anchor in waiting if anchor.home == home and not anchor.is_settled and not anchor.is_done]:
            await self._look(home, waiting, wait=True)
        elsewhere: dict[Identity, list[Anchor]] = {}
        for anchor in anchors:
            if anchor.home not in (home, self._table.identity) and not anchor.is_settled and not anchor.is_done:
                elsewhere.setdefault(anchor.home, []).append(anchor)
        async with trio.open_nursery() as nursery:
            for there, those in elsewhere.items():
                nursery.start_soon(self._watch, there, those)

    async def _look(self, home: Identity, anchors: list[Anchor], *, wait: bool = False) -> None:
        try:
            places = await self._service(*home).outcomes([list(anchor.identity) for anchor in anchors], wait)
        except PASSING:
            await trio.sleep(AGAIN_SECONDS)
            return
        for place in places:
            if 0 <= place < len(anchors):
                anchors[place].is_done = True
                anchors[place].tell()


def _done(anchors: Sequence[Anchor]) -> frozenset[int]:
    return frozenset(index for index, anchor in enumerate(anchors) if anchor.is_settled or anchor.is_done)
