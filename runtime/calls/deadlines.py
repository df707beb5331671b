"""The timeouts of a node's calls: one heap and one task for all of them, because a cancel scope for
each would cost more than the call.
"""

from __future__ import annotations

import heapq
import math
from typing import Any

import trio

from runtime.calls.pending_calls import PendingCall
from runtime.environment import Environment
from runtime.statistics.histograms import Histogram

Waiting = PendingCall[trio.lowlevel.Task]

FEWEST_TO_CLEAR = 256
"""Obsolete entries that are worth a pass over the heap."""

# The deadline of a task, read without a function call for every scope around it.
#
# `trio.current_effective_deadline` recurses through all scopes and nurseries, which makes a tenth
# of what a call costs its caller. This reads the same attributes in a loop. They are trio's own
# business: where they are not as expected, trio is asked as anyone would ask it. A test holds the
# two to the same answers.


def effective_deadline(task: Any) -> float:
    """Return `trio.current_effective_deadline()` for `task`, which must be the running task."""
    try:
        status = task._cancel_status
        if status.effectively_cancelled:
            return -math.inf
        deadline: float = status._scope._deadline
        while not status._scope._shield:
            status = status._parent
            if status is None:
                break
            if status._scope._deadline < deadline:
                deadline = status._scope._deadline
        return deadline
    except AttributeError:
        return trio.current_effective_deadline()


class Deadlines:
    """Wakes calls that are still waiting at their time, marked as expired. Its task is started by
    the first of them, in `nursery`.

    A call that has ended may stay in the heap until its time, so the code that takes its outcome
    must not leave it in the call. `late`: counts by how much they are handled after their time.
    """

    def __init__(
        self, nursery: trio.Nursery, environment: Environment, late: Histogram | None = None
    ) -> None:
        self._nursery = nursery
        self._late = Histogram() if late is None else late
        self._environment = environment
        self._heap: list[tuple[float, int, Waiting]] = []
        self._entered = 0
        self._obsolete = 0
        self._scope: trio.CancelScope | None = None
        self._started = False

    def add(self, when: float, call: Waiting) -> None:
        """Wake `call` at `when` (seconds on the node's clock) unless it has finished. The code that
        adds a call also calls `done`, however the wait for it ends.
        """
        # The number decides between equal times: calls cannot be compared.
        self._entered += 1
        call.timed = self._entered
        heapq.heappush(self._heap, (when, self._entered, call))
        if not self._started:
            self._started = True
            self._nursery.start_soon(self._run, name="timeouts of calls")
        elif self._scope is not None and when < self._scope.deadline:
            self._scope.deadline = when

    def done(self, call: Waiting) -> None:
        """A call that was added has ended, or waits for its next attempt: its entry is obsolete."""
        call.timed = 0
        self._obsolete += 1
        if self._obsolete >= FEWEST_TO_CLEAR and self._obsolete * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].timed == entry[1]]
            heapq.heapify(self._heap)
            self._obsolete = 0

    async def _run(self) -> None:
        while True:
            # Those that are obsolete are not waited for: nearly all calls end long before their
            # time, and each of them would cost a pass of the event loop.
            while self._heap and self._heap[0][2].timed != self._heap[0][1]:
                heapq.heappop(self._heap)
                self._obsolete = max(0, self._obsolete - 1)
            with trio.CancelScope(
                deadline=self._heap[0][0] if self._heap else math.inf
            ) as self._scope:
                await trio.sleep_forever()
            now = self._environment.now()
            if self._heap and -math.inf < self._heap[0][0] <= now:
                # Once for all that are due: what holds up the loop holds them up together.
                self._late.add(now - self._heap[0][0])
            while self._heap and self._heap[0][0] <= now:
                _, number, call = heapq.heappop(self._heap)
                self._obsolete = max(0, self._obsolete - 1)
                # One that is made again is the same object: an entry of an attempt before must not
                # end it.
                if call.timed == number and not call.finished:
                    call.expired = True
                    wake(call)
                # Nothing of it is kept while there is nothing to do.
                del call


@trio.lowlevel.enable_ki_protection
async def wait_woken(call: Waiting) -> None:
    """Park the running task on the call until `wake`. If the wait is cancelled, the call goes on.
    The caller has looked at the call without an await since, so no wake-up is lost.
    """
    assert call.waiter is None, "one task waits for a call"
    call.waiter = trio.lowlevel.current_task()

    def unpark(raise_cancel: object) -> trio.lowlevel.Abort:
        call.waiter = None
        return trio.lowlevel.Abort.SUCCEEDED

    await trio.lowlevel.wait_task_rescheduled(unpark)


def wake(call: Waiting) -> None:
    """Wake the task that is parked on the call."""
    waiter = call.waiter
    if waiter is not None:
        call.waiter = None
        trio.lowlevel.reschedule(waiter)
    elif call.ended is not None:
        call.ended(call)
