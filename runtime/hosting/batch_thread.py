"""The thread in which an actor runs a batch of a plain method, and the batches that arrive
meanwhile.

Between two batches that take their turns one after the other, the actor does nothing for a
millisecond or so: its thread tells the event loop, which answers, takes the next call and starts a
thread. So a batch that arrives while another one runs, and finds no call that waits before it, runs
right behind that one in the same thread. It belongs to the turn of the first one, which lasts until
the last of them has ended. Each is answered as soon as it has ended itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio

from actors.call_context import CURRENT
from actors.method import MethodDefinition
from runtime.hosting.cell import ActorCell, Invocation, RefusedElsewhereError
from runtime.hosting.running_batch import RunningBatch
from runtime.hosting.thread_signal import ThreadSignal
from runtime.hosting.threads import go_on_with

MOST_BATCHES = 16
"""Batches in one turn. The next one waits for a turn of its own, so that a turn has an end."""

SHORT_SECONDS = 0.02
"""A batch that takes less is over before the caller has had the answer to the one before it, if
that waits until the interpreter switches threads, which may take 5 ms.
"""


class ThreadedBatch:
    """A batch in the thread, and the call that it came with. It is the runner of its call."""

    def __init__(
        self, invocation: Invocation | None, running: RunningBatch, definition: MethodDefinition
    ) -> None:
        self.invocation = invocation
        """None for a batch whose call is not the turn: no other one follows it."""
        self.running = running
        self.definition = definition
        self.cancelled = False

    def cancel(self) -> None:
        """Start no more of its items. The one that runs in the thread ends first."""
        self.cancelled = True
        self.running.close()


class BatchThread:
    """Runs the batches of one turn of an actor in a thread. All but `_work` is called on the loop.

    `answer_first(batch)` is called when the first batch has ended and its turn goes on, and
    `answer(batch)` when one behind it has ended.
    """

    def __init__(
        self,
        cell: ActorCell,
        first: ThreadedBatch,
        answer_first: Callable[[ThreadedBatch], None],
        answer: Callable[[ThreadedBatch], None],
        stopwatch: Callable[[], float],
    ) -> None:
        self.cell = cell
        self.accepts = first.invocation is not None
        """False once the turn is to end."""
        self._first = first
        self._answer_first = answer_first
        self._answer = answer
        self._stopwatch = stopwatch
        self._left = MOST_BATCHES
        # Both are used by the loop and by the thread, each at one end: their steps are atomic.
        self._waiting = deque([first])
        self._ended: deque[ThreadedBatch] = deque()

    def add(self, batch: ThreadedBatch) -> None:
        """Run a batch behind the others."""
        assert self.accepts, "a turn that is to end accepts nothing"
        self._left -= 1
        self.accepts = self._left > 0
        self._waiting.append(batch)

    async def run(
        self,
        nursery: trio.Nursery,
        in_thread: Callable[[Callable[[], None]], Awaitable[object]],
    ) -> None:
        """Run the first batch, and those that were added, to their ends. `nursery`: for the task
        that answers those that have ended, while others run.
        """
        signal = ThreadSignal(self._answer_ended)
        nursery.start_soon(signal.run)
        try:
            # Inside, because batches may be behind the first one already: they are answered below.
            await trio.lowlevel.checkpoint_if_cancelled()
            # Who cancels the first call has nothing to do with the batches behind it.
            with trio.CancelScope(shield=True):
                # Again for what was added when the thread was about to end.
                while self._waiting:
                    try:
                        await in_thread(partial(self._work, signal))
                    except RefusedElsewhereError:
                        # There is no thread. The call of the first batch is refused, if that has
                        # not run; it has its outcomes otherwise, and the items of those behind it
                        # count as not started.
                        if self._first in self._waiting:
                            raise
                        break
        finally:
            # No thread runs now: it is waited for, also when this is cancelled.
            signal.close()
            self.accepts = False
            # What was added is left only if there was no thread for it: then it did not run.
            for batch in self._waiting:
                batch.running.close()
                self._ended.append(batch)
            self._waiting.clear()
            self._answer_ended(is_over=True)

    def _work(self, signal: ThreadSignal) -> None:
        """In the thread."""
        before: RunningBatch | None = None
        while True:
            try:
                batch = self._waiting.popleft()
            except IndexError:
                return
            if self._ended:
                if before is not None and _expected(batch.running, before) > SHORT_SECONDS:
                    # The loop answers while the next batch runs, and not before it.
                    signal.set()
                else:
                    # The one after the next could be late, if this answer waited.
                    signal.set_at_once()
            invocation = batch.invocation
            if invocation is not None and batch is not self._first:
                # The thread's own context, which ends with it.
                go_on_with(invocation)
                CURRENT.set(invocation.context)
                if invocation.timer is not None:
                    invocation.timer.started = self._stopwatch()
            function: Callable[..., Any] = batch.definition.function
            batch.running.run(function, self.cell.instance, self._stopwatch)
            before = batch.running
            self._ended.append(batch)

    def _answer_ended(self, *, is_over: bool = False) -> None:
        while self._ended:
            batch = self._ended.popleft()
            if batch is not self._first:
                self._answer(batch)
            elif not is_over:
                # Otherwise the call's method returns the answer.
                self._answer_first(batch)


def _expected(batch: RunningBatch, before: RunningBatch) -> float:
    """The seconds that a batch takes, if its items are like those of the one before it."""
    return before.seconds / max(1, before.count) * batch.count
