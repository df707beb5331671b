"""A batch of items while it runs, on the loop or in a thread, and how each item has ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextvars import copy_context

from actors.actor import Actor

RETURNED, RAISED, NOT_STARTED, UNSENDABLE, REFUSED, ENCODED = range(6)
"""How an item ended: with its value; with a description of the exception; not run at all; with a
value that cannot be sent, and the reason; or by a filter, with the description of an error of the
runtime. `ENCODED`: with the outcome that the bytes beside it are. So one that the caller's process
cannot build costs no other item its outcome.
"""

Rows = list[list[object]]
"""The arguments of each item of a batch."""

Outcome = list[object]
"""A code and a value. A list: a tuple would be encoded, and decoded, by itself."""


class RunningBatch:
    """A batch that runs. `may_run` is asked before each item; when it says False, no other one
    starts.
    """

    def __init__(self, rows: Rows, may_run: Callable[[], bool]) -> None:
        self._rows = deque(rows)
        """The rows that were neither started nor recalled. Taking one from either end is atomic:
        the runner, perhaps in a thread, takes rows from the left, and `close` recalls them from the
        right. So each row has one taker, without a lock.
        """
        self._may_run = may_run
        self._started = self.count = len(rows)
        """How many rows are started, at most."""
        self.outcomes: list[Outcome] = []
        """The outcomes of the rows that have ended, in their order."""
        self.seconds = 0.0
        """How long they took."""

    def __iter__(self) -> Iterator[list[object]]:
        """The rows to run: each is started when it was given."""
        take, may_run = self._rows.popleft, self._may_run
        while may_run():
            try:
                row = take()
            except IndexError:
                return
            yield row

    def close(self) -> int:
        """Start no more items. Returns how many were started. Called on the loop only."""
        recall = self._rows.pop
        while self._rows:
            try:
                recall()
            except IndexError:
                # The runner has taken the last one meanwhile.
                break
            self._started -= 1
        assert 0 <= self._started <= self.count, "each row has one taker"
        return self._started

    def run(
        self, function: Callable[..., object], instance: Actor, stopwatch: Callable[[], float]
    ) -> None:
        """Run a plain method for each row. In a thread."""
        # Measured here, and not around the thread: what a batch costs besides says nothing of how
        # many items the next one may have.
        began, outcomes = stopwatch(), self.outcomes
        for row in self:
            try:
                outcomes.append([RETURNED, copy_context().run(function, instance, *row)])
            except BaseException as error:  # noqa: ASYNC103  in a thread
                # In a thread even KeyboardInterrupt is what the method itself raised.
                outcomes.append([RAISED, error])
        self.seconds = stopwatch() - began
