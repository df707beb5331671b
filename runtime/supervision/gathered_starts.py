"""Gathered starts: actors that many tasks start on another node at the same time travel in one
message.

A call of a node's service costs both sides many times what the start of a small actor does. So
while a start is under way to a node, further ones wait until all tasks that are ready to run have
had their turn, and go together. One start after the other is never held up.

Only actors whose start waits for nothing and runs nothing of the user's are gathered: none of them
can hold up the answer of the others.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial

import attrs
import trio

from actors.actor import Actor, Member
from actors.errors import CallError, OutcomeUnknownError
from actors.method import Address
from actors.options import SpawnOptions
from runtime.identifiers import NodeId

Outcome = Address | Exception

logger = logging.getLogger("understudy.supervision")


@attrs.define(eq=False)
class AwaitedStart:
    """A start that a task waits for. `task`: None once that was cancelled."""

    task: trio.lowlevel.Task | None
    outcome: Outcome | None = None


@attrs.frozen(eq=False)
class StartBatch:
    """Starts of actors of one class, with equal options, that go to one node together."""

    member: Member
    cls: type[Actor]
    options: SpawnOptions
    starts: list[AwaitedStart] = attrs.field(factory=list)


class StartGatherer:
    """Gathers the starts of one node.

    `ask(member, cls, options, count)` starts so many actors there and returns the outcome of each.
    `undo(address)` stops one whose task was cancelled. `most`: starts in one message. Messages are
    sent by tasks in `nursery`.
    """

    def __init__(
        self,
        ask: Callable[[Member, type[Actor], SpawnOptions, int], Awaitable[list[Outcome]]],
        undo: Callable[[Address], Awaitable[None]],
        nursery: trio.Nursery,
        most: int,
    ) -> None:
        self._ask = ask
        self._undo = undo
        self._nursery = nursery
        self._most = most
        # The tasks that send belong to no caller: they have nothing of its context.
        self._context = copy_context()
        self._under_way: Counter[NodeId] = Counter()
        """Single starts and batches that are not answered yet."""
        self._open: dict[NodeId, list[StartBatch]] = {}
        """Batches that are about to be sent, and still take starts."""

    async def start(
        self,
        member: Member,
        cls: type[Actor],
        options: SpawnOptions,
        alone: Callable[[], Awaitable[Address]],
    ) -> Address:
        """Start an actor of this class on that node: by `alone()` if no other start is
        under way there, else together with others. Raises what `alone` raises.
        """
        node = NodeId(member.name, member.incarnation)
        if not self._under_way[node] and node not in self._open:
            self._under_way[node] += 1
            try:
                return await alone()
            finally:
                self._on_answered(node)
        start = AwaitedStart(trio.lowlevel.current_task())
        self._join(node, StartBatch(member, cls, options, [start]))

        def give_up(raise_cancel: Callable[[], object]) -> trio.lowlevel.Abort:
            start.task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)
        outcome = start.outcome
        if isinstance(outcome, Address):
            return outcome
        assert outcome is not None
        # Each task raises an error of its own: each adds frames to its traceback.
        raise copy.copy(outcome)

    def check_invariants(self) -> None:
        """Assert what must hold between any two steps: for tests and simulations."""
        assert all(count > 0 for count in self._under_way.values())
        for batches in self._open.values():
            assert batches, "a node without an open batch is not listed"
            assert all(0 < len(batch.starts) < self._most for batch in batches)

    def _join(self, node: NodeId, joining: StartBatch) -> None:
        batches = self._open.setdefault(node, [])
        for batch in batches:
            if batch.cls is joining.cls and (
                batch.options is joining.options or batch.options == joining.options
            ):
                batch.starts.extend(joining.starts)
                if len(batch.starts) >= self._most:
                    self._close(node, batch)
                return
        batches.append(joining)
        # It begins in the next pass of the scheduler: all tasks that run in this one can join.
        send = partial(self._send, node, joining)
        self._context.run(partial(self._nursery.start_soon, send, name="gathered starts"))

    def _close(self, node: NodeId, batch: StartBatch) -> None:
        """Take no more starts into the batch. Closing it twice is closing it once."""
        batches = self._open.get(node, [])
        if batch in batches:
            batches.remove(batch)
            if not batches:
                del self._open[node]

    def _on_answered(self, node: NodeId) -> None:
        self._under_way[node] -= 1
        if not self._under_way[node]:
            del self._under_way[node]

    async def _send(self, node: NodeId, batch: StartBatch) -> None:
        self._close(node, batch)
        starts = [start for start in batch.starts if start.task is not None]
        if not starts:
            return
        # What a task is told that waits when this one is cancelled, because the node closes.
        text = f"{batch.cls.__name__} was not started, as far as is known: this node closed"
        outcomes: list[Outcome] = [OutcomeUnknownError(text, node=node.name)] * len(starts)
        self._under_way[node] += 1
        try:
            outcomes = await self._ask(batch.member, batch.cls, batch.options, len(starts))
        except Exception as error:
            outcomes = [error] * len(starts)
        finally:
            self._on_answered(node)
            unwanted = _settle(starts, outcomes)
        for address in unwanted:
            try:
                await self._undo(address)
            except CallError as error:
                # Its node is gone, and the actor with it; or this node is about to close.
                logger.info("%s could not be stopped: %s", address.name, error)


def _settle(starts: list[AwaitedStart], outcomes: list[Outcome]) -> list[Address]:
    """Wake the tasks; returns the actors whose tasks were cancelled meanwhile."""
    unwanted: list[Address] = []
    for start, outcome in zip(starts, outcomes, strict=True):
        if start.task is not None:
            start.outcome = outcome
            trio.lowlevel.reschedule(start.task)
            start.task = None
        elif isinstance(outcome, Address):
            unwanted.append(outcome)
    return unwanted
