"""Calls under faults: requests lost and repeated, answers lost, connections cut. What ran once is
never run again, and every call ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from actors import Actor, RetryPolicy, method
from actors.errors import (
    CallTimeoutError,
    ConnectionLostError,
    MailboxFullError,
    OutcomeUnknownError,
)
from actors.identifiers import NodeId
from runtime import Node, open_node
from runtime.node import internals_of
from runtime.testing import Faults, Platform
from tests.live_pair import in_virtual_time, open_pair
from tests.memory_network import MemoryNetwork

SECRET = "a secret of the tests of faults"

AGAIN = RetryPolicy(
    max_retries=50, initial_delay=0.01, backoff=1.2, max_delay=0.05, attempt_timeout=0.2
)
UNSAFE = attrs.evolve(AGAIN, repeat_unknown=True)


class Ledger(Actor):
    """Counts the runs of every entry."""

    def __init__(self) -> None:
        self.runs: Counter[int] = Counter()
        self.gate = trio.Event()

    @method(idempotent=True)
    async def enter(self, number: int) -> int:
        self.runs[number] += 1
        return number

    @method
    async def pay(self, number: int) -> int:
        self.runs[number] += 1
        return number

    @method(idempotent=True, concurrent=True)
    async def wait(self, number: int) -> int:
        self.runs[number] += 1
        await self.gate.wait()
        return number

    @method(idempotent=True)
    async def refuse(self, number: int) -> None:
        self.runs[number] += 1
        raise ValueError(number)

    @method(concurrent=True)
    async def open_gate(self) -> None:
        self.gate.set()

    @method(concurrent=True)
    async def all_runs(self) -> dict[int, int]:
        return dict(self.runs)


@attrs.frozen
class Setting:
    """`here` calls, `there` hosts the ledger; each has its own faults."""

    here: Node
    there: Node
    ledger: Ledger
    at_caller: Faults
    at_actor: Faults

    def nothing_is_left(self) -> bool:
        """True if neither side holds on to any call of the tests; the runtime's own go on."""
        pending = [
            call
            for table in internals_of(self.here).caller.routes.tables.values()
            for call in table.pending.values()
        ]
        clients = internals_of(self.there).endpoint.dedup_server.clients.values()
        records = [record for client in clients for record in client.records.records.values()]
        return not [call for call in pending if not call.place.actor.startswith("@")] and not [
            record for record in records if not record.target[0].startswith("@")
        ]


@asynccontextmanager
async def setting() -> AsyncIterator[Setting]:
    at_caller, at_actor, network = Faults(), Faults(), MemoryNetwork()
    async with open_pair(
        Platform(faults=at_caller, network=network), Platform(faults=at_actor, network=network)
    ) as pair:
        ledger = await pair.here.options(name="ledger", on="there").spawn(Ledger)
        await ledger.all_runs()
        yield Setting(pair.here, pair.there, ledger, at_caller, at_actor)


@pytest.mark.parametrize(
    "point", ["request-lost", "reply-lost", "request-repeated", "in-flight", "cut", "slow"]
)
@pytest.mark.parametrize("how", ["idempotent", "repeat_unknown"])
def test_a_call_that_may_be_repeated_survives_a_fault_and_runs_once(point: str, how: str) -> None:
    async def test(both: Setting) -> None:
        faults = both.at_actor if point == "reply-lost" else both.at_caller
        fault = faults.add(point, times=2, method="enter" if how == "idempotent" else "pay")  # type: ignore[arg-type]
        bound = (
            both.ledger.enter.options(retry=AGAIN)
            if how == "idempotent"
            else both.ledger.pay.options(retry=UNSAFE)
        )
        assert await bound(5) == 5
        assert fault.struck >= 1
        assert await both.ledger.all_runs() == {5: 1}
        await trio.sleep(2)
        assert both.nothing_is_left()

    in_virtual_time(setting, test)


@pytest.mark.parametrize(
    ("point", "expected"), [("in-flight", ConnectionLostError), ("reply-lost", CallTimeoutError)]
)
def test_a_call_that_may_not_be_repeated_says_that_its_outcome_is_unknown_and_runs_once(
    point: str, expected: type[OutcomeUnknownError]
) -> None:
    async def test(both: Setting) -> None:
        (both.at_actor if point == "reply-lost" else both.at_caller).add(point, method="pay")  # type: ignore[arg-type]
        with pytest.raises(expected):
            await both.ledger.pay.options(retry=AGAIN)(5)
        assert await both.ledger.all_runs() == {5: 1}

    in_virtual_time(setting, test)


