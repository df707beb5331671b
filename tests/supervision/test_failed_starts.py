"""Supervisors whose own start fails after their children have started, or whose classes do not stop
them: the children are stopped, and no lookup waits for them.
"""

from __future__ import annotations

from typing import ClassVar

import pytest
import trio

from actors import Actor, ChildSpec, Ignore, Supervisor, method
from actors.errors import ActorNotFoundError, ActorNotNeededError, ActorStartError
from actors.supervision import ExitReason, RestartBackoff
from runtime import open_node
from runtime.node import internals_of
from runtime.supervision.orphans import Orphans
from tests.waiting import until

NODE = "n"


class Worker(Actor):
    stopped: ClassVar[list[str]] = []

    @method
    async def ping(self) -> str:
        return "pong"

    async def on_stop(self, reason: ExitReason) -> None:
        self.stopped.append(self.name)


CHILDREN = [ChildSpec.of(id, Worker) for id in "abc"]


class Failing(Supervisor):
    """Its own start fails after that of its children, as `way` says."""

    started: ClassVar[trio.Event]

    def __init__(self, way: str) -> None:
        super().__init__(CHILDREN)
        self.way = way

    async def on_start(self) -> None:
        await super().on_start()
        self.started.set()
        if self.way == "raises":
            raise ValueError("of the subclass")
        if self.way == "ignores":
            raise Ignore
        if self.way == "crashes":
            self.nursery.start_soon(self.crash)
        await trio.sleep_forever()

    async def crash(self) -> None:
        raise ValueError("of a task")


class Crashing(Supervisor):
    """Crashes when it is told to."""

    @method(concurrent=True)
    async def crash(self) -> None:
        self.nursery.start_soon(self.fail)

    async def fail(self) -> None:
        raise ValueError("of a task")


class Forgetful(Supervisor):
    """Its `on_stop` does not call that of the supervisor."""

    async def on_stop(self, reason: ExitReason) -> None:
        pass


@pytest.fixture(autouse=True)
def stopped() -> list[str]:
    Worker.stopped.clear()
    Failing.started = trio.Event()
    return Worker.stopped


@pytest.mark.parametrize(
    ("way", "error"), [("raises", ActorStartError), ("ignores", ActorNotNeededError)]
)
async def test_the_children_are_stopped_in_order(
    way: str, error: type[Exception], stopped: list[str]
) -> None:
    with trio.fail_after(60):
        async with open_node(NODE) as node:
            with pytest.raises(error):
                await node.options(name="s").spawn(Failing, way)
            assert stopped == ["s/c", "s/b", "s/a"]
            for name in ("s", "s/a", "s/b", "s/c"):
                with pytest.raises(ActorNotFoundError):
                    await node.lookup(name)


async def test_they_are_stopped_where_a_task_ends_the_start(stopped: list[str]) -> None:
    with trio.fail_after(60):
        async with open_node(NODE) as node:
            with pytest.raises(ActorStartError, match="of a task"):
                await node.options(name="s").spawn(Failing, "crashes")
            assert sorted(stopped) == ["s/a", "s/b", "s/c"]
            with pytest.raises(ActorNotFoundError):
                await node.lookup("s/a")


async def test_they_are_stopped_where_the_start_is_cancelled(stopped: list[str]) -> None:
    with trio.fail_after(60):
        async with open_node(NODE) as node:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(node.options(name="s").spawn, Failing, "waits")
                await Failing.started.wait()
                nursery.cancel_scope.cancel()
            assert sorted(stopped) == ["s/a", "s/b", "s/c"]
            with pytest.raises(ActorNotFoundError):
                await node.lookup("s/a")


@pytest.fixture
def no_orphans(monkeypatch: pytest.MonkeyPatch) -> None:
    """No node looks for children whose supervisor is gone: that is the last resort."""

    async def run(self: Orphans) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(Orphans, "run", run)


@pytest.mark.usefixtures("no_orphans")
async def test_they_are_stopped_where_the_start_of_the_whole_tree_is_cancelled(
    stopped: list[str],
) -> None:
    with trio.fail_after(60):
        async with open_node(NODE) as node:
            async with trio.open_nursery() as nursery:
                outer = [ChildSpec.of("s", Failing, "waits")]
                nursery.start_soon(node.options(name="o").spawn, Supervisor, outer)
                await Failing.started.wait()
                nursery.cancel_scope.cancel()
            await until(lambda: len(stopped) == 3, "all are stopped")
            for name in ("o", "o/s", "o/s/a"):
                with pytest.raises(ActorNotFoundError):
                    await node.lookup(name)


@pytest.mark.usefixtures("no_orphans")
async def test_they_are_stopped_where_a_crash_ends_the_supervisor_above_as_well(
    stopped: list[str],
) -> None:
    with trio.fail_after(60):
        async with open_node(NODE) as node:
            inner = ChildSpec.of("s", Crashing, CHILDREN)
            await node.options(name="o").spawn(Supervisor, [inner], intensity=0)
            await (await node.lookup("o/s", Crashing)).crash()
            await until(lambda: len(stopped) == 3, "all are stopped")
            for name in ("o", "o/s", "o/s/a"):
                with pytest.raises(ActorNotFoundError):
                    await node.lookup(name)


@pytest.mark.usefixtures("no_orphans")
async def test_they_live_on_where_the_supervisor_is_restarted_after_a_crash(
    stopped: list[str],
) -> None:
    with trio.fail_after(60):
        async with open_node(NODE) as node:
            backoff = RestartBackoff(initial_delay=1.0, max_delay=1.0)
            inner = ChildSpec.of("s", Crashing, CHILDREN)
            await node.options(name="o").spawn(Supervisor, [inner], backoff=backoff)
            first = await node.lookup("o/s", Crashing)
            await first.crash()
            # Longer than the looks that stop the children of one that is not restarted.
            await until(lambda: "o/s" not in internals_of(node).cells, "it has crashed")
            again = await node.lookup("o/s", Crashing)
            assert {one.state for one in await again.children()} == {"running"}
            assert stopped == []
            assert await (await node.lookup("o/s/a", Worker)).ping() == "pong"
        assert len(stopped) == 3


async def test_those_of_a_supervised_supervisor_are_stopped(
    stopped: list[str],
) -> None:
    with trio.fail_after(60):
        async with open_node(NODE) as node:
            with pytest.raises(ActorStartError, match="of the subclass"):
                await node.options(name="o").spawn(
                    Supervisor, [ChildSpec.of("s", Failing, "raises")]
                )
            assert stopped == ["o/s/c", "o/s/b", "o/s/a"]
            for name in ("o", "o/s", "o/s/a"):
                with pytest.raises(ActorNotFoundError):
                    await node.lookup(name)


async def test_a_failed_start_is_made_again_under_its_name(stopped: list[str]) -> None:
    with trio.fail_after(60):
        async with open_node(NODE) as node:
            with pytest.raises(ActorStartError):
                await node.options(name="s").spawn(Failing, "raises")
            await node.options(name="s").spawn(Supervisor, CHILDREN)
            assert await (await node.lookup("s/a", Worker)).ping() == "pong"


async def test_the_end_of_a_supervisor_that_stops_no_children_stops_them(
    stopped: list[str],
) -> None:
    with trio.fail_after(60):
        async with open_node(NODE) as node:
            supervisor = await node.options(name="s").spawn(Forgetful, CHILDREN)
            await node.stop(supervisor)
            assert sorted(stopped) == ["s/a", "s/b", "s/c"]
            with pytest.raises(ActorNotFoundError):
                await node.lookup("s/a")
