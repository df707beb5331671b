"""The pool of worker processes of one node: which call is lent which worker, and when workers start
and stop. No I/O.

A worker belongs to one memory limit, and runs one call at a time. Calls are served in the order in
which they came, over all limits: where no room is left for the oldest, an idle worker of another
limit makes way for it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Literal

import attrs

MOST_CALLS: Final = 1000
"""Calls after which a worker is replaced: what functions leave behind in a process, such as memory
that leaks, ends with it.
"""

IDLE_SECONDS: Final = 30.0
"""How long a worker without a call is kept."""

MOST_WAITING: Final = 10_000
"""Calls that may wait for a worker."""

WorkerState = Literal["starting", "idle", "lent", "stopping"]


@attrs.frozen
class StartWorker:
    """Start a worker; answer with `started` or `failed_to_start`."""

    number: int
    memory_limit: int | None


@attrs.frozen
class StopWorker:
    """End a worker; answer with `ended`."""

    number: int


@attrs.frozen
class Lend:
    """The call of this ticket may use the worker, until `released`."""

    ticket: int
    number: int


@attrs.frozen
class Refuse:
    """The call of this ticket gets no worker: the one that was started for it failed to start."""

    ticket: int


Effect = StartWorker | StopWorker | Lend | Refuse


@attrs.define
class _Worker:
    memory_limit: int | None
    state: WorkerState = "starting"
    calls: int = 0
    idle_since: float = 0.0


class WorkerPool:
    """The table of at most `most` workers. Times are seconds on any monotonic clock."""

    def __init__(self, most: int, idle_seconds: float = IDLE_SECONDS) -> None:
        assert most >= 1
        self._most = most
        self._idle_seconds = idle_seconds
        self._workers: dict[int, _Worker] = {}
        self._waiting: dict[int | None, OrderedDict[int, None]] = {}
        """Tickets by memory limit, the oldest first. None is empty. Any ticket may leave, the first
        ones among many: a plain dict would look for its first key through all that have left.
        """
        self._count = 0
        """How many tickets wait."""
        self._next_number = 0
        self._last_ticket = 0

    @property
    def is_full(self) -> bool:
        """True while no more calls may wait."""
        return self._count >= MOST_WAITING

    @property
    def next_expiry(self) -> float | None:
        """When `expire` has something to do, if nothing else happens before."""
        return min(
            (
                worker.idle_since + self._idle_seconds
                for worker in self._workers.values()
                if worker.state == "idle"
            ),
            default=None,
        )

    def ask(self, ticket: int, memory_limit: int | None) -> list[Effect]:
        """A call wants a worker. Tickets grow."""
        assert ticket > self._last_ticket, "tickets grow, for the oldest is served first"
        assert not self.is_full
        self._last_ticket = ticket
        self._waiting.setdefault(memory_limit, OrderedDict())[ticket] = None
        self._count += 1
        return self._settle()

    def withdraw(self, ticket: int) -> list[Effect]:
        """The call waits no longer, and had no worker yet."""
        for memory_limit, tickets in self._waiting.items():
            if ticket in tickets:
                del tickets[ticket]
                self._count -= 1
                if not tickets:
                    del self._waiting[memory_limit]
                break
        return self._settle()

    def started(self, number: int, now: float) -> list[Effect]:
        """The worker is ready."""
        worker = self._workers[number]
        assert worker.state == "starting"
        worker.state, worker.idle_since = "idle", now
        return self._settle()

    def failed_to_start(self, number: int) -> list[Effect]:
        """Note that a worker did not start. The oldest call that waits for its kind fails."""
        worker = self._workers.pop(number)
        assert worker.state == "starting"
        tickets = self._waiting.get(worker.memory_limit)
        refused: list[Effect] = []
        if tickets:
            refused.append(Refuse(self._oldest(tickets)))
            if not tickets:
                del self._waiting[worker.memory_limit]
        return refused + self._settle()

    def released(self, number: int, now: float, *, reusable: bool) -> list[Effect]:
        """The call has ended. `reusable`: its worker may run another one. Ignored for a worker that
        has ended.
        """
        worker = self._workers.get(number)
        if worker is None or worker.state != "lent":
            return []
        worker.calls += 1
        if not reusable or worker.calls >= MOST_CALLS:
            worker.state = "stopping"
            return [StopWorker(number), *self._settle()]
        worker.state, worker.idle_since = "idle", now
        return self._settle()

    def ended(self, number: int) -> list[Effect]:
        """The worker has ended, asked to or not. Whose call it had learns it by that call."""
        self._workers.pop(number, None)
        return self._settle()

    def expire(self, now: float) -> list[Effect]:
        """Stop what has been idle for too long."""
        effects: list[Effect] = []
        for number, worker in self._workers.items():
            if worker.state == "idle" and worker.idle_since + self._idle_seconds <= now:
                worker.state = "stopping"
                effects.append(StopWorker(number))
        return effects

    def check_invariants(self) -> None:
        """Assert what must hold between any two events."""
        assert len(self._workers) <= self._most, "never more workers than cores"
        assert all(self._waiting.values()), "no empty queue is kept"
        assert self._count == sum(map(len, self._waiting.values()))
        idle = {one.memory_limit for one in self._workers.values() if one.state == "idle"}
        assert not idle & set(self._waiting), "no call waits beside an idle worker of its kind"
        if self._waiting and not any(
            one.state in ("starting", "stopping") for one in self._workers.values()
        ):
            assert len(self._workers) == self._most, "calls wait only while all workers are lent"

    def _settle(self) -> list[Effect]:
        effects: list[Effect] = []
        # The oldest call first, whatever its limit.
        for memory_limit in sorted(
            self._waiting, key=lambda limit: next(iter(self._waiting[limit]))
        ):
            tickets = self._waiting[memory_limit]
            for number in self._idle(memory_limit):
                if not tickets:
                    break
                self._workers[number].state = "lent"
                effects.append(Lend(self._oldest(tickets), number))
            if not tickets:
                del self._waiting[memory_limit]
                continue
            effects += self._make_room(memory_limit, len(tickets))
        return effects

    def _make_room(self, memory_limit: int | None, wanted: int) -> list[Effect]:
        """Start workers for so many calls, as far as there is room; make room where there is none,
        by ending idle workers of other limits.
        """
        effects: list[Effect] = []
        wanted -= sum(
            one.state == "starting" and one.memory_limit == memory_limit
            for one in self._workers.values()
        )
        while wanted > 0 and len(self._workers) < self._most:
            self._next_number += 1
            self._workers[self._next_number] = _Worker(memory_limit)
            effects.append(StartWorker(self._next_number, memory_limit))
            wanted -= 1
        # What is being stopped already makes room for that many.
        wanted -= sum(one.state == "stopping" for one in self._workers.values())
        for number, worker in self._workers.items():
            if wanted <= 0:
                break
            if worker.state == "idle" and worker.memory_limit != memory_limit:
                worker.state = "stopping"
                effects.append(StopWorker(number))
                wanted -= 1
        return effects

    def _oldest(self, tickets: OrderedDict[int, None]) -> int:
        """Take the ticket that has waited the longest."""
        self._count -= 1
        return tickets.popitem(last=False)[0]

    def _idle(self, memory_limit: int | None) -> list[int]:
        """The numbers of idle workers, the latest used first: the others may expire."""
        found = [
            (worker.idle_since, number)
            for number, worker in self._workers.items()
            if worker.state == "idle" and worker.memory_limit == memory_limit
        ]
        return [number for _, number in sorted(found, reverse=True)]
