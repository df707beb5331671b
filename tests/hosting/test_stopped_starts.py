"""An actor that is stopped while it starts: its start is cancelled, and no other one."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar

import pytest
import trio
import trio.testing

from actors import Actor
from actors.errors import ActorStartError
from actors.messages import import_path
from actors.options import SpawnOptions
from actors.supervision import ExitReason
from runtime import open_node
from runtime.hosting.actor_start import ActorStart
from runtime.hosting.host import ActorHost
from runtime.node import Node, internals_of
from tests.waiting import until

SECRET = "a secret for the tests of stopped starts"
AS_ASKED = ExitReason("stopped", "as asked")
ENDED = "ended while it was starting: stopped: as asked"


class Held(Actor):
    """The start of one of these numbers waits until it is cancelled."""

    held: ClassVar[set[int]] = set()
    begun: ClassVar[list[int]] = []

    def __init__(self, number: int) -> None:
        self.number = number

    async def wait(self) -> None:
        if self.number in self.held:
            self.begun.append(self.number)
            await trio.sleep_forever()


class HeldInConstructor(Held):
    gate: ClassVar[threading.Event] = threading.Event()

    def __init__(self, number: int) -> None:
        super().__init__(number)
        if number in self.held:
            self.begun.append(number)
            self.gate.wait()


class HeldInHook(Held):
    async def on_start(self) -> None:
        await self.wait()


class HeldInPlainHook(Held):
    gate: ClassVar[threading.Event] = threading.Event()

    def on_start(self) -> None:
        if self.number in self.held:
            self.begun.append(self.number)
            self.gate.wait()


class Swallows(Held):
    """It takes the cancellation for nothing, and waits again, which raises again."""

    async def on_start(self) -> None:
        for _ in range(2):
            try:
                await self.wait()
            except trio.Cancelled:  # noqa: ASYNC103
                continue  # noqa: ASYNC104


class MakesAnother(Held):
    async def on_start(self) -> None:
        try:
            await self.wait()
        except trio.Cancelled:
            raise ValueError("made of a cancellation") from None  # noqa: ASYNC104


HEEDING = [HeldInConstructor, HeldInHook, HeldInPlainHook]
KINDS = [*HEEDING, Swallows, MakesAnother]


@pytest.fixture
async def alone() -> AsyncIterator[Node]:
    async with open_node("alone", secret=SECRET) as node:
        yield node


@pytest.fixture(autouse=True)
def held() -> Iterator[None]:
    for cls in (HeldInConstructor, HeldInPlainHook):
        cls.gate.clear()
    Held.begun.clear()
    yield
    for cls in (HeldInConstructor, HeldInPlainHook):
        cls.gate.set()


def host_of(node: Node) -> ActorHost:
    return internals_of(node).host


class Series:
    """Starts of actors with these names, by one of the requests that make many."""

    def __init__(self, node: Node, cls: type[Actor], names: list[str]) -> None:
        endpoint = internals_of(node).endpoint
        self.service = endpoint.node_service(*endpoint.identity)
        self.path, self.names = import_path(cls), names
        self.rows = [(number,) for number in range(len(names))]
        self.failed: dict[str, str] = {}

    async def spawn_many(self) -> None:
        answer = await self.service.spawn_many(self.path, self.rows, self.names, SpawnOptions(), "")
        self._failed(answer[2])

    async def spawn_each(self) -> None:
        _, _, failures, unfinished = await self.service.spawn_each(
            self.path, self.rows, [], self.names, SpawnOptions(), "ticket"
        )
        self._failed(failures)
        async with trio.open_nursery() as nursery:
            for number in unfinished:
                nursery.start_soon(self._finish, number)

    def _failed(self, failures: list[Any]) -> None:
        self.failed.update((self.names[one.number], one.text) for one in failures)

    async def _finish(self, number: int) -> None:
        try:
            await self.service.finish_start("ticket", number)
        except ActorStartError as error:
            self.failed[self.names[number]] = str(error)


def started(host: ActorHost) -> set[str]:
    return {name for name, cell in host.cells.items() if cell.started and not cell.system}


@pytest.mark.parametrize("request_of", ["spawn_many", "spawn_each"])
@pytest.mark.parametrize("cls", KINDS)
async def test_one_of_many_is_stopped_and_the_others_start(
    alone: Node, cls: type[Held], request_of: str
) -> None:
    host, names = host_of(alone), [f"one-{number}" for number in range(100)]
    series = Series(alone, cls, names)
    Held.held = {0, 50, 99}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(getattr(series, request_of))
        await until(lambda: set(Held.begun) >= Held.held, "all that are held have begun")
        await until(lambda: len(started(host)) == 97, "the others have started")
        for number in Held.held:
            nursery.start_soon(host.stop, names[number], 0, AS_ASKED)
    assert set(series.failed) == {names[number] for number in Held.held}
    assert all(ENDED in text for text in series.failed.values())
    assert started(host) == set(names) - set(series.failed)
    host.check_invariants()
    # The tasks of the host, and what they have left behind, are as before.
    Held.held = set()
    after = Series(alone, cls, [f"after-{number}" for number in range(10)])
    await getattr(after, request_of)()
    assert after.failed == {}
    assert len(started(host)) == 107


@pytest.mark.parametrize("request_of", ["spawn_many", "spawn_each"])
@pytest.mark.parametrize("cls", KINDS)
async def test_each_start_of_a_series_is_stopped_in_turn(
    alone: Node, cls: type[Held], request_of: str
) -> None:
    """More than run side by side: each task goes on with its next start."""
    host, names = host_of(alone), [f"one-{number}" for number in range(100)]
    series = Series(alone, cls, names)
    Held.held = set(range(100))
    stopped: set[str] = set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(getattr(series, request_of))
        while len(stopped) < 100:
            for name, cell in tuple(host.cells.items()):
                if not cell.system and name not in stopped:
                    stopped.add(name)
                    nursery.start_soon(host.stop, name, 0, AS_ASKED)
            await trio.lowlevel.checkpoint()
    assert len(series.failed) == 100
    assert all(ENDED in text for text in series.failed.values())
    assert not started(host)
    host.check_invariants()


@pytest.mark.parametrize("cls", HEEDING)
async def test_the_caller_and_the_actor_are_cancelled_in_the_same_step(
    alone: Node, cls: type[Held]
) -> None:
    """The caller gets its own cancellation, whichever comes first, and the name is free."""
    host = host_of(alone)
    Held.held = {1}
    start = ActorStart(cls, import_path(cls), SpawnOptions(), (1,))
    for number, caller_first in enumerate((True, False)):
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:

                async def end(
                    name: str = f"one-{number}",
                    begun: int = number + 1,
                    caller_first: bool = caller_first,
                    scope: trio.CancelScope = scope,
                ) -> None:
                    await until(lambda: len(Held.begun) >= begun, "it has begun")
                    if caller_first:
                        scope.cancel()
                    host.end_at_once(host.cells[name], AS_ASKED)
                    scope.cancel()

                nursery.start_soon(end)
                await host.start(start, f"one-{number}")
            assert scope.cancelled_caught
        assert not started(host)
        assert f"one-{number}" not in host.cells
    host.check_invariants()


async def test_what_waits_for_a_thread_is_stopped_without_one(alone: Node) -> None:
    """Its constructor never begins; those behind it start."""
    host = host_of(alone)
    host.threads._starts_at(0).total_tokens = 1
    Held.held = {0}
    path = import_path(HeldInConstructor)
    failed: dict[str, str] = {}

    async def start(number: int) -> None:
        try:
            one = ActorStart(HeldInConstructor, path, SpawnOptions(), (number,))
            await host.start(one, f"one-{number}")
        except ActorStartError as error:
            failed[f"one-{number}"] = str(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start, 0)
        await until(lambda: Held.begun == [0], "the first one has the thread")
        for number in range(1, 4):
            nursery.start_soon(start, number)
        await until(lambda: len(host.threads._constructors_at(0)._waiting) == 3, "three wait")
        instance = host.cells["one-2"].instance
        await host.stop("one-2", 0, AS_ASKED)
        await until(lambda: "one-2" in failed, "its start has ended")
        assert len(host.threads._constructors_at(0)._waiting) == 3, "and all others wait"
        HeldInConstructor.gate.set()
    assert ENDED in failed["one-2"]
    assert started(host) == {"one-0", "one-1", "one-3"}
    assert not vars(instance).get("number"), "its constructor has not begun"


async def test_a_node_that_stops_its_actors_ends_the_starts_of_each_series(alone: Node) -> None:
    host = host_of(alone)
    for number, cls in enumerate(KINDS):
        for request_of in ("spawn_many", "spawn_each"):
            Held.held = {0, 20, 39}
            names = [f"{request_of}-{number}-{place}" for place in range(40)]
            series = Series(alone, cls, names)
            Held.begun.clear()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(getattr(series, request_of))
                await until(lambda: set(Held.begun) >= Held.held, "those that are held have begun")
                await until(lambda: len(started(host)) == 37, "the others have started")
                reason = ExitReason("shutdown", "as asked")
                await host.stop_all(reason, moved=reason, in_all=30.0)
            assert set(series.failed) == {names[place] for place in Held.held}
            assert not started(host)
            host._departure.leaves_by = float("inf")