def test_a_repeat_that_arrives_during_the_run_is_attached_to_it() -> None:
    async def test(both: Setting) -> None:
        answers: list[int] = []

        async def wait() -> None:
            answers.append(await both.ledger.wait.options(retry=AGAIN)(3))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(0.7)
            assert await both.ledger.all_runs() == {3: 1}
            await both.ledger.open_gate()
        assert answers == [3]
        assert await both.ledger.all_runs() == {3: 1}

    in_virtual_time(setting, test)


def test_what_the_method_raised_is_replayed_not_raised_again_by_a_second_run() -> None:
    async def test(both: Setting) -> None:
        both.at_actor.add("reply-lost", times=3, method="refuse")
        with pytest.raises(ValueError, match="4"):
            await both.ledger.refuse.options(retry=AGAIN)(4)
        assert await both.ledger.all_runs() == {4: 1}

    in_virtual_time(setting, test)


def test_what_is_worth_a_retry_when_it_is_raised_runs_again() -> None:
    async def test(both: Setting) -> None:
        policy = attrs.evolve(AGAIN, max_retries=2, retry_on=(ValueError,))
        with pytest.raises(ValueError, match="4") as caught:
            await both.ledger.refuse.options(retry=policy)(4)
        assert caught.value.attempts == 3  # type: ignore[attr-defined]
        assert await both.ledger.all_runs() == {4: 3}

    in_virtual_time(setting, test)


