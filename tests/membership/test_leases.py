"""A node that is not sure of its lease: its named actors pause before anybody else may have their
names, and go on if they still may.
"""

from __future__ import annotations

import itertools
import logging
import math
import random
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from actors import Actor, method
from actors.errors import CallError, JoinError, LeaseLostError, StoreUnavailableError
from runtime import Node, open_node
from runtime.environment import Environment, SystemEnvironment
from runtime.hosting.leased_names import LeasedNames
from runtime.hosting.stacks import blocked_report
from runtime.links.spin import SMALL_RECEIVE
from runtime.links.transports import SocketNetwork
from runtime.membership.cluster_client import ClusterAccess, open_client
from runtime.membership.lease import LeaseClock
from runtime.membership.members import NodeRecord, Registration
from runtime.membership.stand_by import StandBy
from runtime.node import internals_of
from runtime.store.embedded_store import EmbeddedStore
from runtime.store.interface import Store
from runtime.testing import Platform
from runtime.timings import Timings
from tests.live_pair import open_pair
from tests.loaders import HARMFUL, generated
from tests.memory_network import MemoryNetwork
from tests.scheduling import SeededEnvironment, under_seeds
from tests.waiting import until

SECRET = "a secret of the tests of leases"
TIMINGS = Timings()


@given(
    st.floats(0.1, 60),
    st.floats(0, 1e6),
    st.lists(st.floats(0, 60), max_size=20),
    st.floats(0, 120),
)
def test_a_lease_is_never_relied_upon_when_it_may_have_ended(
    ttl: float, asked: float, renewals: list[float], later: float
) -> None:
    clock = LeaseClock(TIMINGS.held_share * ttl, asked)
    latest = asked
    for delay in renewals:
        latest += delay
        clock.on_renewed(latest)
    # The store counts from when a renewal reached it, which is never before it was asked for.
    assert not clock.is_held(latest + ttl)
    assert clock.is_held(latest + later) == (latest + later < clock.doubtful_at)
    clock.on_renewed(asked)
    assert clock.doubtful_at >= latest


class Keeper(Actor):
    """Says when it runs."""

    def __init__(self) -> None:
        self.runs = 0
        self.gate = trio.Event()

    @method
    async def work(self) -> int:
        self.runs += 1
        return self.runs

    @method
    async def much(self) -> bytes:
        return bytes(2 * SMALL_RECEIVE)

    @method(concurrent=True)
    async def wait(self) -> str:
        await self.gate.wait()
        return "done"


@attrs.frozen
class Setting:
    """`there` hosts two keepers, one with a name of its own; `here` has the store, and
    calls them.
    """

    here: Node
    there: Node
    named: Keeper
    unnamed: Keeper
    behind: Keeper
    """The named one itself, not a handle."""


