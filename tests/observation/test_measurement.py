"""The statistics of a node's calls, as its service `@inspection` gives them to a dashboard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from actors import Actor, method
from actors.errors import CallError, MailboxFullError, RemoteError
from runtime.node import Node, internals_of
from runtime.observation.inspection_service import inspection_of
from runtime.statistics.call_statistics import ALL_TIMED
from runtime.timings import Timings
from tests.live_pair import Pair
from tests.waiting import until


class Worker(Actor):
    """Does what is asked of it."""

    def __init__(self) -> None:
        self.go = trio.Event()

    @method
    async def work(self, number: int) -> int:
        return number

    @method
    async def fail(self) -> None:
        raise ValueError("on purpose")

    @method
    async def hang(self) -> None:
        await self.go.wait()

    @method(concurrent=True)
    async def let_go(self) -> None:
        self.go.set()

    @method
    async def count(self, items: int) -> AsyncIterator[int]:
        for item in range(items):
            yield item


async def ask(pair: Pair, of: Node) -> dict[str, dict[str, Any]]:
    """What a node says, by method, of this module's class."""
    told = await inspection_of(
        internals_of(pair.here).endpoint, of.name, of.incarnation
    ).statistics()
    return {one["method"]: one for one in told["methods"] if one["class"].endswith(":Worker")} | {
        "measured": told["measured"]
    }


async def test_calls_are_counted_on_both_sides_with_their_outcomes(pair: Pair, where: str) -> None:
    node = pair.here if where == "here" else pair.there
    for one in (pair.here, pair.there):
        await ask(pair, one)
    worker = await pair.here.options(on=where, mailbox_limit=1).spawn(Worker)
    for number in range(20):
        await worker.work(number)
    with pytest.raises(RemoteError):
        await worker.fail()
    await (await worker.work.remote(1)).fetch()
    assert [item async for item in worker.count(3)] == [0, 1, 2]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.hang)
        await until(lambda: bool(internals_of(node).cells[worker.address.name].running), "it runs")
        with trio.move_on_after(0.05):
            await worker.work(1)
        with pytest.raises(CallError):
            await worker.work.options(timeout=0.05)(1)
        nursery.start_soon(worker.work, 2)
        cell = internals_of(node).cells[worker.address.name]
        # The calls that were given up may still be in the mailbox, until room is needed.
        await until(
            lambda: (2,) in [invocation.args for invocation in cell.mailbox or ()], "one waits"
        )
        with pytest.raises(MailboxFullError):
            await worker.work(3)
        await worker.let_go()
    made = await ask(pair, pair.here)
    assert (made["work"]["value"], made["work"]["cancelled"]) == (22, 1)
    assert made["work"]["not_executed"]["MailboxFullError"] == 1
    assert sum(made["work"]["unknown"].values()) + sum(made["work"]["not_executed"].values()) == 2
    assert made["fail"]["raised"] == 1
    assert made["count"]["value"] == 1
    ran = await ask(pair, node)
    assert ran["fail"]["server_raised"] == 1
    # The runs after the first ones are counted when the next one is timed.
    assert ran["work"]["turn"]["count"] >= ALL_TIMED
    assert ran["hang"]["turn"]["sum"] >= 0.1
    assert ran["work"]["wait"]["sum"] > 0
    for one in (pair.here, pair.there):
        statistics = one._measurement.keep()
        statistics.check_invariants()


SOON_UNREAD = pytest.mark.parametrize("timings", [Timings(statistics_unread=0.05)], ids=["soon"])


@SOON_UNREAD
async def test_what_nobody_reads_is_not_measured(pair: Pair) -> None:
    caller, workers = internals_of(pair.here).caller, internals_of(pair.here).host.workers
    assert caller.statistics is None
    assert workers.statistics is None
    await ask(pair, pair.here)
    assert caller.statistics is not None
    await until(lambda: caller.statistics is None and workers.statistics is None, "it stops")
    worker = await pair.here.options(on="here").spawn(Worker)
    await worker.work(1)
    again = await ask(pair, pair.here)
    assert "work" not in again


@SOON_UNREAD
async def test_measuring_may_begin_and_end_while_calls_are_under_way(
    pair: Pair, where: str
) -> None:
    node = pair.here if where == "here" else pair.there
    worker = await pair.here.options(on=where).spawn(Worker)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.hang)
        nursery.start_soon(worker.work, 1)
        await until(lambda: bool(internals_of(node).cells[worker.address.name].running), "it runs")
        await ask(pair, node)
        nursery.start_soon(worker.work, 2)
        await worker.let_go()
    await until(lambda: internals_of(node).caller.statistics is None, "it stops")
    async with trio.open_nursery() as nursery:
        await ask(pair, node)
        nursery.start_soon(worker.work, 3)
        await until(lambda: internals_of(node).host.workers.statistics is None, "it stops again")
    assert await worker.work(4) == 4


async def test_a_call_on_one_node_is_counted_once(pair: Pair) -> None:
    statistics = pair.here._measurement.keep()
    worker = await pair.here.options(on="here").spawn(Worker)
    for number in range(500):
        await worker.work(number)
    one = statistics.known(worker.address, "work")
    assert one is not None
    assert one.value == 500
    # Its caller chooses for both ends which calls are timed: nothing is chosen where they run.
    assert one.arrived.left == 1
    assert ALL_TIMED <= one.turn.count == one.client.count <= 500