def test_a_session_that_is_lost_while_both_nodes_live_does_not_make_a_call_run_twice() -> None:
    async def test(both: Setting) -> None:
        answers: list[int] = []

        async def wait() -> None:
            answers.append(
                await both.ledger.wait.options(retry=attrs.evolve(AGAIN, attempt_timeout=30))(1)
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(0.1)
            assert await both.ledger.all_runs() == {1: 1}
            key = NodeId("there", both.there.incarnation)
            # As after a broken protocol: the session is over, neither incarnation is.
            internals_of(both.here).links[key].end("ended by the test")
            await trio.sleep(1)
            await both.ledger.open_gate()
        assert answers == [1]
        assert await both.ledger.all_runs() == {1: 1}

    in_virtual_time(setting, test)


def test_a_client_that_is_gone_for_good_leaves_no_running_call_behind() -> None:
    async def test(both: Setting) -> None:
        with trio.move_on_after(0.5):
            await both.ledger.wait.options(retry=AGAIN)(1)
        await trio.sleep(1)
        assert await both.ledger.all_runs() == {1: 1}
        assert both.nothing_is_left()
        assert [
            invocation
            for cell in internals_of(both.there).cells.values()
            if not cell.system
            for invocation in cell.running
        ] == []

    in_virtual_time(setting, test)


def test_many_calls_at_once_survive_a_quarter_of_requests_and_of_answers_being_lost() -> None:
    async def test(both: Setting) -> None:
        for faults in (both.at_caller, both.at_actor):
            for point in ("request-lost", "reply-lost", "request-repeated", "in-flight"):
                faults.add(point, 0.25)
        answers: list[int] = []
        patient = attrs.evolve(AGAIN, max_retries=200)

        async def call(number: int) -> None:
            # So many failures use up any budget: here each caller insists.
            for _ in range(1000):
                try:
                    answers.append(await both.ledger.enter.options(retry=patient)(number))
                except OutcomeUnknownError:
                    unsure.add(number)
                else:
                    return

        unsure: set[int] = set()
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(call, number)
        both.at_caller.clear()
        both.at_actor.clear()
        runs = await both.ledger.all_runs()
        assert sorted(answers) == sorted(runs) == list(range(200))
        assert all(count == 1 for number, count in runs.items() if number not in unsure)

    in_virtual_time(setting, test)


def test_the_runtimes_own_calls_all_land_at_a_fifth_of_requests_and_answers_lost() -> None:
    async def test(both: Setting) -> None:
        for faults in (both.at_caller, both.at_actor):
            faults.add("request-lost", 0.2)
            faults.add("reply-lost", 0.2)
        ledgers: list[Ledger] = []

        async def spawn(number: int) -> None:
            where = ("here", "there")[number % 2]
            node = (both.here, both.there)[number // 2 % 2]
            ledgers.append(await node.options(name=f"ledger-{number}", on=where).spawn(Ledger))

        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(spawn, number)
        names = [f"ledger-{number}" for number in range(40)]
        hosted = [
            name
            for node in (both.here, both.there)
            for name, cell in internals_of(node).cells.items()
            if name in names
        ]
        assert sorted(hosted) == sorted(names)
        async with trio.open_nursery() as nursery:
            for ledger in ledgers:
                nursery.start_soon(both.there.stop, ledger)
        for node in (both.here, both.there):
            assert not [name for name in internals_of(node).cells if name in names]
            assert {member.name for member in node.members()} == {"here", "there"}

    in_virtual_time(setting, test)


def test_retries_stay_within_a_tenth_of_the_load_while_everything_fails() -> None:
    async def test(both: Setting) -> None:
        lost = both.at_caller.add("request-lost", method="enter")
        policy = attrs.evolve(AGAIN, max_retries=3, attempt_timeout=0.05)
        offered = 150
        for number in range(offered):
            with pytest.raises(CallTimeoutError):
                await both.ledger.enter.options(retry=policy)(number)
        assert offered <= lost.struck <= 1.1 * offered

    in_virtual_time(setting, test)


def test_the_last_error_of_used_up_retries_names_every_attempt() -> None:
    async def test(both: Setting) -> None:
        full = await both.here.options(on="there", mailbox_limit=1).spawn(Ledger)
        policy = RetryPolicy(max_retries=2, initial_delay=0.01)
        async with trio.open_nursery() as nursery:
            blocked = await both.here.options(on="there").spawn(Blocked)
            nursery.start_soon(blocked.block)
            await blocked.is_blocked()
            await blocked.fill.send()
            small = await both.here.options(on="there", mailbox_limit=1).spawn(Blocked)
            nursery.start_soon(small.block)
            await small.is_blocked()
            await small.fill.send()
            with pytest.raises(MailboxFullError) as caught:
                await small.fill.options(retry=policy)()
            await blocked.unblock()
            await small.unblock()
        error = caught.value
        assert error.attempts == 3
        assert isinstance(error.__cause__, MailboxFullError)
        text = str(error)
        assert "3 attempts (retries used up)" in text
        for attempt in (1, 2, 3):
            assert f"attempt {attempt}, after 0.0" in text
        assert error.method == "fill"
        assert error.node == "there"
        await both.here.stop(full)

    in_virtual_time(setting, test)


class Late(Actor):
    """Its method takes a second, and raises until it was called as often as it says."""

    def __init__(self) -> None:
        self.runs = 0

    @method
    async def answer(self, at: int) -> int:
        self.runs += 1
        await trio.sleep(1)
        if self.runs < at:
            raise LookupError(self.runs)
        return self.runs


@pytest.mark.parametrize("where", ["here", "there"])
def test_the_first_attempt_at_a_call_that_may_be_made_once_counts_as_one(where: str) -> None:
    async def test(both: Setting) -> None:
        late = await both.here.options(on=where).spawn(Late)
        policy = RetryPolicy(max_retries=2, initial_delay=0.5, jitter=0, retry_on=LookupError)
        answer = late.answer.options(retry=policy)
        began = trio.current_time()
        with pytest.raises(LookupError) as caught:
            await answer(9)
        assert trio.current_time() - began == pytest.approx(3 + 0.5 + 0.75, abs=0.2)
        history = "\n".join(caught.value.__notes__)
        for attempt in (1, 2, 3):
            assert f"attempt {attempt}, after 1.0" in history
        # Each attempt took a token, and each success gives a tenth back.
        budget = internals_of(both.here).caller.budget(late.name)
        assert budget.tokens == 7
        assert await answer(1) == 4
        assert budget.tokens == pytest.approx(7.1)
        assert await answer(6) == 6
        assert budget.tokens == pytest.approx(6.2)

    in_virtual_time(setting, test)


def test_a_timeout_of_a_call_that_may_be_made_once_counts_its_attempt() -> None:
    async def test(both: Setting) -> None:
        late = await both.here.options(on="there").spawn(Late)
        answer = late.answer.options(retry=RetryPolicy(initial_delay=0.1), timeout=0.5)
        with pytest.raises(CallTimeoutError) as caught:
            await answer(1)
        assert caught.value.attempts == 1
        assert both.nothing_is_left()

    in_virtual_time(setting, test)


class Blocked(Actor):
    """Takes its turn and keeps it until told otherwise."""

    def __init__(self) -> None:
        self.running = trio.Event()
        self.gate = trio.Event()

    @method
    async def block(self) -> None:
        self.running.set()
        await self.gate.wait()

    @method
    async def fill(self) -> None:
        pass

    @method(concurrent=True)
    async def is_blocked(self) -> None:
        await self.running.wait()

    @method(concurrent=True)
    async def unblock(self) -> None:
        self.gate.set()


async def test_faults_are_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDERSTUDY_FAULTS", "in-flight=1.0")
    async with open_node("here", secret=SECRET) as here:
        monkeypatch.delenv("UNDERSTUDY_FAULTS")
        async with open_node("there", join=here.address, secret=SECRET) as there:
            ledger = await there.spawn(Ledger)
            address = ledger.address
            await here.wait_for(2)
            with pytest.raises(ConnectionLostError, match="in flight"):
                await internals_of(here).endpoint.make_handle(address, Ledger).pay(1)