class AwayStore:
    """Makes every renewal of one lease fail while it is `away`; `silent`: leaves them without an
    answer.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, lease: int, *, silent: bool = False
    ) -> None:
        self.away = False
        keep_alive = EmbeddedStore.keep_alive

        async def kept_alive(store: EmbeddedStore, asked: int) -> float:
            if asked == lease and self.away:
                if silent:
                    await trio.sleep_forever()
                await trio.lowlevel.checkpoint()
                raise StoreUnavailableError("away, says the test")
            return await keep_alive(store, asked)

        monkeypatch.setattr(EmbeddedStore, "keep_alive", kept_alive)


@asynccontextmanager
async def setting() -> AsyncIterator[Setting]:
    async with open_pair(Platform(network=MemoryNetwork())) as pair:
        here, there = pair.here, pair.there
        named = await here.options(name="keeper", on="there").spawn(Keeper)
        unnamed = await here.options(on="there").spawn(Keeper)
        behind = internals_of(there).cells["keeper"].instance
        assert isinstance(behind, Keeper)
        yield Setting(here, there, named, unnamed, behind)


async def test_a_node_whose_renewals_wait_behind_a_flood_that_it_has_sent_is_not_counted_as_dead(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with setting() as both:
        # A silent store: to both nodes the same as renewals that are not read.
        store = AwayStore(
            monkeypatch, internals_of(both.there).registration.record.lease, silent=True
        )
        store.away = True
        flood_ends = trio.current_time() + 4 * TIMINGS.lease
        while trio.current_time() < flood_ends:
            await both.unnamed.much()
            await trio.sleep(TIMINGS.expiry_watch / 4)
        assert len(both.here.members()) == 2
        # Renewed as soon as the first renewal is read: nothing has moved.
        store.away = False
        await both.named.work()
        assert both.behind.runs == 1
        # Without a flood a lease that is not renewed ends as before.
        store.away = True
        with trio.fail_after(TIMINGS.lease + 2 * TIMINGS.expiry_watch):
            await both.here.wait_gone("there")


async def test_a_lease_of_a_client_is_spared_while_clients_send_much() -> None:
    environment = SystemEnvironment()
    async with (
        open_node("alone", cluster="leases", secret=SECRET) as node,
        open_client(
            node.address, ClusterAccess("leases", SECRET.encode(), environment, SocketNetwork())
        ) as client,
    ):
        lease = await client.store.grant(60.0)
        assert internals_of(node).last_backlog(lease) == -math.inf
        before = trio.current_time()
        await client.store.put("large", bytes(2 * SMALL_RECEIVE), lease)
        assert internals_of(node).last_backlog(lease) >= before
        own = internals_of(node).registration.record.lease
        assert internals_of(node).last_backlog(own) == -math.inf


async def test_named_actors_pause_while_the_store_is_away_and_go_on_when_their_lease_has_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with setting() as both:
        store = AwayStore(monkeypatch, internals_of(both.there).registration.record.lease)
        assert await both.named.work() == 1
        store.away = True
        cell = internals_of(both.there).cells["keeper"]
        outcomes: list[object] = []

        async def ask(keeper: Keeper, what: str) -> None:
            outcomes.append(await getattr(keeper, what)())

        with trio.fail_after(TIMINGS.lease):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, both.named, "wait")
                await until(lambda: cell.paused, "the actor is paused", every=0.02)
                both.behind.gate.set()
                nursery.start_soon(ask, both.named, "work")
                # What has no name to lose goes on.
                assert await both.unnamed.work() == 1
                await trio.sleep(0.1)
                assert outcomes == []
                assert both.behind.runs == 1
                store.away = False
        assert sorted(map(str, outcomes)) == ["2", "done"]
        assert await both.named.work() == 3
        assert not both.there.asked_to_leave.is_set()


@pytest.mark.parametrize("silent", [False, True])
async def test_a_store_that_answers_nothing_is_away_like_one_that_refuses(
    monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    async with setting() as both:
        registration = internals_of(both.there).registration
        store = AwayStore(monkeypatch, registration.record.lease, silent=silent)
        store.away = True
        await until(lambda: registration.store_is_away, "the node knows it", every=0.02)
        store.away = False
        await until(lambda: not registration.store_is_away, "it is back", every=0.02)
        assert not both.there.asked_to_leave.is_set()


def test_when_the_lease_is_lost_nothing_that_ran_meanwhile_is_answered_as_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        with pytest.raises(
            LeaseLostError,
            match=r"counts node there as dead: its lease of 5 s has ended.*; the store did not "
            r"answer for \d+ s;",
        ):
            await lose()

    async def lose() -> None:
        async with setting() as both:
            store = AwayStore(monkeypatch, internals_of(both.there).registration.record.lease)
            store.away = True
            cell = internals_of(both.there).cells["keeper"]
            ended: list[type[CallError]] = []

            async def ask(what: str) -> None:
                try:
                    await getattr(both.named, what)()
                except CallError as error:
                    ended.append(type(error))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, "wait")
                await until(lambda: cell.paused, "the actor is paused", every=0.02)
                both.behind.gate.set()
                nursery.start_soon(ask, "work")
                await both.here.wait_gone("there")
            assert both.behind.runs == 0
            assert len(ended) == 2
            store.away = False
            with trio.fail_after(2 * TIMINGS.renew_every + TIMINGS.renewal_retry):
                await both.there.asked_to_leave.wait()
            assert cell.ended is not None
            again = await both.here.options(name="keeper").spawn(Keeper)
            assert await again.work() == 1

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_the_pause_begins_before_the_store_may_give_the_names_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with setting() as both:
            store = AwayStore(monkeypatch, internals_of(both.there).registration.record.lease)
            cell = internals_of(both.there).cells["keeper"]
            for _ in range(5):
                await trio.sleep(TIMINGS.renew_every)
                assert not cell.paused
            store.away = True
            # Counted from the last renewal that was granted: questions that are refused in between
            # must not put the pause off.
            began = internals_of(both.there).registration.clock.asked
            await until(lambda: cell.paused, "the actor is paused", every=0.01)
            paused = trio.current_time()
            await both.here.wait_gone("there")
            gone = trio.current_time()
            assert paused - began <= TIMINGS.held + 0.02
            assert gone - paused >= TIMINGS.lease - TIMINGS.held - TIMINGS.renew_every / 2

    trio.run(main, clock=MockClock(autojump_threshold=0))


@under_seeds(20)
async def test_nothing_runs_on_a_lease_that_ended_while_the_process_stood_still(
    draw: random.Random,
) -> None:
    """As after SIGSTOP: time has passed at once, runs and timers are due together, and the order is
    any.
    """
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    async with open_node(
        "alone",
        secret=SECRET,
        platform=Platform(environment=SeededEnvironment(draw), network=MemoryNetwork()),
    ) as node:
        lease = internals_of(node).registration.clock
        ran_without: list[float] = []

        class Witness(Actor):
            @method
            async def work(self) -> None:
                if not lease.is_held(trio.current_time()):
                    ran_without.append(trio.current_time())

            @method(concurrent=True)
            async def wait(self) -> None:
                await self.work()
                await trio.lowlevel.checkpoint()

        witness = await node.options(name="witness").spawn(Witness)
        answered = 0

        async def ask(what: str) -> None:
            nonlocal answered
            for _ in range(40):
                await getattr(witness, what)()
                answered += 1

        with trio.fail_after(600):
            async with trio.open_nursery() as nursery:
                for what in ("work", "work", "wait"):
                    nursery.start_soon(ask, what)
                for _ in range(4):
                    for _ in range(draw.randrange(12)):
                        await trio.lowlevel.checkpoint()
                    clock.jump(TIMINGS.lease)
        assert answered == 120
        assert ran_without == []


def test_the_outcome_of_a_run_that_outlived_its_lease_without_ever_waiting_is_held_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It blocks the loop in its first step, so that no timer pauses it: the clock is asked again
    before its outcome is told.
    """
    clock = MockClock(autojump_threshold=0)

    class Blocker(Actor):
        @method
        async def block(self, how: str) -> str:
            clock.jump(TIMINGS.lease * 0.9)
            if how == "raise":
                raise ValueError("after all")
            return how

    async def main() -> None:
        async with setting() as both:
            store = AwayStore(monkeypatch, internals_of(both.there).registration.record.lease)
            blocker = await both.there.options(name="blocker").spawn(Blocker)
            for how in ("return", "raise"):
                store.away = True
                outcomes: list[object] = []

                async def ask(how: str, outcomes: list[object]) -> None:
                    try:
                        outcomes.append(await blocker.block(how))
                    except ValueError as error:
                        outcomes.append(str(error).splitlines()[0])

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(ask, how, outcomes)
                    cell = internals_of(both.there).cells["blocker"]
                    await until(lambda: cell.paused, "the actor is paused", every=0.01)  # noqa: B023
                    await trio.sleep(0.1)
                    assert outcomes == []
                    store.away = False
                assert outcomes == ["return" if how == "return" else "after all"]

    trio.run(main, clock=clock)


