"""Calls that are made faster than their link takes them: each waits for its turn, not encoded yet,
and the promises hold for it as for any other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import attrs
import pytest
import trio

from actors import Actor, RetryPolicy, method
from actors.errors import (
    DeadlineExceededError,
    EncodeError,
    NodeDiedError,
    NodeUnreachableError,
    UnderstudyError,
)
from actors.identifiers import NodeId
from runtime.calls.callback_call import CallbackCall
from runtime.calls.protocol import REPEAT, call_frame, cancel_frame
from runtime.links.deferred_posts import MOST_UNWRITTEN
from runtime.links.link import Link
from runtime.node import Node, internals_of
from runtime.testing import Platform
from runtime.wire.frames import Kind, encode_frame
from tests.breakable_network import BreakableNetwork
from tests.live_pair import open_pair
from tests.waiting import until

FEW = 5
"""Frames that may wait to be written in these tests."""

MANY = 10_000

POLICY = RetryPolicy(max_retries=2, initial_delay=0.01)


class Ledger(Actor):
    """Notes what it is told, in the order in which it is."""

    def __init__(self) -> None:
        self.noted: list[int] = []

    @method
    async def note(self, number: int, value: object = None) -> int:
        self.noted.append(number)
        return number

    @method
    async def scroll(self, number: int) -> AsyncIterator[int]:
        self.noted.append(number)
        yield number

    @method
    async def read(self) -> list[int]:
        return self.noted


@attrs.frozen
class Crowd:
    """Two nodes, and an actor of the other one."""

    here: Node
    there: Node
    link: Link
    ledger: Ledger
    network: BreakableNetwork

    async def noted(self) -> list[int]:
        """What the actor has been told."""
        with trio.fail_after(20):
            return await self.ledger.read()

    def deferred(self) -> int:
        """How many posts of the link wait for their turns."""
        self.link.check_invariants()
        internals_of(self.here).check_invariants()
        return self.link.deferred

    async def take_down(self) -> None:
        """Cut the connection, and let none come about."""
        self.network.take_down()
        await self.link.disconnected()

    async def bring_up(self) -> None:
        """Let connections come about again."""
        self.network.up = True
        await self.link.connected_again()


@asynccontextmanager
async def open_crowd() -> AsyncIterator[Crowd]:
    """Open one whose link has few frames written at a time."""
    network = BreakableNetwork()
    async with open_pair(Platform(network=network)) as pair:
        there = pair.there
        ledger = await there.spawn(Ledger)
        seen = internals_of(pair.here).endpoint.make_handle(ledger.address, Ledger)
        assert await seen.note(-1) == -1
        link = internals_of(pair.here).links[NodeId("there", there.incarnation)]
        link.most_unwritten = FEW
        yield Crowd(pair.here, there, link, seen, network)


@pytest.fixture
async def crowd() -> AsyncIterator[Crowd]:
    """An open one."""
    async with open_crowd() as opened:
        yield opened


def ways_of(ledger: Ledger) -> Iterator[Callable[[int], Awaitable[object]]]:
    """All ways in which a call can be made, again and again."""

    async def stream(number: int) -> None:
        assert [item async for item in ledger.scroll(number)] == [number]

    async def remote(number: int) -> None:
        assert await (await ledger.note.remote(number)).fetch() == number

    while True:
        yield ledger.note
        yield ledger.note
        yield ledger.note.options(timeout=60.0)
        yield ledger.note.options(retry=POLICY)
        yield ledger.note.send
        yield ledger.note
        yield stream
        yield remote


def calls_in_all_ways(ledger: Ledger) -> Callable[[], Awaitable[None]]:
    """A function each of whose calls makes the next call, in the next way."""
    ways, numbers = ways_of(ledger), count()

    async def call() -> None:
        # In one step, in whatever order the tasks run.
        await next(ways)(next(numbers))

    return call


async def test_calls_made_at_once_run_in_the_order_in_which_they_were_made(crowd: Crowd) -> None:
    call = calls_in_all_ways(crowd.ledger)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(400):
                nursery.start_soon(call)
            await all_have_run()
            assert crowd.deferred() > 300
    assert await crowd.noted() == list(range(-1, 400))
    assert crowd.deferred() == 0


async def test_what_is_made_while_others_wait_is_behind_them(crowd: Crowd) -> None:
    call = calls_in_all_ways(crowd.ledger)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(400):
                nursery.start_soon(call)
                if number % 10 == 9:
                    # The link has written something by then, and takes more.
                    await all_have_run()
    assert await crowd.noted() == list(range(-1, 400))


async def test_no_more_are_encoded_in_one_pass_than_are_written_at_once(crowd: Crowd) -> None:
    most = 0
    done = trio.Event()

    async def take_turns() -> None:
        nonlocal most
        before = crowd.link.session.sent
        while not done.is_set():
            await trio.lowlevel.checkpoint()
            sent = crowd.link.session.sent
            most, before = max(most, sent - before), sent

    async with trio.open_nursery() as beside:
        beside.start_soon(take_turns)
        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(crowd.ledger.note, number)
        done.set()
    # The link may write twice between two turns of a task.
    assert 0 < most <= 2 * FEW


async def test_calls_that_are_cancelled_while_they_wait_never_run(crowd: Crowd) -> None:
    scopes = [trio.CancelScope() for _ in range(300)]
    ended: list[int] = []

    async def call(number: int) -> None:
        with scopes[number]:
            await crowd.ledger.note(number)
            ended.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(300):
            nursery.start_soon(call, number)
        await all_have_run()
        waited = crowd.deferred()
        assert waited > 250
        for number in range(100, 200):
            scopes[number].cancel()
        await all_have_run()
        assert crowd.deferred() < waited - 90
    noted = await crowd.noted()
    assert len(noted) == len(set(noted))
    assert set(ended) >= {*range(100), *range(200, 300)}
    # Those that had left when they were cancelled may have run.
    assert len(set(noted) & set(range(100, 200))) <= 300 - waited


async def test_calls_that_wait_when_the_connection_is_lost_run_in_order_over_the_next(
    crowd: Crowd,
) -> None:
    await crowd.take_down()
    numbers, sent = iter(range(500)), crowd.link.session.sent

    async def call() -> None:
        await crowd.ledger.note(next(numbers))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(500):
                nursery.start_soon(call)
            await all_have_run()
            # Without a connection nothing is encoded that cannot leave.
            assert crowd.deferred() >= 500 - FEW
            assert crowd.link.session.sent <= sent + FEW
            await crowd.bring_up()
    assert await crowd.noted() == list(range(-1, 500))


async def test_the_death_of_the_peer_ends_all_that_wait_at_once(crowd: Crowd) -> None:
    await crowd.take_down()
    errors: list[Exception] = []
    policies = [None, RetryPolicy(max_retries=0)]
    methods = [crowd.ledger.note.options(retry=policy) for policy in policies]

    async def call(number: int) -> None:
        with pytest.raises(NodeUnreachableError, match="was never sent to node there") as raised:
            await methods[number % 2](number)
        errors.append(raised.value)

    async with trio.open_nursery() as nursery:
        for number in range(MANY):
            nursery.start_soon(call, number)
        await all_have_run()
        assert crowd.deferred() >= MANY - FEW
        crowd.link.end("its process is gone", peer_ended=True)
        assert crowd.link.deferred == 0
        # In the very next pass.
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        assert len(errors) == MANY
    crowd.network.up = True
    assert await crowd.noted() == [-1]


async def test_what_waits_for_its_turn_only_goes_over_the_next_link_to_the_same_node(
    crowd: Crowd,
) -> None:
    await crowd.take_down()
    ledger, sent = crowd.ledger, 0

    async def send(number: int) -> None:
        nonlocal sent
        await ledger.note.send(number)
        sent += 1

    async def remote(number: int) -> None:
        assert await (await ledger.note.remote(number)).fetch() == number

    async with trio.open_nursery() as nursery:
        for number in range(FEW):
            nursery.start_soon(ledger_lost, ledger, number)
        await trio.lowlevel.checkpoint()
        for number in range(100, 150):
            nursery.start_soon(send, number)
            nursery.start_soon(remote, number + 100)
        await all_have_run()
        assert not sent
        assert crowd.deferred() == 100
        crowd.link.end("given up by the test")
        crowd.network.up = True
    noted = await crowd.noted()
    assert sorted(noted[1:]) == [*range(100, 150), *range(200, 250)]


async def all_have_run() -> None:
    """Wait until each task that was started before has had its first turn."""
    for _ in range(2):
        await trio.lowlevel.checkpoint()


async def ledger_lost(ledger: Ledger, number: int) -> None:
    """A call that was posted on the link that ends."""
    with pytest.raises(NodeUnreachableError):
        await ledger.note(number)


@pytest.mark.parametrize("how", ["timeout", "scope", "attempts"])
async def test_the_deadline_of_a_call_that_waits_ends_it_and_it_never_runs(
    crowd: Crowd, how: str
) -> None:
    await crowd.take_down()
    ledger, ended = crowd.ledger, 0
    # Enough for all to be made while the machine is busy.
    seconds = 1.5

    async def call(number: int) -> None:
        nonlocal ended
        if how == "timeout":
            with pytest.raises(DeadlineExceededError, match="did not run and will not"):
                await ledger.note.options(timeout=seconds)(number)
        elif how == "scope":
            with pytest.raises(trio.TooSlowError), trio.fail_after(seconds):
                await ledger.note(number)
        else:
            policy = RetryPolicy(max_retries=2, attempt_timeout=seconds / 3, initial_delay=0.01)
            text = "was not executed in any of its 3 attempts"
            with pytest.raises(NodeUnreachableError, match=text):
                await ledger.note.options(retry=policy)(number)
        ended += 1

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(call, number)
            await all_have_run()
            assert crowd.deferred() >= 300 - FEW
    assert ended == 300
    assert crowd.deferred() == 0
    await crowd.bring_up()
    assert await crowd.noted() == [-1]


async def test_what_cannot_be_sent_is_told_to_its_caller_and_the_others_go_on(crowd: Crowd) -> None:
    ledger = crowd.ledger
    refused: list[int] = []
    methods = [ledger.note, ledger.note.options(retry=POLICY), ledger.note.options(timeout=60.0)]

    async def call(number: int) -> None:
        if number % 3:
            await methods[number % len(methods)](number)
            return
        ways: list[Callable[..., Awaitable[object]]]
        ways = [ledger.note.send, ledger.note.remote, *methods]
        with pytest.raises(EncodeError, match="value"):
            await ways[number // 3 % len(ways)](number, object())
        refused.append(number)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(call, number)
            await all_have_run()
            assert crowd.deferred() > 200
    assert sorted(refused) == list(range(0, 300, 3))
    assert sorted(await crowd.noted()) == [-1, *(n for n in range(300) if n % 3)]


async def test_what_cannot_be_sent_is_the_outcome_of_a_call_without_a_task(crowd: Crowd) -> None:
    ended: list[CallbackCall] = []
    all_have = trio.Event()

    def on_ended(call: CallbackCall) -> None:
        ended.append(call)
        if len(ended) == 50:
            all_have.set()

    note: Any = crowd.ledger.note
    begin = internals_of(crowd.here).endpoint.caller.begin
    for number in range(50):
        begin(note, (number, object() if number == 25 else None), {}, on_ended)
    assert crowd.deferred() > 30
    with trio.fail_after(20):
        await all_have.wait()
    errors = [one for one in ended if one.error is not None]
    assert [type(one.error) for one in errors] == [EncodeError]
    assert await crowd.noted() == [-1, *range(25), *range(26, 50)]


async def test_the_runtimes_own_calls_do_not_wait_for_those_of_the_program(crowd: Crowd) -> None:
    answered = trio.Event()
    left = 2_000

    async def call(number: int) -> None:
        nonlocal left
        await crowd.ledger.note(number)
        left -= 1

    async def ask() -> None:
        service = internals_of(crowd.here).endpoint.node_service("there", crowd.there.incarnation)
        assert not await service.wait_started("nobody", 1)
        answered.set()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(2_000):
                nursery.start_soon(call, number)
            await all_have_run()
            nursery.start_soon(ask)
            await answered.wait()
            assert left > 1_000


async def test_calls_run_in_order_while_many_more_than_the_window_wait(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd.link.most_unwritten = MOST_UNWRITTEN
    monkeypatch.setattr("runtime.links.session.WINDOW_FRAMES", 70)
    numbers = iter(range(1_000))

    async def call() -> None:
        await crowd.ledger.note(next(numbers))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(1_000):
                nursery.start_soon(call)
            await all_have_run()
            assert crowd.deferred() >= 900
            assert crowd.link.window_full.waiting == 1
    assert await crowd.noted() == list(range(-1, 1_000))
    assert crowd.link.window_full.waiting == 0
    assert crowd.link.window_full.seconds(trio.current_time()) > 0


async def test_acknowledgements_give_turns_to_what_has_no_answer(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.links.session.WINDOW_FRAMES", 70)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(1_000):
                nursery.start_soon(crowd.ledger.note.send, number)
    assert sorted(await crowd.noted()) == list(range(-1, 1_000))


async def test_calls_of_all_kinds_that_wait_follow_an_actor_that_has_moved_in_order(
    crowd: Crowd,
) -> None:
    moved = await crowd.there.options(name="ledger").spawn(Ledger)
    ledger = await crowd.here.lookup("ledger", Ledger)
    await ledger.read()
    await crowd.there.stop(moved)
    await crowd.here.options(name="ledger").spawn(Ledger)
    call = calls_in_all_ways(ledger)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            # It is sent to the place that the actor has left.
            await crowd.take_down()
            nursery.start_soon(call)
            await all_have_run()
            # From here on none has a turn.
            crowd.link.most_unwritten = 0
            for _ in range(49):
                nursery.start_soon(call)
            await all_have_run()
            assert crowd.deferred() == 49
            await crowd.bring_up()
        assert await ledger.read() == list(range(50))
    assert crowd.deferred() == 0


class Held(Actor):
    """Runs until it is cancelled."""

    def __init__(self) -> None:
        self.runs = 0

    @method(idempotent=True)
    async def hold(self) -> None:
        self.runs += 1
        BEGUN.set()
        try:
            await trio.sleep_forever()
        finally:
            ENDED.set()


BEGUN = trio.Event()
ENDED = trio.Event()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run of a `Held` has begun yet."""
    for name in ("BEGUN", "ENDED"):
        monkeypatch.setattr(f"{__name__}.{name}", trio.Event())


