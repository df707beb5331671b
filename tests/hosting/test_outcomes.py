"""Every call has one outcome: also of an actor that ends while its node's lease is in doubt, and of
a method that is still running when its node has left.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from actors import Actor, RetryPolicy, method
from actors.errors import ActorDiedError, CallError, RemoteError
from actors.method import Address
from actors.supervision import ExitReason
from runtime.calls.dedup_table import CallRecord, DedupTable
from runtime.hosting.cell import ActorCell, Invocation
from runtime.node import internals_of
from tests.live_pair import Pair
from tests.waiting import until


class Slow(Actor):
    @method
    async def work(self) -> str:
        return "done"

    @method(idempotent=True)
    async def wait(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("raised as it is cancelled")


class Careless(Actor):
    """Leaves a nursery open in which a task fails."""

    @method
    async def leave_open(self) -> None:
        nursery = await trio.open_nursery().__aenter__()
        nursery.start_soon(self._fail)
        await trio.sleep_forever()

    async def _fail(self) -> None:
        raise LookupError("in the nursery")

    @method
    async def work(self) -> str:
        return "done"


class Service(Actor):
    """A service of the runtime that runs code of users."""

    @method(concurrent=True)
    async def run(self) -> None:
        raise SystemExit(2)

    @method(concurrent=True)
    async def numbers(self) -> AsyncIterator[int]:
        yield 1
        raise SystemExit(2)

    @method
    async def in_turn(self, error: bool) -> str:
        if error:
            raise SystemExit(2)
        return "goes on"


async def test_no_service_of_the_runtime_ends_by_what_user_code_raises(
    pair: Pair, where: str
) -> None:
    hosting = pair.here if where == "here" else pair.there
    internals_of(hosting).endpoint.host.add_system("@service", Service())
    service = internals_of(pair.here).endpoint.system_handle(
        Service, "@service", hosting.name, hosting.incarnation
    )
    with trio.fail_after(60):
        with pytest.raises(RemoteError, match="SystemExit: 2"):
            await service.run()
        with pytest.raises(RemoteError, match="SystemExit: 2"):
            await service.in_turn(True)
        with pytest.raises(RemoteError, match="SystemExit: 2"):
            assert [number async for number in service.numbers()] == []
        assert await service.in_turn(False) == "goes on"


async def test_a_method_that_its_own_open_nursery_cancels_has_an_outcome(
    pair: Pair, where: str
) -> None:
    careless = await pair.here.options(on=where).spawn(Careless)
    with trio.fail_after(60):
        with pytest.raises(RuntimeError, match="has left a cancel scope or nursery open"):
            await careless.leave_open()
        assert await careless.work() == "done"


class Outcomes:
    """A sink that writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def value(self, invocation: Invocation, value: object) -> None:
        self.heard.append(value)

    def raised(self, invocation: Invocation, error: BaseException) -> None:
        self.heard.append(error)

    def refused(self, invocation: Invocation, error: CallError) -> None:
        self.heard.append(error)


def test_a_run_that_ends_after_its_actor_did_in_a_pause_is_reported_at_once() -> None:
    cell = ActorCell(Address("slow", "here", 1, 1, "", True), Slow(), 10)
    cell.constructed = True
    cell.started = True
    outcomes = Outcomes()
    invocation = Invocation(cell, Slow.__methods__["work"], (), {}, outcomes, None, 1, float("inf"))
    assert cell.offer(invocation, lambda: 0.0) is None
    assert cell.take() is invocation
    cell.begin(invocation)
    cell.paused = True
    assert cell.end(ExitReason("shutdown", "the node leaves")) == []
    assert outcomes.heard == []
    # The method has returned only now. No resume will come: what is held would be held for ever.
    cell.hold(invocation, lambda: outcomes.value(invocation, "done"))
    cell.finish(invocation, None)
    (error,) = outcomes.heard
    assert isinstance(error, ActorDiedError), "in doubt, another node may have had the name by then"
    cell.check_invariants()


async def test_a_method_that_runs_when_its_node_has_left_has_one_outcome(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[int] = []
    on_answered = DedupTable.on_answered

    def counted(
        records: DedupTable[Invocation], record: CallRecord[Invocation], *rest: Any, **more: Any
    ) -> None:
        answers.append(record.number)
        on_answered(records, record, *rest, **more)

    monkeypatch.setattr(DedupTable, "on_answered", counted)
    slow = await pair.here.options(name="slow", on="there").spawn(Slow)
    ended: list[BaseException] = []

    async def call() -> None:
        try:
            await slow.wait.options(retry=RetryPolicy(max_retries=1))()
        except CallError as error:
            ended.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        host = internals_of(pair.there).host
        await until(lambda: host.cells["slow"].running, "the method runs")
        (invocation,) = host.cells["slow"].running
        assert isinstance(invocation.link.record, CallRecord)
        number = invocation.link.record.number
        assert invocation.runner is not None
        host.close()
        # It raises as it is cancelled, before its caller can say that it needs no answer any more.
        invocation.runner.cancel()
        await until(lambda: ended, "the caller hears of it")
        await until(lambda: invocation.runner is None, "the method has ended")
    assert answers.count(number) == 1
    assert isinstance(ended[0], ActorDiedError)
