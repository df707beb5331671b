"""Calls that the doors make without a task of trio's: which these are, that their outcomes are
those of any call, and that cancelling and closing end them where they run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest

from actors import RetryPolicy, call_context
from actors.errors import (
    CallTimeoutError,
    EncodeError,
    NodeDiedError,
    OutcomeUnknownError,
    RemoteError,
)
from runtime import aio
from runtime.blocking import (
    Blocking,
    BlockingCluster,
    BlockingLocalCluster,
    connect,
    fail_after,
    open_local_cluster,
)
from runtime.doors import connections
from runtime.doors.handoff import Handoff
from runtime.doors.portal import Request
from runtime.node import internals_of
from runtime.statistics.call_statistics import BUSY_GAPS, CallStatistics, MethodStatistics
from tests.doors.actors_used import Counter
from tests.doors.test_handoff import AlwaysOn

pytestmark = pytest.mark.cluster


@pytest.fixture(params=[Handoff, AlwaysOn])
def connection(
    cluster: BlockingLocalCluster, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[BlockingCluster]:
    """A connection of the test's own; also one whose loop waits for the next request after each."""
    monkeypatch.setattr(connections, "Handoff", request.param)
    with connect(cluster.address) as opened:
        yield opened


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each request that a task runs."""
    found: list[str] = []
    run = Request.run

    async def noted(request: Request[object], begun: Callable[[], None]) -> None:
        found.append(repr(request.function))
        await run(request, begun)

    monkeypatch.setattr(Request, "run", noted)
    return found


@pytest.fixture
def known(connection: BlockingCluster, counter: Blocking[Counter]) -> Blocking[Counter]:
    """A handle that has found its actor."""
    handle: Blocking[Counter] = connection.handle(counter)
    handle.read()
    handle.add(0)
    return handle


def test_a_plain_call_takes_no_task(known: Blocking[Counter], tasks: list[str]) -> None:
    assert [known.add(1) for _ in range(100)] == list(range(1, 101))
    assert known.add.future(1).result(timeout=30) == 101
    assert known.add.options(timeout=30.0)(1) == 102
    assert not tasks


def test_calls_that_only_a_task_can_make_are_given_one(
    known: Blocking[Counter], tasks: list[str]
) -> None:
    uses: list[Callable[[], object]] = [
        lambda: known.read.options(retry=RetryPolicy())(),
        lambda: known.add.send(1),
        lambda: known.add.remote(1),
        lambda: next(known.count(3)),
    ]
    for use in uses:
        tasks.clear()
        use()
        assert tasks, use
    tasks.clear()
    with fail_after(30):
        known.read()
    assert len(tasks) == 1


def test_asyncio_calls_take_no_task(
    cluster: BlockingLocalCluster, counter: Blocking[Counter], tasks: list[str]
) -> None:
    async def main() -> list[int]:
        async with aio.connect(cluster.address) as opened:
            handle: Any = opened.handle(counter)
            await handle.add(0)
            tasks.clear()
            found = await asyncio.gather(*(handle.add(1) for _ in range(100)))
            assert not tasks
            return found

    assert sorted(asyncio.run(main())) == list(range(1, 101))


def test_errors_are_those_of_any_call(
    known: Blocking[Counter], connection: BlockingCluster, tasks: list[str]
) -> None:
    with pytest.raises(RemoteError) as caught:
        known.fail("so")
    assert isinstance(caught.value, ValueError)
    with pytest.raises(EncodeError, match="amount"):
        known.add(object())  # type: ignore[arg-type]
    assert isinstance(known.add.future(object()).exception(timeout=30), EncodeError)  # type: ignore[arg-type]
    with pytest.raises(CallTimeoutError):
        known.hang.options(timeout=0.2)("late")
    assert known.wait_for("late cancelled")
    assert connection._door.session.portal.calls == 0
    assert known.read() == 0


def test_a_cancelled_one_is_cancelled_where_it_runs(
    known: Blocking[Counter], connection: BlockingCluster, tasks: list[str]
) -> None:
    futures = [known.hang.future(f"hang {number}") for number in range(10)]
    for number, future in enumerate(futures):
        assert known.wait_for(f"hang {number} begun")
        assert future.cancel()
        assert known.wait_for(f"hang {number} cancelled")
        with pytest.raises(CancelledError):
            future.result()
    assert not tasks
    assert connection._door.session.portal.calls == 0


def test_closing_the_connection_ends_those_under_way(
    known: Blocking[Counter], connection: BlockingCluster, counter: Blocking[Counter]
) -> None:
    futures = [known.hang.future(f"hang {number}") for number in range(10)]
    assert counter.wait_for("hang 9 begun")
    assert connection._door.session.portal.calls == 10
    connection.close()
    for number, future in enumerate(futures):
        assert isinstance(future.exception(timeout=30), OutcomeUnknownError)
        assert counter.wait_for(f"hang {number} cancelled")


def test_an_actor_that_has_moved_is_found_again(
    cluster: BlockingLocalCluster, known: Blocking[Counter], tasks: list[str]
) -> None:
    cluster.stop(known)
    cluster.options(name=known.name, on="worker-1").spawn(Counter, 7)
    # The first is refused, because that epoch has ended, and a task makes it again.
    assert known.add(1) == 8
    assert known.add(1) == 9


def test_the_order_of_a_thread_holds_between_calls_with_and_without_tasks(
    known: Blocking[Counter], tasks: list[str]
) -> None:
    known.append("0")
    known.append("1")
    tasks.clear()
    futures = []
    for number in range(2, 300, 3):
        futures.append(known.append.future(str(number)))
        known.append.send(str(number + 1))
        futures.append(known.append.options(retry=RetryPolicy()).future(str(number + 2)))
    for future in futures:
        future.result(timeout=30)
    assert tasks
    assert [int(word) for word in known.noted_words()] == list(range(302))


def test_the_call_context_travels(known: Blocking[Counter], tasks: list[str]) -> None:
    with call_context.having(tenant="blue"):
        assert known.told("tenant") == "blue"
        known.told("tenant")
        tasks.clear()
        assert known.told("tenant") == "blue"
        assert known.told.future("tenant").result(timeout=30) == "blue"
    assert not tasks


def test_they_are_counted_like_others(
    connection: BlockingCluster, known: Blocking[Counter]
) -> None:
    statistics = CallStatistics()
    node = connection._door.node

    def measure(on: CallStatistics | None) -> None:
        connection._door.now(lambda: internals_of(node).endpoint.measure(on))

    def counted(method: str) -> MethodStatistics:
        return next(one for one in statistics if one.method == method)

    measure(statistics)
    for _ in range(500):
        known.add(1)
    for _ in range(3):
        with pytest.raises(RemoteError):
            known.fail("so")
        future = known.hang.future("hang")
        assert known.wait_for("hang begun")
        future.cancel()
        with pytest.raises(EncodeError):
            known.total(object())  # type: ignore[arg-type]
        with pytest.raises(CallTimeoutError):
            known.hang.options(timeout=0.05)("late")
    measure(None)
    assert counted("add").value == 500
    # Those since the last one that was timed are not in the histogram yet.
    assert 500 - max(BUSY_GAPS) <= counted("add").client.count <= 500
    assert counted("fail").raised == 3
    assert counted("hang").cancelled == 3
    assert counted("hang").unknown == {"CallTimeoutError": 3}
    assert counted("total").not_executed == {"EncodeError": 3}


def test_the_death_of_the_node_ends_them() -> None:
    with open_local_cluster(1) as cluster, connect(cluster.address) as connection:
        counter = cluster.options(on="worker-1").spawn(Counter)
        handle: Blocking[Counter] = connection.handle(counter)
        handle.read()
        futures = [handle.hang.future("hang") for _ in range(5)]
        assert handle.wait_for("hang begun")
        cluster.processes["worker-1"].kill()
        for future in futures:
            assert isinstance(future.exception(timeout=60), NodeDiedError)
        assert connection._door.session.portal.calls == 0