async def held_call(
    crowd: Crowd, attempt_timeout: float
) -> tuple[Callable[[], Awaitable[None]], trio.CancelScope]:
    """Return a call of a new `Held` with so many seconds for each of its attempts, and the scope
    that it is made in.
    """
    actor = await crowd.there.spawn(Held)
    hold = internals_of(crowd.here).endpoint.make_handle(actor.address, Held).hold
    policy = RetryPolicy(
        max_retries=10_000, attempt_timeout=attempt_timeout, initial_delay=0.01, budget=None
    )
    scope = trio.CancelScope()

    async def call() -> None:
        with scope:
            await hold.options(retry=policy)()

    return call, scope


@pytest.mark.usefixtures("held")
async def test_a_call_that_runs_is_cancelled_at_once_while_its_next_attempt_waits(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled: list[int] = []

    def noted(number: int) -> bytes:
        cancelled.append(number)
        return cancel_frame(number)

    monkeypatch.setattr("runtime.calls.call_sender.cancel_frame", noted)
    call, scope = await held_call(crowd, attempt_timeout=0.05)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await BEGUN.wait()
            # From here on none has a turn.
            crowd.link.most_unwritten = 0
            await until(crowd.deferred, "the next attempt waits for its turn", every=0)
            scope.cancel()
        assert len(cancelled) == 1
        await ENDED.wait()
    assert crowd.deferred() == 0


@pytest.mark.usefixtures("held")
async def test_an_attempt_after_one_that_had_no_turn_says_that_the_call_may_run(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags: list[int] = []

    def noted(*args: Any) -> bytes:
        flags.append(args[1])
        return call_frame(*args)

    call, scope = await held_call(crowd, attempt_timeout=0.02)
    monkeypatch.setattr("runtime.calls.call_sender.call_frame", noted)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await BEGUN.wait()
            crowd.link.most_unwritten = 0
            # The next attempt waits for its turn, and then is given up as too slow.
            await until(crowd.deferred, "the next attempt waits for its turn", every=0)
            await until(crowd.deferred, "it is given up", lambda left: not left, every=0)
            crowd.link.most_unwritten = FEW
            await until(lambda: len(flags) >= 2, "one after it is sent")
            scope.cancel()
    assert not flags[0] & REPEAT
    assert all(later & REPEAT for later in flags[1:])


@pytest.mark.usefixtures("held")
async def test_a_call_that_runs_is_not_told_never_sent_while_its_next_attempt_waits(
    crowd: Crowd,
) -> None:
    actor = await crowd.there.spawn(Held)
    seen = internals_of(crowd.here).endpoint.make_handle(actor.address, Held)
    policy = RetryPolicy(max_retries=1, attempt_timeout=0.5, initial_delay=0.01)
    errors: list[BaseException] = []

    async def call() -> None:
        with pytest.raises(UnderstudyError) as raised:
            await seen.hold.options(retry=policy)()
        errors.append(raised.value)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await BEGUN.wait()
            crowd.link.most_unwritten = 0
            await until(crowd.deferred, "the next attempt waits for its turn", every=0)
            crowd.link.end("its process is gone", peer_ended=True)
    assert [type(error) for error in errors] == [NodeDiedError]


async def test_answers_in_each_pass_leave_turns_to_calls_that_wait(crowd: Crowd) -> None:
    over = trio.Event()

    async def answer() -> None:
        while not over.is_set():
            crowd.link.post(encode_frame(Kind.EMPTY, b""))
            await trio.lowlevel.checkpoint()

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(answer)
            for number in range(100):
                nursery.start_soon(crowd.ledger.note, number)
            await all_have_run()
            assert crowd.deferred() > 80
            passes = 0
            while crowd.link.deferred:
                await trio.lowlevel.checkpoint()
                passes += 1
            over.set()
    # A lot of them has its turns in each pass.
    assert passes <= 3 * 100 // FEW


async def test_a_window_that_was_full_is_not_waited_for_once_all_are_cancelled(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.links.session.WINDOW_FRAMES", FEW)
    await crowd.take_down()
    for way in (crowd.ledger.note, crowd.ledger.note.send, crowd.ledger.note.remote):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                for number in range(3 * FEW):
                    nursery.start_soon(way, number)
                await all_have_run()
                assert crowd.deferred()
                assert crowd.link.window_full.waiting == 1
                scope.cancel()
        assert crowd.deferred() == 0
        assert crowd.link.window_full.waiting == 0


async def test_calls_of_services_do_not_overtake_those_that_wait(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    await crowd.take_down()
    link, told = crowd.link, list[int]()
    with monkeypatch.context() as changed:
        changed.setattr("runtime.links.session.WINDOW_FRAMES", 0)
        assert link.defer(lambda: told.append(1), urgent=True) is not None
    # There is room, and the first has not had its turn yet.
    assert link.has_room
    assert link.is_crowded
    assert link.defer(lambda: told.append(2), urgent=True) is not None
    await crowd.bring_up()
    await until(lambda: len(told) == 2, "both have had their turns")
    assert told == [1, 2]
