"""Actors whose methods run under asyncio: the same calls, cancellation, deadlines, streams, hooks
and supervision as any, with operations that only asyncio has.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator

import pytest
import trio

from actors import ChildSpec, SpawnOptions, Supervisor
from actors.errors import (
    ActorDiedError,
    ActorNotFoundError,
    ActorStartError,
    CallTimeoutError,
    RemoteError,
)
from runtime import Node, open_local_cluster, open_node
from tests.doors.asyncio_actors_used import Ending, Further, Plain, Under
from tests.waiting import until

PATIENCE = 60.0


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    with trio.fail_after(PATIENCE):
        async with open_node() as opened:
            yield opened
    left = [one.name for one in threading.enumerate() if one.name.startswith("asyncio of")]
    assert left == []


async def has_noted(notes: Plain, word: str, times: int = 1) -> None:
    """Wait until a word was noted so many times."""
    await until(notes.noted, f"{word} is noted", lambda words: words.count(word) >= times)


async def test_methods_and_hooks_run_in_a_loop_of_asyncio(node: Node) -> None:
    notes = await node.spawn(Plain)
    under = await node.options(name="under").spawn(Under, notes)
    assert await under.where() == await under.hook_ran_in() == "asyncio"
    assert await under.fetch("text") == "TEXT"
    assert await under.in_thread() != "asyncio"
    assert await under.own(2) > 2
    await node.stop(under)
    assert await notes.noted() == ["stopped stopped asyncio"]


async def test_subclasses_extend_hooks_and_methods(node: Node) -> None:
    further = await node.spawn(Further)
    assert await further.where() == await further.hook_ran_in() == "asyncio further"
    assert await further.fetch("text") == "TEXT"


async def test_one_call_at_a_time(node: Node) -> None:
    under = await node.spawn(Under)
    sums: list[int] = []

    async def add() -> None:
        sums.append(await under.add(1))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(add)
    assert sorted(sums) == list(range(1, 21))


async def test_what_a_method_raises(node: Node) -> None:
    under = await node.spawn(Under)
    with pytest.raises(RemoteError, match="no way") as caught:
        await under.fail("no way")
    assert isinstance(caught.value, ValueError)
    assert await under.add(1) == 1


async def test_cancelling_the_caller_cancels_the_task_of_asyncio(node: Node) -> None:
    notes, under = await node.spawn(Plain), await node.spawn(Under)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(under.hang, notes)
        await has_noted(notes, "begun")
        nursery.cancel_scope.cancel()
    await has_noted(notes, "cancelled")
    with pytest.raises(CallTimeoutError):
        await under.hang.options(timeout=0.2)(notes)


async def test_cancellation_goes_through_it_to_what_it_calls(node: Node) -> None:
    notes, under = await node.spawn(Plain), await node.spawn(Under)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(under.hang_elsewhere, notes)
        await has_noted(notes, "hang begun")
        nursery.cancel_scope.cancel()
    await has_noted(notes, "hang cancelled")


async def test_deadlines_and_call_chains_go_through_it(node: Node) -> None:
    notes, under = await node.spawn(Plain), await node.spawn(Under)
    assert 0 < await under.seconds_left(notes) <= 30
    with pytest.raises(RemoteError, match=r"call cycle: .*ask_back -> .*back -> .*where"):
        await under.ask_back(notes)


async def test_streams(node: Node) -> None:
    notes, under = await node.spawn(Plain), await node.spawn(Under)
    assert [number async for number in under.count(100, notes)] == list(range(100))
    async with under.count(1_000_000, notes) as numbers:
        assert await anext(numbers) == 0
    numbers = under.count(13, notes)
    assert [await anext(numbers) for _ in range(13)] == list(range(13))
    with pytest.raises(RemoteError, match="thirteen"):
        await anext(numbers)
    await has_noted(notes, "count closed", 3)


async def test_what_it_asks_of_its_node(node: Node) -> None:
    notes = await node.spawn(Plain)
    under = await node.options(name="under").spawn(Under, notes)
    assert await under.children() == ["found", "under", node.name]
    await has_noted(notes, "ended under-child")
    assert await under.total(await node.put([1, 2, 3])) == 6
    assert await under.keep(4) == 4
    assert await under.map_items(20) == [item * item for item in range(20)]


async def test_a_task_of_its_own_that_raises_ends_it_and_its_supervisor_starts_it_again(
    node: Node,
) -> None:
    spec = ChildSpec(id="under", actor=Under, options=SpawnOptions(name="under"))
    await node.spawn(Supervisor, [spec])
    under = await node.lookup("under", Under)
    epoch = under.epoch
    await under.crash()
    await until(
        lambda: node.lookup("under", Under),
        "a new epoch of the actor",
        lambda found: found.epoch > epoch,
    )
    assert await under.fetch("again") == "AGAIN"


ENDS = {
    "stop": r"called loop\.stop\(\)",
    "callback": "ended by SystemExit: from a callback",
    "task": "ended by KeyboardInterrupt: from a task",
}


@pytest.mark.parametrize("way", ENDS)
async def test_an_actor_whose_loop_is_ended_by_other_code_ends(node: Node, way: str) -> None:
    ending = await node.spawn(Ending)
    assert await ending.hanging() == 0

    async def waits() -> None:
        with pytest.raises(ActorDiedError, match=ENDS[way]):
            await ending.hang()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(waits)
        await until(ending.hanging, "a call is under way", lambda calls: calls == 1)
        with pytest.raises(ActorDiedError, match=ENDS[way]):
            await ending.end(way)
    assert "raised" in str(await node.wait_ended(ending))
    with pytest.raises(ActorNotFoundError):
        await ending.hanging()


@pytest.mark.parametrize("way", ENDS)
async def test_a_stream_whose_loop_is_ended_by_other_code(node: Node, way: str) -> None:
    ending = await node.spawn(Ending)
    items = ending.stream(way)
    assert await anext(items) == 1
    with pytest.raises(ActorDiedError, match=ENDS[way]):
        await anext(items)


@pytest.mark.parametrize("way", ENDS)
async def test_a_loop_that_is_ended_in_on_start_fails_the_start(node: Node, way: str) -> None:
    with pytest.raises(ActorStartError, match=ENDS[way]):
        await node.spawn(Ending, way)


async def test_a_supervisor_starts_an_actor_again_whose_loop_was_ended(node: Node) -> None:
    await node.spawn(Supervisor, [ChildSpec(id="e", actor=Ending, options=SpawnOptions(name="e"))])
    ending = await node.lookup("e", Ending)
    with pytest.raises(ActorDiedError):
        await ending.end("stop")
    assert await ending.hanging() == 0


async def test_what_methods_raise_and_cancel_does_not_end_the_loop(node: Node) -> None:
    ending = await node.spawn(Ending)
    with pytest.raises(RemoteError, match="KeyboardInterrupt: from a method"):
        await ending.interrupt()
    with pytest.raises(RemoteError, match="CancelledError"):
        await ending.end("cancel")
    assert await ending.hanging() == 0
    # As of any actor.
    with pytest.raises(RemoteError, match="SystemExit: from a method"):
        await ending.exit()
    assert "raised" in str(await node.wait_ended(ending))


@pytest.mark.cluster
async def test_in_other_processes_and_when_these_are_killed() -> None:
    with trio.fail_after(PATIENCE):
        async with open_local_cluster(1) as cluster:
            options = cluster.node.options(on="worker-1")
            notes, under = await cluster.node.spawn(Plain), await options.spawn(Under)
            alone = await options.options(isolation="process").spawn(Under)
            assert await under.fetch("text") == await alone.fetch("text") == "TEXT"
            assert [number async for number in alone.count(3, notes)] == [0, 1, 2]
            async with trio.open_nursery() as nursery:

                async def caught() -> None:
                    with pytest.raises(ActorDiedError):
                        await alone.hang(notes)

                nursery.start_soon(caught)
                await has_noted(notes, "begun")
                await cluster.node.stop(alone)
            assert await under.where() == "asyncio"