async def test_a_lease_renewed_beside_the_blocked_loop_is_not_suspected_after_it() -> None:
    async with open_node("alone", secret=SECRET) as node:
        keeper = await node.options(name="keeper").spawn(Keeper)
        workers = internals_of(node).host.workers
        # As after a long time in which another loop renewed the lease.
        workers.names_until = trio.current_time() - 1
        assert await keeper.work() == 1
        assert workers.names_until > trio.current_time()
        workers.names_until = trio.current_time() - 1
        workers.ask_lease_by(lambda: trio.current_time() - 1)
        with trio.move_on_after(0.05):
            await keeper.work()
        assert internals_of(node).cells["keeper"].paused


async def test_a_named_actor_may_run_while_the_lease_certainly_holds_and_others_may_always() -> (
    None
):
    async with open_node("alone", secret=SECRET) as node:
        await node.options(name="keeper").spawn(Keeper)
        await node.spawn(Keeper)
        host = internals_of(node).host
        named = host.cells["keeper"]
        (unnamed,) = (cell for cell in host.cells.values() if not cell.leased and not cell.system)
        may_run, workers = host.workers.may_run, host.workers
        assert may_run(named)
        named.paused = True
        assert not may_run(named)
        named.paused = False
        # Renewed by another loop: the lease is asked before the actor is stopped.
        workers.names_until = trio.current_time() - 1
        assert may_run(named)
        assert workers.names_until > trio.current_time()
        workers.names_until = trio.current_time() - 1
        workers.ask_lease_by(lambda: trio.current_time() - 1)
        assert not may_run(named)
        # To ask pauses nothing: that is decided where an actor would have run.
        assert not named.paused
        assert may_run(unnamed)


