"""Starts and stops of very many children: how many messages they take, and lines of the log; and
other tasks have their turns meanwhile.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from actors import Actor, ChildSpec, DynamicSupervisor, ExitReason
from actors.identifiers import ActorId
from runtime import open_node
from runtime.hosting.host import ActorHost
from runtime.hosting.orderly_stop import STOPS_IN_A_ROW
from runtime.node import internals_of
from runtime.supervision.supervisor_work import BEGUN_IN_A_ROW, SupervisionWork
from runtime.testing import Platform
from tests.memory_network import MemoryNetwork

CHILDREN = 300


class Idle(Actor):
    """Has nothing to do."""


class Stubborn(Actor):
    """Does not stop in its time."""

    async def on_stop(self, reason: ExitReason) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(1000)


async def _tree(node: Any, actor: type[Actor], count: int, **options: Any) -> DynamicSupervisor:
    supervisor: DynamicSupervisor = await node.spawn(DynamicSupervisor)
    async with trio.open_nursery() as nursery:
        for number in range(count):
            spec = ChildSpec(id=str(number), actor=actor, **options)
            nursery.start_soon(supervisor.start_child, spec)
    return supervisor


def _place() -> dict[str, Any]:
    return {"secret": "of mass stops", "platform": Platform(network=MemoryNetwork())}


async def test_children_with_nothing_to_do_are_stopped_in_a_few_messages(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    alone: list[str] = []
    together: list[int] = []
    stop, stop_ready = ActorHost.stop, ActorHost.stop_ready

    async def counted(self: ActorHost, name: str, *rest: Any) -> Any:
        alone.append(name)
        return await stop(self, name, *rest)

    async def counted_together(self: ActorHost, actors: Any, reason: ExitReason) -> Any:
        together.append(len(actors))
        return await stop_ready(self, actors, reason)

    async with open_node("alone", **_place()) as node:
        supervisor = await _tree(node, Idle, CHILDREN)
        monkeypatch.setattr(ActorHost, "stop", counted)
        monkeypatch.setattr(ActorHost, "stop_ready", counted_together)
        await node.stop(supervisor)
        assert not [one for one in internals_of(node).cells if not one.startswith("@")]
        # Besides it, the supervisor itself, which was not stopped together with others.
        assert sum(together) >= CHILDREN
        assert len(together) <= 5
        assert len(alone) <= 1


async def test_actors_that_are_stopped_together_leave_turns_to_other_tasks(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with open_node("alone", **_place()) as node:
        actors = await node.spawn_many(Idle, [()] * CHILDREN)
        addresses = [internals_of(node).cells[one.name].address for one in actors]
        host = internals_of(node).host
        ends = 0
        longest, in_this_turn = 0, 0
        end = ActorHost._end

        def counted(self: ActorHost, *rest: Any) -> None:
            nonlocal ends, in_this_turn, longest
            ends += 1
            in_this_turn += 1
            longest = max(longest, in_this_turn)
            end(self, *rest)

        monkeypatch.setattr(ActorHost, "_end", counted)

        async def have_turns() -> None:
            nonlocal in_this_turn
            while ends < CHILDREN:
                in_this_turn = 0
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(have_turns)
            answers = await host.stop_ready(
                [ActorId(one.name, one.epoch) for one in addresses], ExitReason("stopped", "")
            )
        assert answers == ["stopped"] * CHILDREN
        # Trio runs the tasks of one pass in any order: two parts may come after one another.
        assert longest <= 2 * STOPS_IN_A_ROW


async def test_starts_and_stops_of_many_children_leave_turns_to_other_tasks(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    begun, in_this_turn, longest = 0, 0, 0
    carry_out_one = SupervisionWork._carry_out_one

    async def counted(self: SupervisionWork, *rest: Any) -> None:
        nonlocal begun, in_this_turn, longest
        begun += 1
        in_this_turn += 1
        longest = max(longest, in_this_turn)
        await carry_out_one(self, *rest)

    async def have_turns(scope: trio.CancelScope) -> None:
        nonlocal in_this_turn
        with scope:
            while True:
                in_this_turn = 0
                await trio.lowlevel.checkpoint()

    monkeypatch.setattr(SupervisionWork, "_carry_out_one", counted)
    async with open_node("alone", **_place()) as node, trio.open_nursery() as nursery:
        turns = trio.CancelScope()
        nursery.start_soon(have_turns, turns)
        supervisor = await _tree(node, Idle, CHILDREN)
        await node.stop(supervisor)
        turns.cancel()
        # A start and a stop of each.
        assert begun >= 2 * CHILDREN
        # Trio runs the tasks of one pass in any order.
        assert longest <= 2 * BEGUN_IN_A_ROW


async def test_children_that_do_not_stop_are_one_line_of_the_log(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    async with open_node("alone", **_place()) as node:
        supervisor = await _tree(node, Stubborn, 30, shutdown=1.0)
        monkeypatched = ActorHost.stop

        async def silent(self: ActorHost, name: str, *rest: Any) -> Any:
            if "/" in name:
                await trio.sleep_forever()
            return await monkeypatched(self, name, *rest)

        with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.ERROR):
            patch.setattr(ActorHost, "stop", silent)
            await node.stop(supervisor)
            await trio.sleep(5)
        lines = [one.getMessage() for one in caplog.records if "left behind" in one.getMessage()]
        assert len(lines) == 1, lines
        assert "30 of its children did not stop" in lines[0]
        assert "and 20 others" in lines[0]
