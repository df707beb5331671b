"""Gathering: requests that many tasks make of one place at the same time travel in one message.

A call of a node's service costs both sides many times what a small request does. So while a request
is under way to a place, further ones wait until all tasks that are ready to run have had their
turn, and go together. While several messages are under way, they wait for the first answer: the
more requests there are, the more travel in each message. One request after the other is never held
up.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Generic, TypeVar

import attrs
import trio

from actors.errors import CallError, StoreError
from actors.own_logger import own_logger
from runtime.lifetime import AskingBlock, InterruptedByEndError

PlaceT = TypeVar("PlaceT", bound=Hashable)
KindT = TypeVar("KindT")
RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")

logger = own_logger("understudy.calls")

MESSAGES_AT_ONCE = 2
"""Messages that are under way to one place before further requests wait for an answer: the place
works on one while the other travels.
"""


@attrs.define(eq=False)
class AwaitedRequest(Generic[RequestT, AnswerT]):
    """A request that a task waits for. `task`: None once that was cancelled; then `undone` is set
    when nothing is left of the request.
    """

    request: RequestT
    task: trio.lowlevel.Task | None
    outcome: AnswerT | Exception | None = None
    sent: bool = False
    undone: trio.Event | None = None
    interrupted: bool = False
    """True once the task goes on without an outcome: its node has ended."""

    def cancel(self) -> None:
        """Let the task go on without an outcome. What is done for it is undone."""
        if self.task is not None:
            self.interrupted = True
            trio.lowlevel.reschedule(self.task)
            self.task = None

    def on_undone(self) -> None:
        """Nothing is left of the request of a task that was cancelled."""
        if self.undone is not None:
            self.undone.set()


@attrs.frozen(eq=False)
class RequestBatch(Generic[KindT, RequestT, AnswerT]):
    """Requests of one kind that go to one place together."""

    kind: KindT
    requests: list[AwaitedRequest[RequestT, AnswerT]] = attrs.field(factory=list)


class Gatherer(Generic[PlaceT, KindT, RequestT, AnswerT]):
    """Gathers requests to several places.

    `ask(kind, requests)` makes these requests in one message and returns the outcome of each, in
    their order. `undo(answers)` takes back what was done for tasks that were cancelled meanwhile;
    None if nothing needs to be. The cancelled tasks wait for it, at most `undo_seconds`, because
    what they do next must not find what is being taken back. `closed(kind)` makes the error of
    requests whose answer does not come because this node closes. `most`: requests in one message.
    Messages are sent by tasks in `nursery`.
    """

    def __init__(
        self,
        ask: Callable[[KindT, list[RequestT]], Awaitable[Sequence[AnswerT | Exception]]],
        undo: Callable[[Sequence[AnswerT]], Awaitable[None]] | None,
        closed: Callable[[KindT], Exception],
        nursery: trio.Nursery,
        most: int,
        undo_seconds: float = 0.0,
    ) -> None:
        self._undo_seconds = undo_seconds
        self._ask = ask
        self._undo = undo
        self._closed = closed
        self._nursery = nursery
        self._most = most
        # The tasks that send belong to no caller: they have nothing of its context.
        self._context = copy_context()
        self._under_way: Counter[PlaceT] = Counter()
        """Single requests and batches that are not answered yet."""
        self._open: dict[PlaceT, list[RequestBatch[KindT, RequestT, AnswerT]]] = {}
        """Batches that still take requests."""
        self._due: Counter[PlaceT] = Counter()
        """Tasks that are about to run and then send the first open batch, if there is one."""

    @trio.lowlevel.enable_ki_protection
    async def request(
        self,
        place: PlaceT,
        kind: KindT,
        request: RequestT,
        alone: Callable[[], Awaitable[AnswerT]],
        asking: AskingBlock | None = None,
    ) -> AnswerT:
        """Make a request: by `alone()` if no other one is under way to `place`, else together
        with others of an equal `kind`. Raises what `alone` raises. `asking`: the block that this
        is in, if that does not wait yet.
        """
        if not self._under_way[place] and place not in self._open:
            if asking is not None:
                asking.wait()
            self._under_way[place] += 1
            try:
                return await alone()
            finally:
                self._on_answered(place)
        # Without subscripts, which would cost as much as the request's way to its batch.
        awaited: AwaitedRequest[RequestT, AnswerT] = AwaitedRequest(
            request, trio.lowlevel.current_task()
        )
        self._join(place, kind, awaited)

        def give_up(raise_cancel: Callable[[], object]) -> trio.lowlevel.Abort:
            awaited.task = None
            if self._undo is not None and awaited.sent:
                awaited.undone = trio.Event()
            return trio.lowlevel.Abort.SUCCEEDED

        try:
            if asking is not None:
                asking.park(awaited)
            await trio.lowlevel.wait_task_rescheduled(give_up)
        except trio.Cancelled:
            # It was sent: what this task does next must not find what is being undone. Bounded,
            # since the place that undoes it may not answer.
            if awaited.undone is not None:
                with trio.CancelScope(shield=True), trio.move_on_after(self._undo_seconds):
                    await awaited.undone.wait()
            raise
        finally:
            # Ctrl-C may come before the task is parked: then nothing must wake it.
            awaited.task = None
            if asking is not None:
                asking.unpark(awaited)
        if awaited.interrupted:
            raise InterruptedByEndError
        outcome = awaited.outcome
        assert outcome is not None
        if isinstance(outcome, Exception):
            # Each task raises an error of its own: each adds frames to its traceback.
            raise copy.copy(outcome)
        return outcome

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps: for tests and simulations."""
        assert all(count > 0 for count in self._under_way.values())
        assert all(count > 0 for count in self._due.values())
        for place, batches in self._open.items():
            assert batches, "a place without an open batch is not listed"
            assert all(0 < len(batch.requests) < self._most for batch in batches)
            assert self._due[place] or self._under_way[place], "an open batch is sent in time"

    def _join(self, place: PlaceT, kind: KindT, awaited: AwaitedRequest[RequestT, AnswerT]) -> None:
        batches = self._open.setdefault(place, [])
        for batch in batches:
            if batch.kind is kind or batch.kind == kind:
                break
        else:
            batch = RequestBatch(kind)
            batches.append(batch)
        batch.requests.append(awaited)
        if len(batch.requests) >= self._most:
            self._close(place, batch)
            self._start(self._send, place, batch)
        else:
            self._send_soon(place)

    def _send_soon(self, place: PlaceT) -> None:
        """Have open batches sent, as many as may be under way. They are closed in the next pass of
        the scheduler: all tasks that run in this one can join.
        """
        while (
            self._due[place] < len(self._open.get(place, ()))
            and self._due[place] + self._under_way[place] < MESSAGES_AT_ONCE
        ):
            self._due[place] += 1
            self._start(self._send_first, place)

    def _start(self, send: Callable[..., Awaitable[object]], *args: object) -> None:
        self._context.run(partial(self._nursery.start_soon, send, *args, name="gathered requests"))

    def _close(self, place: PlaceT, batch: RequestBatch[KindT, RequestT, AnswerT]) -> None:
        """Take no more requests into the batch."""
        batches = self._open[place]
        batches.remove(batch)
        if not batches:
            del self._open[place]

    def _on_answered(self, place: PlaceT) -> None:
        self._under_way[place] -= 1
        self._send_soon(place)
        if not self._under_way[place]:
            del self._under_way[place]

    async def _send_first(self, place: PlaceT) -> None:
        self._due[place] -= 1
        if not self._due[place]:
            del self._due[place]
        # A batch that has become full meanwhile was sent at once.
        if place in self._open:
            batch = self._open[place][0]
            self._close(place, batch)
            await self._send(place, batch)

    async def _send(self, place: PlaceT, batch: RequestBatch[KindT, RequestT, AnswerT]) -> None:
        awaited = [one for one in batch.requests if one.task is not None]
        for one in awaited:
            one.sent = True
        self._under_way[place] += 1
        # The outcome of the tasks that wait if this one is cancelled, because the node closes.
        outcomes: Sequence[AnswerT | Exception] = [self._closed(batch.kind)] * len(awaited)
        try:
            if awaited:
                outcomes = await self._ask(batch.kind, [one.request for one in awaited])
        except Exception as error:
            outcomes = [error] * len(awaited)
        finally:
            self._on_answered(place)
            unwanted = _settle(awaited, outcomes)
        if self._undo is not None and unwanted:
            try:
                await self._undo([answer for _, answer in unwanted])
            except (CallError, StoreError) as error:
                # The place is gone, and what was done there with it; or this node is about to
                # close.
                logger.info("what was done for cancelled tasks could not be undone: %s", error)
            finally:
                for one, _ in unwanted:
                    one.on_undone()


def _settle(
    awaited: list[AwaitedRequest[RequestT, AnswerT]], outcomes: Sequence[AnswerT | Exception]
) -> list[tuple[AwaitedRequest[RequestT, AnswerT], AnswerT]]:
    """Wake the tasks; returns what was done for tasks that were cancelled meanwhile."""
    unwanted: list[tuple[AwaitedRequest[RequestT, AnswerT], AnswerT]] = []
    for one, outcome in zip(awaited, outcomes, strict=True):
        if one.task is not None:
            one.outcome = outcome
            trio.lowlevel.reschedule(one.task)
            one.task = None
        elif isinstance(outcome, Exception):
            one.on_undone()
        else:
            unwanted.append((one, outcome))
    return unwanted