class SlowStore:
    """Renews every lease, long after it was asked."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.asked: list[float] = []

    async def keep_alive(self, lease: int) -> float:
        self.asked.append(trio.current_time())
        await trio.sleep(self.seconds)
        return TIMINGS.lease


class Doubts:
    """The node's named actors, as the lease tells them."""

    def __init__(self) -> None:
        self.doubts = 0

    def doubt(self) -> None:
        self.doubts += 1

    def hold_until(self, doubtful_at: float) -> None:
        assert doubtful_at > trio.current_time()

    def lose(self, why: str) -> None:
        raise AssertionError(why)


@pytest.mark.parametrize("seconds", [0.0, 0.5 * TIMINGS.renew_every, 0.99 * TIMINGS.renew_every])
async def test_a_lease_is_not_in_doubt_while_each_answer_comes_before_the_next_is_due(
    seconds: float, autojump_clock: MockClock
) -> None:
    environment = SystemEnvironment()
    record = NodeRecord(name="slow", addresses=(), host="", pid=1, started="", lease=1, joined=0.0)
    store, names = SlowStore(seconds), Doubts()
    registration = Registration(cast("Store", store), environment, record)
    with trio.move_on_after(20 * TIMINGS.renew_every):
        await registration.keep(cast("LeasedNames", names))
    assert not names.doubts
    gaps = [later - earlier for earlier, later in itertools.pairwise(store.asked)]
    assert gaps
    assert max(gaps) <= TIMINGS.renew_every + 1e-6


async def test_a_loop_that_cannot_reach_the_store_in_place_of_another_tries_again(
    autojump_clock: MockClock,
) -> None:
    environment, store = SystemEnvironment(), SlowStore(0.0)
    errors = [
        JoinError("it answered, and could not say where the store is"),
        StoreUnavailableError("away"),
        OSError("refused"),
    ]

    @asynccontextmanager
    async def reach(_environment: Environment) -> AsyncIterator[Store]:
        await trio.lowlevel.checkpoint()
        if errors:
            raise errors.pop(0)
        yield cast("Store", store)

    # Nobody beats: the loop that is watched stands still from the beginning.
    stand_by = StandBy(
        "blocked",
        environment,
        LeaseClock(TIMINGS.held, trio.current_time()),
        30.0,
    )
    with trio.move_on_after(15.0):
        await stand_by.run(environment, lambda: None, 1, reach)
    assert not errors
    assert store.asked


