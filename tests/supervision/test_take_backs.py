"""What was started for a task that has no handle of it is stopped again, however long its node is
out of reach.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
import trio.testing

from actors import Actor, ChildSpec, DynamicSupervisor
from actors.errors import (
    ActorNotFoundError,
    ActorNotPlacedError,
    NodeUnreachableError,
    OutcomeUnknownError,
)
from actors.identifiers import NodeId
from actors.options import SpawnOptions
from runtime import open_node
from runtime.environment import SystemEnvironment
from runtime.node import internals_of
from runtime.supervision.take_backs import LONGEST_PAUSE, MOST_OWED, TakeBacks
from runtime.testing import Platform
from runtime.timings import Timings
from tests.waiting import until

SECRET = "a secret for the tests of take-backs"
PEER = NodeId("peer", 7)


class Quiet(Actor):
    pass


class Method:
    """A method of a node that is out of reach for the first `lost` messages."""

    def __init__(self, lost: float = 0, error: Exception | None = None) -> None:
        self.left = lost
        self.error = error or NodeUnreachableError("no connection")
        self.taken: list[tuple[object, ...]] = []

    async def send(self, *args: object) -> None:
        await trio.lowlevel.checkpoint()
        if self.left > 0:
            self.left -= 1
            raise self.error
        self.taken.append(args)


async def test_one_that_is_not_sent_in_time_is_sent_when_that_is_possible(
    autojump_clock: trio.testing.MockClock,
) -> None:
    method = Method(lost=50)
    async with trio.open_nursery() as nursery:
        backs = TakeBacks(nursery, lambda node: False, 1.0)
        await backs.send(PEER, method, "ticket")
        assert (backs.owed, method.taken) == (1, [])
    assert (backs.owed, method.taken) == (0, [("ticket",)])


async def test_a_link_without_room_is_waited_for_by_the_node(
    autojump_clock: trio.testing.MockClock,
) -> None:
    room = trio.Event()

    class Crowded(Method):
        async def send(self, *args: object) -> None:
            await room.wait()
            await super().send(*args)

    method = Crowded()
    async with trio.open_nursery() as nursery:
        backs = TakeBacks(nursery, lambda node: False, 1.0)
        with trio.CancelScope() as scope:
            scope.cancel()
            await backs.send(PEER, method, "ticket")
        assert trio.current_time() == pytest.approx(1.0)
        assert backs.owed == 1
        room.set()
    assert method.taken == [("ticket",)]


async def test_it_ends_with_its_node(autojump_clock: trio.testing.MockClock) -> None:
    gone: set[NodeId] = set()
    method = Method(lost=10_000)
    async with trio.open_nursery() as nursery:
        backs = TakeBacks(nursery, gone.__contains__, 1.0)
        backs.owe(PEER, method, "ticket")
        await trio.sleep(1_000)
        assert backs.owed == 1
        # It is not sent in a loop, either.
        assert method.left > 10_000 - 1_000 / LONGEST_PAUSE - 20
        gone.add(PEER)
    assert backs.owed == 0
    async with trio.open_nursery() as nursery:
        ended = TakeBacks(nursery, lambda node: False, 1.0)
        await ended.send(PEER, Method(lost=10, error=ActorNotFoundError("ended")), "ticket")
        assert ended.owed == 0


async def test_their_number_is_bounded_and_that_is_logged_once(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "understudy.supervision")
    async with trio.open_nursery() as nursery:
        backs = TakeBacks(nursery, lambda node: False, 1.0)
        for _ in range(MOST_OWED + 3):
            backs.owe(PEER, Method(lost=10**9), "ticket")
        assert backs.owed == MOST_OWED
        nursery.cancel_scope.cancel()
    assert backs.owed == 0
    assert [one for one in caplog.messages if "may run on" in one] == caplog.messages
    assert len(caplog.messages) == 1


class LostAnswers:
    """The service of a node whose answers to starts do not arrive, and whose take-backs do not at
    first.
    """

    def __init__(self, service: Any, back: trio.Event) -> None:
        self._service = service
        self._back = back

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._service, name)
        if name == "spawn":

            async def lost(*args: object) -> object:
                await method(*args)
                raise OutcomeUnknownError("no answer", actor="@node", method=name)

            return lost
        if name == "take_back":
            return Cut(method, self._back)
        return method


class Cut:
    def __init__(self, method: Any, back: trio.Event) -> None:
        self._method = method
        self._back = back

    async def send(self, *args: object) -> None:
        if not self._back.is_set():
            raise NodeUnreachableError("no connection")
        await self._method.send(*args)


async def test_a_temporary_child_whose_start_has_no_answer_does_not_run_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its supervisor has forgotten it, and its spawner has heard that it did not start."""
    platform = Platform(environment=SystemEnvironment(Timings(first_placement=1e-9)))
    async with (
        open_node("here", secret=SECRET, platform=platform) as here,
        open_node("there", join=here.address, secret=SECRET) as there,
    ):
        await here.wait_for(2)
        top = await here.options(name="top").spawn(DynamicSupervisor)
        endpoint, back = internals_of(here).endpoint, trio.Event()
        service = endpoint.node_service
        monkeypatch.setattr(
            endpoint, "node_service", lambda *node: LostAnswers(service(*node), back)
        )
        spec = ChildSpec(
            id="child", actor=Quiet, restart="temporary", options=SpawnOptions(on="there")
        )
        with pytest.raises(ActorNotPlacedError, match="may have started"):
            await top.start_child(spec)
        cells = internals_of(there).cells
        assert "top/child" in cells
        back.set()
        await until(lambda: "top/child" not in cells, "it is stopped")
