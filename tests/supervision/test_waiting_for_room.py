"""What waits for room is tried as soon as there is some, and not when its back-off is over, which
takes for ever in these tests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import actors.restart_intensity
import runtime.pools.start_pause
from actors import Actor, ChildSpec, DynamicSupervisor, Supervisor, method
from actors.options import SpawnOptions
from actors.supervision import RestartBackoff
from runtime import open_node
from runtime.environment import SystemEnvironment
from runtime.node import Node, internals_of
from runtime.supervision.room import AGAIN_SECONDS, RoomQueue
from runtime.testing import Platform
from runtime.timings import Timings
from tests.waiting import until

SECRET = "a secret for the tests of those that wait"
GPU = {"gpu": 1.0}
LONG = 600.0
PATIENCE = 20.0


class Quiet(Actor):
    pass


class Model(Actor):
    @method(concurrent=True)
    async def where(self) -> str:
        return self.node.name


@pytest.fixture(autouse=True)
def _long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = RestartBackoff(initial_delay=LONG, backoff=1.0, max_delay=LONG, jitter=0.0)
    monkeypatch.setattr(actors.restart_intensity, "PLACEMENT_BACKOFF", slow)
    monkeypatch.setattr(runtime.pools.start_pause, "FIRST_PAUSE", LONG)
    monkeypatch.setattr(runtime.pools.start_pause, "LONGEST_PAUSE", LONG)


class Room:
    """A node whose GPU a guest has, and others with a GPU each that come and go."""

    def __init__(self, here: Node, stack: AsyncExitStack) -> None:
        self.here = here
        self._stack = stack
        self.guest: Any = None

    async def join(self, name: str) -> Node:
        node = await self._stack.enter_async_context(
            open_node(name, join=self.here.address, secret=SECRET, resources=GPU)
        )
        await self.here.wait_for(len(self.here.members()))
        return node

    async def give(self, way: str) -> None:
        """Let there be room for one more."""
        if way == "freed":
            await self.here.stop(self.guest)
        else:
            await self.join("late")


@asynccontextmanager
async def full_room() -> AsyncIterator[Room]:
    # A first start that finds no room fails at once, and the pool pauses.
    platform = Platform(environment=SystemEnvironment(Timings(first_placement=1e-9)))
    async with (
        open_node("here", secret=SECRET, resources=GPU, platform=platform) as here,
        AsyncExitStack() as stack,
    ):
        found = Room(here, stack)
        found.guest = await here.options(on="here", resources=GPU).spawn(Quiet)
        yield found


Start = Callable[[Room, Node], Any]
SPEC = ChildSpec.of("model", Model).changed(resources=GPU)


async def started_as_child(room: Room, there: Node, strategy: Any = "one-for-one") -> str:
    options = room.here.options(name="top")
    await options.spawn(Supervisor, [SPEC], intensity=10, strategy=strategy)
    return "top/model"


async def started_as_dynamic_child(room: Room, there: Node) -> str:
    top = await room.here.options(name="top").spawn(DynamicSupervisor)
    return str((await top.start_child(SPEC)).name)


async def started_as_singleton(room: Room, there: Node) -> str:
    for node in (there, room.here):
        await node.options(name="model", resources=GPU).singleton(Model)
    return "model"


WAYS: dict[str, Start] = {
    "a child": started_as_child,
    "a child of a group": lambda room, there: started_as_child(room, there, "one-for-all"),
    "a dynamic child": started_as_dynamic_child,
    "a singleton": started_as_singleton,
}


@pytest.mark.parametrize(
    ("what", "way"),
    [*((what, "freed") for what in WAYS), *((what, "joined") for what in WAYS if "child" in what)],
)
async def test_what_lost_its_node_is_started_when_there_is_room(what: str, way: str) -> None:
    async with full_room() as room:
        here = room.here
        async with open_node("there", join=here.address, secret=SECRET, resources=GPU) as there:
            await here.wait_for(2)
            name = await WAYS[what](room, there)
            model: Any = await here.lookup(name)
            assert await model.where() == "there"
        await waits(here)
        await room.give(way)
        with trio.fail_after(PATIENCE):
            assert await (await here.lookup(name, Model)).where() != "there"


async def waits(node: Node) -> None:
    """Wait until something on the node waits for room."""
    queue = internals_of(node).spawner.room
    await until(lambda: len(queue) > 0, "it waits for room")


@pytest.mark.parametrize("way", ["freed", "joined"])
async def test_a_member_of_a_pool_is_started_when_there_is_room(way: str) -> None:
    async with full_room() as room:
        await room.join("there")
        pool = await room.here.pool(None, Model, size=2, resources=GPU)
        await waits(room.here)
        await room.give(way)
        with trio.fail_after(PATIENCE):
            await pool.ready(2)


@pytest.mark.parametrize("kind", [Supervisor, DynamicSupervisor])
async def test_a_child_that_is_stopped_while_it_waits_holds_up_nobody(kind: Any) -> None:
    async with full_room() as room:
        here = room.here
        queue = internals_of(here).spawner.room
        arguments: list[Any] = [[]] if kind is Supervisor else []
        top = await here.options(name="top", on="here").spawn(kind, *arguments)
        async with open_node("one", join=here.address, secret=SECRET, resources=GPU):
            await here.wait_for(2)
            await top.start_child(attrs.evolve(SPEC, id="second"))
            async with open_node("two", join=here.address, secret=SECRET, resources=GPU):
                await here.wait_for(3)
                await top.start_child(attrs.evolve(SPEC, id="first"))
            await until(lambda: len(queue) == 1, "the first one waits")
        await until(lambda: len(queue) == 2, "the second one waits behind it")
        await top.stop_child("first")
        await room.give("freed")
        with trio.fail_after(PATIENCE):
            assert await (await here.lookup("top/second", Model)).where() == "here"


@pytest.mark.parametrize("what", ["a child", "a dynamic child"])
async def test_a_node_that_has_less_room_than_is_seen_is_not_asked_again_and_again(
    what: str,
) -> None:
    """Its refusal is no change after which there may be more room."""
    async with full_room() as room:
        here = room.here
        # As of an actor that was stopped while its constructor ran, and whose code goes on.
        hidden = internals_of(await room.join("hidden")).endpoint.host.allocations
        assert hidden.take("what no node sees", GPU) is not None
        async with open_node("there", join=here.address, secret=SECRET, resources=GPU) as there:
            await here.wait_for(3)
            name = await WAYS[what](room, there)
            model: Any = await here.lookup(name)
            assert await model.where() == "there"
        await waits(here)
        await room.give("freed")
        with trio.fail_after(PATIENCE):
            assert await (await here.lookup(name, Model)).where() == "here"


async def test_those_that_wait_are_looked_at_once_for_all_that_is_given_back_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For each, the death of a node with many names would hold up the loop for minutes."""
    async with full_room() as room, trio.open_nursery() as nursery:
        placement = internals_of(room.here).spawner._placement
        queue, looks = placement.room, list[SpawnOptions]()
        nursery.start_soon(queue.wait, asking(gpu=2), 0, LONG)
        await until(lambda: len(queue) == 1, "it waits")
        monkeypatch.setattr(queue, "_fits", looks.append)
        (member,) = room.here.members()
        before = queue.changes
        for number in range(1000):
            with placement.starting(asking(gpu=0).changed(name=f"short-{number}"), member):
                pass
        assert queue.changes == before + 1000
        await until(lambda: looks != [], "it is looked at")
        assert len(looks) < 10
        nursery.cancel_scope.cancel()