async def test_a_block_of_the_loop_explains_nothing_that_came_after_it(
    autojump_clock: MockClock,
) -> None:
    environment = SystemEnvironment()
    stand_by = StandBy("w1", environment, LeaseClock(TIMINGS.held, trio.current_time()), 30.0)
    assert stand_by.why(-math.inf) == ""
    async with trio.open_nursery() as nursery:
        # Nobody beats: the loop that is watched stands still.
        nursery.start_soon(stand_by.run, environment, lambda: None, 1, None)
        await trio.sleep(10.0)
        during = trio.current_time()
        await trio.sleep(2.0)
        assert stand_by.why(during).startswith("its event loop was blocked by ")
        nursery.start_soon(stand_by.beat)
        await trio.sleep(1.0)
        assert stand_by.why(during)
        assert stand_by.why(trio.current_time()) == ""
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("late", [0.0, 0.4])
async def test_a_loop_that_is_too_slow_to_renew_its_lease_is_stood_in_for(
    autojump_clock: MockClock, late: float
) -> None:
    environment, store = SystemEnvironment(), SlowStore(0.0)

    @asynccontextmanager
    async def reach(_environment: Environment) -> AsyncIterator[Store]:
        await trio.lowlevel.checkpoint()
        yield cast("Store", store)

    stand_by = StandBy(
        "slow", environment, LeaseClock(TIMINGS.held, trio.current_time()), limit=30.0
    )

    async def passes() -> None:
        # It never stands still, and renews nothing; at 0.0 because it has no answer from the store.
        while True:
            stand_by._watch.beat(environment.now())
            await trio.sleep(TIMINGS.loop_beat + late)

    with trio.move_on_after(15.0):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(passes)
            nursery.start_soon(stand_by.run, environment, lambda: None, 1, reach)
    assert bool(store.asked) == bool(late)
    gaps = [later - earlier for earlier, later in itertools.pairwise(store.asked)]
    assert max(gaps, default=0.0) <= TIMINGS.held


Tell = Callable[[dict[str, object]], Awaitable[None]]

STOPS = "import sys\ndef here():\n    return sys._getframe()\n"


@asynccontextmanager
async def failing_to_reach(environment: Environment) -> AsyncIterator[Tell]:
    await trio.lowlevel.checkpoint()
    raise KeyError("no member has such an address")
    yield


@asynccontextmanager
async def failing_to_tell(environment: Environment) -> AsyncIterator[Tell]:
    async def tell(facts: dict[str, object]) -> None:
        await trio.lowlevel.checkpoint()
        raise ExceptionGroup("several", [LookupError("of one"), ValueError("of another")])

    yield tell


@asynccontextmanager
async def never_told(environment: Environment) -> AsyncIterator[Tell]:
    async def tell(facts: dict[str, object]) -> None:
        await trio.sleep_forever()

    yield tell


async def renewals_while_blocked(stack: Any, report: Any, seconds: float = 20.0) -> list[float]:
    """When the stand-by of a loop that is blocked from the beginning has renewed the lease."""
    store = SlowStore(0.0)

    @asynccontextmanager
    async def reach(_environment: Environment) -> AsyncIterator[Store]:
        await trio.lowlevel.checkpoint()
        yield cast("Store", store)

    environment = SystemEnvironment()
    clock = LeaseClock(TIMINGS.held, trio.current_time())
    stand_by = StandBy("blocked", environment, clock, 30.0)
    with trio.move_on_after(seconds):
        await stand_by.run(environment, stack, 1, reach, report)
    return store.asked


