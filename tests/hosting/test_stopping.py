"""How actors end."""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import MockClock

from actors import Actor, method
from actors.errors import ActorNotFoundError, NotAMemberError
from actors.supervision import ExitReason
from runtime import Node, open_node
from runtime.hosting.orderly_stop import STOP_SECONDS
from runtime.node import internals_of
from runtime.store.embedded_store import EmbeddedStore
from runtime.testing import Faults, Platform
from runtime.timings import Timings
from tests.live_pair import open_pair
from tests.memory_network import MemoryNetwork
from tests.scheduling import SeededEnvironment
from tests.waiting import until

SECRET = "a secret of these tests"


class Suicidal(Actor):
    """Stops itself."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    @method
    async def finish(self) -> str:
        await self.node.stop(self.handle, reason="finished")
        return "the last word"

    async def on_stop(self, reason: ExitReason) -> None:
        self.ended.append(reason.text)


class Restless(Actor):
    """Has a task that is woken as the actor ends, and that begins another one then."""

    def __init__(self) -> None:
        self.looks = trio.Event()
        self.ending = trio.Event()
        self.begun: list[str] = []

    async def on_start(self) -> None:
        self.nursery.start_soon(self.look)

    @method
    async def finish(self) -> None:
        self.nursery.start_soon(self.exit)

    async def exit(self) -> None:
        self.ending.set()
        raise SystemExit(0)

    async def look(self) -> None:
        self.looks.set()
        await self.ending.wait()
        self.begun.append("to begin another one")
        self.nursery.start_soon(self.tidy)

    async def tidy(self) -> None:
        self.begun.append("the other one")
        await trio.sleep_forever()


async def test_a_task_that_begins_another_one_when_its_actor_ends_is_no_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_node("alone", secret=SECRET) as node:
        with trio.fail_after(60):
            actor = await node.spawn(Restless)
            (instance,) = (
                cell.instance
                for cell in internals_of(node).cells.values()
                if isinstance(cell.instance, Restless)
            )
            await instance.looks.wait()
            await actor.finish()
            await until(lambda: instance.begun, "the task that is woken has gone on")
    assert instance.begun == ["to begin another one"]
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
    with pytest.raises(RuntimeError, match="has ended; it can start no more tasks"):
        instance.nursery.start_soon(instance.tidy)


@pytest.mark.parametrize("named", [True, False])
async def test_an_actor_may_stop_itself_and_still_answer(named: bool) -> None:
    async with open_node("alone", secret=SECRET) as node:
        with trio.fail_after(60):
            actor = await node.options(name="suicidal" if named else None).spawn(Suicidal)
            (instance,) = (
                cell.instance
                for cell in internals_of(node).cells.values()
                if isinstance(cell.instance, Suicidal)
            )
            address = actor.address
            assert await actor.finish() == "the last word"
            await internals_of(node).spawner.watch_address(address)
            assert instance.ended == ["finished"]
            with pytest.raises(ActorNotFoundError):
                await actor.finish()


@pytest.mark.parametrize("named", [True, False])
async def test_a_spawn_that_is_cancelled_while_its_answer_is_on_the_way_leaves_no_actor_behind(
    named: bool,
) -> None:
    lost = Faults()
    lost.add("reply-lost", method="spawn")
    async with open_pair(there=Platform(faults=lost)) as pair:
        here, there = pair.here, pair.there

        def hosted() -> list[str]:
            return [name for name, cell in internals_of(there).cells.items() if not cell.system]

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    here.options(on="there", name="lost" if named else None).spawn, Suicidal
                )
                await until(hosted, "it has started")
                nursery.cancel_scope.cancel()
            await until(lambda: not hosted(), "it is gone")
            lost.clear()
            again = await here.options(on="there", name="lost" if named else None).spawn(Suicidal)
            assert await again.finish() == "the last word"


class Slow(Actor):
    """Takes its time to stop."""

    def __init__(self, seconds: float, ended: list[str]) -> None:
        self.seconds = seconds
        self.ended = ended

    async def on_stop(self, reason: ExitReason) -> None:
        await trio.sleep(self.seconds)
        self.ended.append(self.name)


COUNT = 20
"""Actors, which one after the other would take far longer than a node has to leave."""


@pytest.mark.parametrize("slow", ["on_stop", "the store"])
def test_a_node_ends_in_its_time_and_whole_however_long_its_actors_take(
    slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    timings = Timings()
    away = False

    async def silent(store: EmbeddedStore, *arguments: object, **others: object) -> object:
        if away:
            await trio.sleep_forever()
        return await transaction(store, *arguments, **others)  # type: ignore[arg-type]

    transaction = EmbeddedStore.transaction
    monkeypatch.setattr(EmbeddedStore, "transaction", silent)
    ended: list[str] = []

    async def main() -> Node:
        nonlocal away
        platform = Platform(
            environment=SeededEnvironment(random.Random(1)), network=MemoryNetwork()
        )
        async with open_node("alone", secret=SECRET, platform=platform) as node:
            for _ in range(COUNT):
                await node.spawn(Slow, 0.0, [])
            for number in range(COUNT):
                actor = await node.options(name=f"slow-{number}").spawn(Slow, 0.0, [])
                cell = internals_of(node).cells[actor.address.name]
                assert isinstance(cell.instance, Slow)
                # Set here: an argument would have been copied.
                cell.instance.ended = ended
                cell.instance.seconds = STOP_SECONDS * 0.9 if slow == "on_stop" else 0.0
            away = slow == "the store"
            began = trio.current_time()
        assert trio.current_time() - began <= timings.leaving
        # Half way closed, it would wait here for an answer that nobody gives.
        with trio.fail_after(1):
            with pytest.raises(NotAMemberError):
                await node.spawn(Slow, 0.0, [])
            with pytest.raises(NotAMemberError):
                await node.wait_ended(actor)
        return node

    node = trio.run(main, clock=MockClock(autojump_threshold=0))
    assert ended, "the first have stopped in order"
    assert not [cell for cell in internals_of(node).cells.values() if not cell.system]


def test_the_kind_of_an_end_is_said_once() -> None:
    # As `node.stop` gives it where its caller says nothing.
    assert str(ExitReason("stopped", "stopped")) == "stopped"
    assert str(ExitReason("stopped", "by the command line")) == "stopped: by the command line"
    assert str(ExitReason("idle")) == "idle"
