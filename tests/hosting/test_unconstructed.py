"""An instance whose constructor has not returned: constructors run in threads, and nothing of the
runtime asks such an instance for anything.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, ClassVar

import pytest
import trio
import trio.testing

from actors import Actor, ChildSpec, Supervisor, method
from actors.errors import ActorStartError
from actors.method import Address
from actors.supervision import ExitReason
from runtime import open_node
from runtime.hosting.host import ActorHost
from runtime.node import Node, internals_of
from runtime.observation.inspection_service import inspection_of
from runtime.pools.supervisor import PoolSupervisor
from runtime.supervision.spawner import ActorSpawner
from tests.waiting import until

SECRET = "a secret for the tests of constructors"
AS_ASKED = ExitReason("stopped", "as asked")
GATE = threading.Event()
BEGUN: list[str] = []
ASKED: list[str] = []


def hold(name: str) -> None:
    """Wait in a constructor until the test lets it go on."""
    BEGUN.append(name)
    assert GATE.wait(60)


class Member(Actor):
    """A member of a pool."""

    @method
    async def work(self, item: int) -> int:
        return item


class Delegating(Actor):
    """Passes what it lacks on to what its constructor makes, as many wrappers do."""

    def __init__(self) -> None:
        hold("delegating")
        self.inner = 1

    def __getattr__(self, name: str) -> Any:
        ASKED.append(name)
        return getattr(self.inner, name)

    # What `isinstance` reads of an instance of another class.
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        ASKED.append("__class__")
        return type(self)

    def on_inspect(self) -> object:
        ASKED.append("on_inspect")
        return self.inner

    async def on_stop(self, reason: ExitReason) -> None:
        ASKED.append("on_stop")

    @method
    async def read(self) -> int:
        return 1


class HeldSupervisor(Supervisor):
    """Its constructor waits."""

    def __init__(self) -> None:
        hold("supervisor")
        super().__init__([ChildSpec(id="child", actor=Member)])

    async def on_stop(self, reason: ExitReason) -> None:
        ASKED.append("on_stop")
        await super().on_stop(reason)


class LateSupervisor(Supervisor):
    """Waits before its children are started."""

    waits: ClassVar[trio.Event]
    goes_on: ClassVar[trio.Event]

    async def on_start(self) -> None:
        self.waits.set()
        await self.goes_on.wait()
        await super().on_start()


class WithTask(Actor):
    """Begins a task of its own in its constructor."""

    ended: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.nursery.start_soon(self.rest)
        hold("task")

    async def rest(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self.ended.append("task")

    async def on_stop(self, reason: ExitReason) -> None:
        ASKED.append("on_stop")


@pytest.fixture
async def alone() -> AsyncIterator[Node]:
    async with open_node("alone", secret=SECRET) as node:
        yield node


@pytest.fixture(autouse=True)
def gate() -> Iterator[None]:
    GATE.clear()
    BEGUN.clear()
    ASKED.clear()
    yield
    GATE.set()


def host_of(node: Node) -> ActorHost:
    return internals_of(node).host


async def refused(start: Callable[[], Awaitable[object]], errors: list[str]) -> None:
    """Keep the error of a start that fails."""
    try:
        await start()
    except ActorStartError as error:
        errors.append(str(error))


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno > logging.INFO]


async def test_lists_and_inspections_ask_an_instance_for_nothing_before_it_is_constructed(
    alone: Node,
) -> None:
    """Whatever the class has as `__getattr__` or `__class__`."""
    host = host_of(alone)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alone.options(name="one").spawn, Delegating)
            await until(lambda: BEGUN == ["delegating"], "its constructor runs")
            rows: Any = alone.status()["actors"]
            (row,) = rows
            assert (row["name"], row["started"]) == ("one", False)
            inspection = inspection_of(internals_of(alone).endpoint, alone.name, alone.incarnation)
            assert (await inspection.actor("one"))["started"] is False
            assert (await inspection.state("one"))["problem"].startswith("it is starting")
            await inspection.stacks("one")
            await inspection.overview()
            await alone.tree()
            assert isinstance(host.find("one", 0, "@items"), tuple)
            assert host.cells["one"].ready_instance is None
            assert ASKED == []
            GATE.set()
        assert host.cells["one"].ready_instance is host.cells["one"].instance


async def test_a_pool_that_is_being_constructed_is_listed_without_a_number_of_members(
    alone: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    construct = PoolSupervisor.__init__

    @functools.wraps(construct)
    def held(self: PoolSupervisor, spec: Any) -> None:
        hold("pool")
        construct(self, spec)

    monkeypatch.setattr(PoolSupervisor, "__init__", held)

    def row() -> Any:
        rows: Any = alone.status()["actors"]
        return next(one for one in rows if one["name"] == "images")

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(functools.partial(alone.pool, "images", Member, size=1))
            await until(lambda: BEGUN == ["pool"], "its constructor runs")
            assert row()["members"] is None
            await alone.tree()
            GATE.set()
        assert row()["members"] == 1


@pytest.mark.parametrize("cls", [Delegating, HeldSupervisor, WithTask])
async def test_an_actor_that_is_stopped_in_its_constructor_has_no_on_stop_and_ends_at_once(
    cls: type[Actor], alone: Node, caplog: pytest.LogCaptureFixture
) -> None:
    host, errors = host_of(alone), list[str]()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            spawn = functools.partial(alone.options(name="one").spawn, cls)
            nursery.start_soon(refused, spawn, errors)
            await until(lambda: len(BEGUN) == 1, "its constructor runs")
            await host.stop("one", 0, AS_ASKED)
            assert "one" not in host.cells, "its name is free while the constructor still runs"
    assert "ended while it was starting: stopped: as asked" in errors[0]
    assert "on_stop" not in ASKED
    assert warnings_of(caplog) == []
    assert WithTask.ended == (["task"] if cls is WithTask else [])
    WithTask.ended.clear()


async def test_a_supervisor_that_is_stopped_before_it_starts_its_children_starts_none(
    alone: Node, caplog: pytest.LogCaptureFixture
) -> None:
    host, errors = host_of(alone), list[str]()
    LateSupervisor.waits, LateSupervisor.goes_on = trio.Event(), trio.Event()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            children = [ChildSpec(id="child", actor=Member)]
            spawn = functools.partial(alone.options(name="late").spawn, LateSupervisor, children)
            nursery.start_soon(refused, spawn, errors)
            await LateSupervisor.waits.wait()
            await host.stop("late", 0, AS_ASKED)
    assert "ended while it was starting: stopped: as asked" in errors[0]
    assert [name for name, cell in host.cells.items() if not cell.system] == []
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("kind", ["stopped", "node left"])
async def test_a_supervisor_that_is_stopped_while_it_looks_for_its_children_ends(
    kind: Any, alone: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It reads the store for what an earlier epoch has left. Nothing of it waits for ever."""
    host, errors = host_of(alone), list[str]()
    looks, goes_on, stopped = trio.Event(), trio.Event(), list[object]()
    living = ActorSpawner.living

    async def held(self: ActorSpawner, *args: Any) -> Any:
        looks.set()
        await goes_on.wait()
        return await living(self, *args)

    monkeypatch.setattr(ActorSpawner, "living", held)

    async def stop() -> None:
        stopped.append(await host.stop("top", 0, ExitReason(kind, "as asked")))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            spawn = functools.partial(
                alone.options(name="top").spawn, Supervisor, [ChildSpec(id="child", actor=Member)]
            )
            nursery.start_soon(_ignore_errors, spawn, errors)
            await looks.wait()
            nursery.start_soon(stop)
            await trio.testing.wait_all_tasks_blocked()
            goes_on.set()
    assert stopped == [ExitReason(kind, "as asked")]
    assert len(errors) == 1
    assert [name for name, cell in host.cells.items() if not cell.system] == []
    assert warnings_of(caplog) == []


async def test_a_child_whose_start_ended_with_the_earlier_epoch_is_no_warning(
    alone: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The name was claimed, so that the next epoch adopts it; its node does not have the actor."""

    async def living(self: ActorSpawner, name: str, names: Sequence[str]) -> dict[str, Address]:
        return {one: Address(one, alone.name, alone.incarnation, 99, "", True) for one in names}

    monkeypatch.setattr(ActorSpawner, "living", living)
    caplog.set_level(logging.INFO)
    with trio.fail_after(60):
        child = ChildSpec(id="child", actor=Member, restart="temporary")
        await alone.options(name="top").spawn(Supervisor, [child])
        await until(lambda: "top/child has ended" in caplog.text, "its end is known")
    assert "no such actor" in caplog.text
    assert warnings_of(caplog) == []


async def _ignore_errors(start: Callable[[], Awaitable[object]], errors: list[str]) -> None:
    try:
        await start()
    except Exception as error:
        errors.append(str(error))
