"""The pool's decisions: every call is lent a worker or refused, in order, and few workers run."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtime.functions.pool import (
    MOST_CALLS,
    Effect,
    Lend,
    Refuse,
    StartWorker,
    StopWorker,
    WorkerPool,
)


def test_an_idle_worker_is_used_again_and_others_are_started_on_demand() -> None:
    pool = WorkerPool(2)
    assert pool.ask(1, None) == [StartWorker(1, None)]
    assert pool.started(1, 0.0) == [Lend(1, 1)]
    assert pool.ask(2, None) == [StartWorker(2, None)]
    assert pool.ask(3, None) == []
    # Served by whichever is free first.
    assert pool.released(1, 1.0, reusable=True) == [Lend(2, 1)]
    assert pool.started(2, 1.0) == [Lend(3, 2)]


def test_idle_workers_end_after_a_while_the_oldest_first() -> None:
    pool = WorkerPool(2, idle_seconds=10.0)
    assert pool.next_expiry is None
    for ticket in (1, 2):
        pool.ask(ticket, None)
        pool.started(ticket, 0.0)
    pool.released(1, 1.0, reusable=True)
    pool.released(2, 3.0, reusable=True)
    assert pool.next_expiry == 11.0
    assert pool.ask(3, None) == [Lend(3, 2)]
    assert pool.expire(11.0) == [StopWorker(1)]
    assert pool.next_expiry is None
    assert pool.ended(1) == []


def test_a_call_of_another_memory_limit_takes_the_place_of_an_idle_worker() -> None:
    pool = WorkerPool(1)
    pool.ask(1, None)
    pool.started(1, 0.0)
    assert pool.ask(2, 100) == []
    assert pool.ask(3, None) == []
    # Although the third call could use the worker at once, the second came before.
    assert pool.released(1, 1.0, reusable=True) == [StopWorker(1)]
    assert pool.ended(1) == [StartWorker(2, 100)]
    assert pool.started(2, 2.0) == [Lend(2, 2)]
    assert pool.released(2, 3.0, reusable=True) == [StopWorker(2)]


def test_a_worker_is_replaced_after_many_calls() -> None:
    pool = WorkerPool(1)
    pool.ask(1, None)
    pool.started(1, 0.0)
    for ticket in range(2, MOST_CALLS + 1):
        assert pool.released(1, 0.0, reusable=True) == []
        assert pool.ask(ticket, None) == [Lend(ticket, 1)]
    assert pool.released(1, 0.0, reusable=True) == [StopWorker(1)]


class Pools(RuleBasedStateMachine):
    """Any order of events. `self.asked` has the tickets that wait, in order, by limit."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = WorkerPool(3, idle_seconds=5.0)
        self.now = 0.0
        self.ticket = 0
        self.waiting: dict[int, int | None] = {}
        self.starting: dict[int, int | None] = {}
        self.limits: dict[int, int | None] = {}
        self.lent: dict[int, int] = {}
        self.idle: set[int] = set()
        self.stopping: set[int] = set()

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, StartWorker):
                self.starting[effect.number] = effect.memory_limit
            elif isinstance(effect, StopWorker):
                self.idle.discard(effect.number)
                self.lent.pop(effect.number, None)
                self.stopping.add(effect.number)
            elif isinstance(effect, Lend):
                limit = self.waiting.pop(effect.ticket)
                assert self.limits[effect.number] == limit
                assert not any(
                    other < effect.ticket for other, of in self.waiting.items() if of == limit
                ), "calls of one limit are served in order"
                self.idle.remove(effect.number)
                self.lent[effect.number] = effect.ticket
            else:
                assert isinstance(effect, Refuse)
                del self.waiting[effect.ticket]

    @rule(limit=st.sampled_from([None, 1, 2]))
    def ask(self, limit: int | None) -> None:
        self.ticket += 1
        self.waiting[self.ticket] = limit
        self.carry_out(self.pool.ask(self.ticket, limit))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[ticket]
        self.carry_out(self.pool.withdraw(ticket))

    @precondition(lambda self: self.starting)
    @rule(data=st.data(), fails=st.booleans())
    def answer(self, data: st.DataObject, fails: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.starting)))
        limit = self.starting.pop(number)
        if fails:
            self.carry_out(self.pool.failed_to_start(number))
            return
        self.limits[number] = limit
        self.idle.add(number)
        self.carry_out(self.pool.started(number, self.now))

    @precondition(lambda self: self.lent)
    @rule(data=st.data(), reusable=st.booleans())
    def release(self, data: st.DataObject, reusable: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.lent)))
        del self.lent[number]
        self.idle.add(number)
        self.carry_out(self.pool.released(number, self.now, reusable=reusable))

    @precondition(lambda self: self.lent or self.idle or self.stopping)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted({*self.lent, *self.idle, *self.stopping})))
        self.lent.pop(number, None)
        self.idle.discard(number)
        self.stopping.discard(number)
        self.carry_out(self.pool.ended(number))
        assert self.pool.released(number, self.now, reusable=True) == []

    @rule(seconds=st.sampled_from([1.0, 6.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.carry_out(self.pool.expire(self.now))
        due = self.pool.next_expiry
        assert due is None or due > self.now

    @invariant()
    def holds(self) -> None:
        self.pool.check_invariants()
        alive = len(self.starting) + len(self.lent) + len(self.idle) + len(self.stopping)
        assert alive <= 3

    def teardown(self) -> None:
        """Whatever has happened, every call is served once workers answer."""
        steps = deque(range(1000))
        while self.waiting and steps:
            steps.popleft()
            for number in list(self.stopping):
                self.stopping.discard(number)
                self.carry_out(self.pool.ended(number))
            for number in list(self.starting):
                self.limits[number] = self.starting.pop(number)
                self.idle.add(number)
                self.carry_out(self.pool.started(number, self.now))
            for number in list(self.lent):
                del self.lent[number]
                self.idle.add(number)
                self.carry_out(self.pool.released(number, self.now, reusable=True))
        assert not self.waiting


TestPools = Pools.TestCase
TestPools.settings = settings(
    max_examples=max(50, settings().max_examples), stateful_step_count=40, deadline=None
)


class CountedTicket(int):
    """Counts how often tickets are compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedTicket.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


def test_calls_that_are_withdrawn_together_cost_each_the_same() -> None:
    pool = WorkerPool(2)
    tickets = [CountedTicket(number) for number in range(1, 3001)]
    for ticket in tickets:
        pool.ask(ticket, None)
    CountedTicket.compared = 0
    # From the last on: each would be looked for through all that wait before it.
    for ticket in reversed(tickets[5:]):
        assert pool.withdraw(ticket) == []
    assert CountedTicket.compared < 2 * len(tickets)
    assert not pool.is_full
    assert pool.started(1, 0.0) == [Lend(1, 1)]


def test_tickets_grow() -> None:
    pool = WorkerPool(1)
    pool.ask(2, None)
    with pytest.raises(AssertionError, match="oldest"):
        pool.ask(1, None)
