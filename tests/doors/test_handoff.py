"""The handoff between a thread that calls and the loop of its door: the machine alone, and a portal
that always waits for the next request.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import NotAMemberError
from runtime.doors.handoff import (
    CREDIT,
    LEAST_SECONDS,
    MISS,
    MOST_SECONDS,
    SHORT_GAP,
    STREAK,
    Handoff,
)
from runtime.doors.portal import MOST_IN_ONE_TASK, Portal

SHORT = 40e-6


@attrs.define
class Driver:
    """A loop that the tests play."""

    handoff: Handoff = attrs.field(factory=Handoff)
    now: float = 0.0

    def call(self, gap: float = SHORT) -> bool:
        """One call that ends, and the next request, which comes after `gap`. Returns whether the
        loop waited for it.
        """
        self.handoff.on_ended(self.now)
        waits = self.handoff.seconds
        if waits and gap > waits:
            self.handoff.on_missed()
        self.now += gap
        self.handoff.on_request(self.now)
        self.now += 100e-6
        return waits > 0.0

    def until_on(self) -> None:
        """Calls that follow each other closely, until the loop waits for the next."""
        for _ in range(STREAK):
            assert not self.handoff.is_on()
            self.call()
        assert self.handoff.is_on()


def test_it_is_off_until_requests_have_followed_each_other_closely() -> None:
    Driver().until_on()


def test_a_longer_gap_in_each_streak_keeps_it_off() -> None:
    driver = Driver()
    for _ in range(20):
        for _ in range(STREAK - 1):
            assert not driver.call()
        assert not driver.call(2 * SHORT_GAP)


def test_it_goes_off_after_misses_and_needs_a_new_streak() -> None:
    driver = Driver()
    driver.until_on()
    misses = 0
    while driver.handoff.is_on():
        driver.call(1.0)
        misses += 1
    assert misses == CREDIT // MISS + 1
    driver.until_on()


def test_single_misses_among_many_requests_in_time_are_forgiven() -> None:
    driver = Driver()
    driver.until_on()
    for _ in range(100):
        driver.call(1.0)
        for _ in range(MISS + 1):
            driver.call()
        assert driver.handoff.is_on()


def test_requests_beside_each_other_end_it_at_once() -> None:
    driver = Driver()
    driver.until_on()
    driver.handoff.on_request(driver.now)
    driver.handoff.on_request(driver.now)
    assert not driver.handoff.is_on()


@given(st.lists(st.floats(0, 0.01), max_size=200))
def test_a_wait_is_bounded_whatever_the_gaps(gaps: list[float]) -> None:
    driver = Driver()
    for gap in gaps:
        driver.call(gap)
        seconds = driver.handoff.seconds
        assert seconds == 0.0 or LEAST_SECONDS <= seconds <= MOST_SECONDS


class AlwaysOn(Handoff):
    """Waits for a long time after every call, whatever happens: tests of the portal must not depend
    on the machine's speed.
    """

    __slots__ = ()

    def on_request(self, now: float) -> None:
        """Stays on."""
        self.seconds = 0.02

    def on_missed(self) -> None:
        """Stays on."""


@contextmanager
def loop_in_thread() -> Iterator[Portal]:
    """A portal of a trio run in another thread, which waits for the next request after each."""
    opened: Future[Portal] = Future()
    over: Future[trio.Event] = Future()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            portal = Portal(
                trio.lowlevel.current_trio_token(), nursery, "the test", handoff=AlwaysOn()
            )
            end = trio.Event()
            over.set_result(end)
            opened.set_result(portal)
            await end.wait()
            portal.close()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    portal = opened.result()
    try:
        yield portal
    finally:
        portal.soon(over.result().set)
        thread.join()


def test_calls_futures_and_cancelled_ones_of_a_thread_keep_their_order() -> None:
    begun: list[int] = []

    async def begin(number: int) -> int:
        begun.append(number)
        await trio.lowlevel.checkpoint()
        return number

    with loop_in_thread() as portal:
        asked = []
        for number in range(0, 900, 3):
            asked.append(portal.future(partial(begin, number)))
            asked.append(portal.future(partial(begin, number + 1)))
            assert portal.call(partial(begin, number + 2)) == number + 2
        assert [future.result() for future in asked] == [n for n in range(900) if n % 3 < 2]
    assert begun == list(range(900))


VARIABLE: ContextVar[int] = ContextVar("a variable of the callers")


def test_calls_that_follow_each_other_share_a_task_but_no_context() -> None:
    tasks: list[trio.lowlevel.Task] = []

    async def swap(number: int) -> int:
        tasks.append(trio.lowlevel.current_task())
        found = VARIABLE.get()
        VARIABLE.set(-1)
        await trio.lowlevel.checkpoint()
        assert VARIABLE.get() == -1
        VARIABLE.set(number)
        with trio.move_on_after(0):
            # An exception comes in where the coroutine waits, also in a context of its own.
            await trio.sleep_forever()
        assert VARIABLE.get() == number
        return found

    with loop_in_thread() as portal:
        for number in range(100):
            VARIABLE.set(number)
            assert portal.call(partial(swap, -2)) == number
            assert VARIABLE.get() == number
    # Some outcomes may reach a slow thread too late for that.
    assert 100 / MOST_IN_ONE_TASK <= len(set(tasks)) < 100


def test_calls_that_wait_for_nothing_leave_the_loop_its_turns() -> None:
    turns: list[int] = []

    async def count() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            turns.append(len(turns))

    async def nothing() -> None:
        pass

    async def begin(nursery: trio.Nursery) -> None:
        nursery.start_soon(count)

    with loop_in_thread() as portal:
        portal.call(partial(begin, portal.nursery))
        for _ in range(10 * MOST_IN_ONE_TASK):
            portal.call(nothing)
    assert len(turns) >= 10


def test_an_error_of_a_call_that_shares_a_task_is_its_own() -> None:
    async def fail(number: int) -> int:
        await trio.lowlevel.checkpoint()
        if number % 2:
            raise LookupError(number)
        return number

    with loop_in_thread() as portal:
        for number in range(0, 100, 2):
            assert portal.call(partial(fail, number)) == number
            with pytest.raises(LookupError, match=str(number + 1)):
                portal.call(partial(fail, number + 1))


def test_calls_of_many_threads_run_once_each() -> None:
    done: list[int] = []

    async def do(number: int) -> int:
        await trio.lowlevel.checkpoint()
        done.append(number)
        return number

    with loop_in_thread() as portal, ThreadPoolExecutor(8) as threads:

        def calls(thread: int) -> None:
            for number in range(100 * thread, 100 * thread + 100):
                assert portal.call(partial(do, number)) == number

        for each in [threads.submit(calls, thread) for thread in range(8)]:
            each.result()
    assert sorted(done) == list(range(800))


def test_an_interrupt_before_the_loop_has_a_call_cancels_it() -> None:
    done: list[str] = []

    async def do(what: str) -> None:
        done.append(what)

    class Interrupted(deque[threading.Lock]):
        def pop(self) -> threading.Lock:  # type: ignore[override]
            raise KeyboardInterrupt

    with loop_in_thread() as portal:
        portal.call(partial(do, "before"))
        batons, portal._batons = portal._batons, Interrupted()
        with pytest.raises(KeyboardInterrupt):
            portal.call(partial(do, "interrupted"))
        portal._batons = batons
        portal.call(partial(do, "after"))
    assert done == ["before", "after"]


def test_a_call_that_comes_while_the_portal_closes_is_refused() -> None:
    async def nothing() -> None:
        pass

    with loop_in_thread() as portal:
        portal.call(nothing)
    with pytest.raises(NotAMemberError, match="was closed"):
        portal.call(nothing)
