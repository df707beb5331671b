"""Starts that one request asks for and that may take their time: the answer waits for those that
soon end, and each of the others is asked for once more.

A constructor of a few lines costs a hundredth of a request of its own, so starts of many tasks
travel together. Another one may block for a minute, and must not hold up the rest. So the answer
comes when all have ended; or when none has ended for some milliseconds, which is what those cost
that block; or when those that have ended have waited long enough. Who waits for one that goes on
asks for its end in a request of its own, which can be cancelled alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import trio

from actors.identifiers import NodeId
from actors.method import Address

RUNNERS = 32
"""Starts of one batch that run side by side, until it is answered."""

NONE_SECONDS = 0.05
"""A batch in which none has ended is answered after this time. No start is held up until then."""

QUIET_SECONDS = 0.005
"""A batch of which some have ended is answered when no further one ends for so long. A thread may
wait as long for its turn with the interpreter, beside a busy event loop.
"""

LONGEST_SECONDS = 0.05
"""A batch is answered this long after the first have ended, also while others end."""

UNASKED_SECONDS = 60.0
"""A start that no caller has asked for so long after the answer is taken back: its caller has
ended, or has lost the answer.
"""

TURN_SECONDS = 0.002
"""Seconds after which a series of starts lets other tasks run."""

StartOne = Callable[[int], Awaitable[Address]]
"""Starts the actor with this number in its batch. Raises why it does not start."""


class UnfinishedStart:
    """A start that went on when its batch was answered, or was put off. `scope` is around it, and
    nothing else.
    """

    __slots__ = ("ended", "outcome", "scope")

    def __init__(self, scope: trio.CancelScope) -> None:
        self.scope = scope
        self.ended = trio.Event()
        self.outcome: Address | Exception | None = None
        """None until it has ended, and after a cancellation."""

    async def cancel(self) -> Address | None:
        """Cancel it, and wait for its end. Returns the actor if it has started in spite of that."""
        self.scope.cancel()
        await self.ended.wait()
        return self.outcome if isinstance(self.outcome, Address) else None


class StartBatch:
    """Starts that one request asks for, `count` of them, run by tasks in `nursery`: they go on
    after its answer. `start` is called once for each.
    """

    def __init__(self, nursery: trio.Nursery, count: int, start: StartOne) -> None:
        self._nursery = nursery
        self._start = start
        self._numbers = iter(range(count))
        self._left = count
        self._all_ended = trio.Event()
        self._answered = False
        self._running: dict[int, trio.CancelScope] = {}
        self.outcomes: list[Address | Exception | None] = [None] * count
        """Of each start that has ended before the answer; None as well for one that has ended with
        the node.
        """
        self.unfinished: dict[int, UnfinishedStart] = {}
        """By number, those that had not ended before the answer."""

    async def run(self) -> None:
        """Run the starts until the batch is to be answered. When this is cancelled, so are they;
        those in `outcomes` have started nevertheless.
        """
        for _ in range(min(RUNNERS, self._left)):
            self._nursery.start_soon(self._run, self._numbers)
        try:
            await self._wait()
        except trio.Cancelled:
            for _ in self._numbers:
                continue
            self._answer()
            for start in self.unfinished.values():
                start.scope.cancel()
            # As for a single start: that of an actor which does not heed a cancellation is waited
            # for, because it has to be taken back.
            with trio.CancelScope(shield=True):
                for number, start in self.unfinished.items():
                    await start.ended.wait()
                    self.outcomes[number] = start.outcome
            raise
        self._answer()

    def put_off(self, number: int, error: Exception) -> None:
        """Leave a start that has failed to be asked for alone: its error has no room in the answer
        of the batch.
        """
        start = self.unfinished[number] = UnfinishedStart(trio.CancelScope())
        start.outcome = error
        start.ended.set()

    async def _wait(self) -> None:
        """Wait until all have ended, or for the limits above."""
        all_of_them = self._left
        ends_at = trio.current_time() + NONE_SECONDS
        while self._left:
            left, now = self._left, trio.current_time()
            if now >= ends_at:
                return
            with trio.move_on_after(min(QUIET_SECONDS, ends_at - now)):
                await self._all_ended.wait()
            if left == all_of_them and self._left < left:
                # The first have ended, and wait for the others from now on.
                ends_at = trio.current_time() + LONGEST_SECONDS
            elif left < all_of_them and self._left == left:
                return

    def _answer(self) -> None:
        """From now on each start runs in a task of its own, and none waits for another one."""
        # No await in here: a start ends before the answer or after it.
        self._answered = True
        for number, scope in self._running.items():
            self.unfinished[number] = UnfinishedStart(scope)
        for number in self._numbers:
            scope = trio.CancelScope()
            self.unfinished[number] = UnfinishedStart(scope)
            self._nursery.start_soon(self._run, iter((number,)), scope)

    async def _run(self, numbers: Iterator[int], scope: trio.CancelScope | None = None) -> None:
        # One scope for the starts of a task: once the batch is answered, it is that of a single
        # start.
        with trio.CancelScope() if scope is None else scope as around:
            turn = trio.current_time()
            for number in numbers:
                self._running[number] = around
                outcome: Address | Exception | None = None
                try:
                    outcome = await self._start(number)
                except Exception as error:
                    outcome = error
                finally:
                    del self._running[number]
                    self._on_ended(number, outcome)
                if self._answered:
                    return
                # Starts may complete without waiting. Give other tasks their turns.
                if trio.current_time() - turn > TURN_SECONDS:
                    await trio.lowlevel.checkpoint()
                    turn = trio.current_time()

    def _on_ended(self, number: int, outcome: Address | Exception | None) -> None:
        unfinished = self.unfinished.get(number)
        if unfinished is not None:
            unfinished.outcome = outcome
            unfinished.ended.set()
            return
        self.outcomes[number] = outcome
        self._left -= 1
        if not self._left:
            self._all_ended.set()


class UnfinishedStarts:
    """The starts of answered batches that no caller has asked for yet, by the ticket of their
    batch and their number. `take_back` stops an actor that no caller has a handle of.
    `nursery`: for the starts, and for tasks that look whether they are asked for.
    """

    def __init__(
        self, nursery: trio.Nursery, take_back: Callable[[Address], Awaitable[None]]
    ) -> None:
        self.nursery = nursery
        self._take_back = take_back
        self._by_key: dict[tuple[str, int], UnfinishedStart] = {}
        self._callers: dict[str, NodeId] = {}
        """By the tickets of the latest batches, the nodes that are to ask for their starts."""

    def add(self, ticket: str, batch: StartBatch, caller: NodeId | None) -> list[int]:
        """Keep the unfinished starts of a batch until they are asked for, for a time, and while
        `caller` lives, None for this node. Returns their numbers.
        """
        numbers = list(batch.unfinished)
        if numbers:
            for number, start in batch.unfinished.items():
                self._by_key[ticket, number] = start
            if caller is not None:
                self._callers[ticket] = caller
            self.nursery.start_soon(self._look_after, ticket, numbers)
        return numbers

    def numbers(self, ticket: str) -> list[int]:
        """Return those of a batch that were not asked for. Looks at all: for the few batches whose
        answers were lost.
        """
        return [number for of, number in self._by_key if of == ticket]

    def pop(self, ticket: str, number: int) -> UnfinishedStart | None:
        """Return a start that the caller looks after from now on; None if there is none that was
        not asked for.
        """
        return self._by_key.pop((ticket, number), None)

    async def take_back(self, ticket: str, number: int) -> bool:
        """Cancel a start that was not asked for, and stop its actor if it has started. False if
        there is no such start.
        """
        start = self.pop(ticket, number)
        if start is None:
            return False
        address = await start.cancel()
        if address is not None:
            await self._take_back(address)
        return True

    def on_node_gone(self, node: NodeId) -> None:
        """Take back what a node has not asked for that has ended."""
        tickets = {ticket for ticket, caller in self._callers.items() if caller == node}
        for ticket, number in [key for key in self._by_key if key[0] in tickets]:
            self.nursery.start_soon(self.take_back, ticket, number)

    async def _look_after(self, ticket: str, numbers: list[int]) -> None:
        await trio.sleep(UNASKED_SECONDS)
        self._callers.pop(ticket, None)
        for number in numbers:
            # Each by itself: one that does not heed its cancellation holds up no other.
            self.nursery.start_soon(self.take_back, ticket, number)