def check_renewed(asked: list[float], seconds: float = 20.0) -> None:
    gaps = [later - earlier for earlier, later in itertools.pairwise([*asked, seconds])]
    assert asked
    assert max(gaps) <= TIMINGS.held


@pytest.mark.parametrize("report", [failing_to_reach, failing_to_tell, never_told])
async def test_a_report_of_a_block_that_fails_or_hangs_ends_no_renewal(
    report: Any, autojump_clock: MockClock
) -> None:
    check_renewed(await renewals_while_blocked(sys._getframe, report))


class Told:
    """A way to report, and what was reported."""

    def __init__(self) -> None:
        self.facts: list[Any] = []

    @asynccontextmanager
    async def report(self, environment: Environment) -> AsyncIterator[Tell]:
        async def tell(facts: dict[str, object]) -> None:
            await trio.lowlevel.checkpoint()
            self.facts.append(facts)

        yield tell


@pytest.mark.parametrize("kind", HARMFUL)
async def test_a_block_in_code_whose_loader_has_no_source_is_reported_and_the_lease_renewed(
    kind: str, autojump_clock: MockClock
) -> None:
    frame = generated(HARMFUL[kind](), STOPS)["here"]()
    told = Told()
    check_renewed(await renewals_while_blocked(lambda: frame, told.report))
    assert told.facts
    assert all(facts["stack"][-1][2:] == ["here", ""] for facts in told.facts)


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """What threads wait for that would never return, until the test is over."""
    event = threading.Event()
    yield event
    event.set()


async def test_reading_of_source_that_never_returns_is_left_out_and_the_lease_renewed(
    monkeypatch: pytest.MonkeyPatch, released: threading.Event, autojump_clock: MockClock
) -> None:
    usual, threads, reads = blocked_report, set[int](), threading.Event()

    def slow_report(*given: Any, **options: Any) -> dict[str, object]:
        if options.get("source", True):
            threads.add(threading.get_ident())
            reads.set()
            released.wait()
        # In the loop, whose clock jumps on without waiting for threads: the one that reads may not
        # run yet.
        assert reads.wait(60), "no thread reads"
        return usual(*given, **options)

    monkeypatch.setattr("runtime.membership.stand_by.blocked_report", slow_report)
    told, frame = Told(), sys._getframe()
    check_renewed(await renewals_while_blocked(lambda: frame, told.report))
    assert len(threads) == 1, "each report has left a thread behind"
    assert len(told.facts) > 2
    assert all(facts["stack"][-1][2] == frame.f_code.co_qualname for facts in told.facts)


class StuckHandler(logging.Handler):
    """Never returns, as one whose lock is held by what blocks the loop."""

    def __init__(self, released: threading.Event) -> None:
        super().__init__()
        self.released = released
        self.called = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.called.set()
        self.released.wait()


async def test_a_handler_of_logs_that_never_returns_ends_no_renewal(
    released: threading.Event, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    store, failures = SlowStore(0.0), [OSError("refused")] * 3

    @asynccontextmanager
    async def reach(_environment: Environment) -> AsyncIterator[Store]:
        await trio.lowlevel.checkpoint()
        if failures:
            raise failures.pop()
        # Each failure is a line, written by a thread that may not run yet: the clock does not wait.
        assert handler.called.wait(60), "no line is written"
        yield cast("Store", store)

    caplog.set_level(logging.DEBUG, "understudy.node")
    handler, logger = StuckHandler(released), logging.getLogger("understudy.node")
    logger.addHandler(handler)
    environment = SystemEnvironment()
    stand_by = StandBy("blocked", environment, LeaseClock(TIMINGS.held, trio.current_time()), 30.0)
    try:
        with trio.move_on_after(20.0):
            await stand_by.run(environment, lambda: None, 1, reach, failing_to_reach)
    finally:
        logger.removeHandler(handler)
    check_renewed(store.asked)