async def test_a_wait_whose_time_is_over_before_it_begins_ends_at_once() -> None:
    """Under load the time of the next attempt may have passed when its task runs first."""
    async with full_room() as room:
        spawner = internals_of(room.here).spawner
        for seconds in (-1.0, 0.0):
            for options in (asking(gpu=1), SpawnOptions(labels={"rack": "7"})):
                assert not await spawner.wait_for_room(options, spawner.room.changes, seconds)
        assert len(spawner.room) == 0


def queue(*free: SpawnOptions) -> tuple[RoomQueue, list[SpawnOptions]]:
    """A queue, and the options for which there is room."""
    found = list(free)
    return RoomQueue(lambda options: options in found), found


def asking(**resources: float) -> SpawnOptions:
    return SpawnOptions(resources=resources)


async def test_of_those_that_ask_for_the_same_one_is_let_in_after_the_other(
    autojump_clock: trio.testing.MockClock,
) -> None:
    room, free = queue()
    let_in: list[str] = []

    async def wait(name: str, options: SpawnOptions) -> None:
        assert await room.wait(options, 0, LONG)
        let_in.append(name)

    async with trio.open_nursery() as nursery:
        for name in ("first", "second"):
            nursery.start_soon(wait, name, asking(gpu=1))
            await trio.sleep(1)
        nursery.start_soon(wait, "large", asking(gpu=2))
        await trio.sleep(1)
        room.check_invariants()
        room.on_changed()
        await trio.testing.wait_all_tasks_blocked()
        assert let_in == []
        free.append(asking(gpu=1))
        room.on_changed()
        await trio.testing.wait_all_tasks_blocked()
        assert let_in == ["first"]
        # It has its place, and there is room beside it.
        room.let_in()
        await trio.testing.wait_all_tasks_blocked()
        assert let_in == ["first", "second"]
        free[:] = [asking(gpu=2)]
        room.let_in()
        await trio.testing.wait_all_tasks_blocked()
        assert let_in == ["first", "second", "large"]
        room.check_invariants()
        assert len(room) == 0


async def test_what_changed_during_the_attempt_is_not_missed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    room, _ = queue(asking(gpu=1))
    before = room.changes
    room.on_changed()
    began = trio.current_time()
    assert await room.wait(asking(gpu=1), before, LONG)
    assert trio.current_time() - began == pytest.approx(AGAIN_SECONDS)
    # The node that was asked has the last word: it is not asked again before something changes.
    assert not await room.wait(asking(gpu=1), room.changes, LONG)
    assert trio.current_time() - began == pytest.approx(AGAIN_SECONDS + LONG)


async def test_a_wait_that_is_cancelled_leaves_nothing_and_holds_up_nobody(
    autojump_clock: trio.testing.MockClock,
) -> None:
    room, free = queue()
    with trio.move_on_after(1):
        await room.wait(asking(gpu=1), 0, LONG)
    assert len(room) == 0
    let_in = list[bool]()

    async def wait() -> None:
        let_in.append(await room.wait(asking(gpu=1), 0, LONG))

    async with trio.open_nursery() as nursery, trio.open_nursery() as first:
        first.start_soon(wait)
        await trio.sleep(1)
        nursery.start_soon(wait)
        await trio.sleep(1)
        free.append(asking(gpu=1))
        # In one pass: the one that is let in is cancelled already, and the next one follows.
        first.cancel_scope.cancel()
        room.on_changed()
    assert trio.current_time() < LONG
    assert let_in == [True]
    free.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(room.wait, asking(gpu=1), 0, LONG)
        await trio.sleep(1)
        free.append(asking(gpu=1))
        room.on_changed()
    assert trio.current_time() < LONG
