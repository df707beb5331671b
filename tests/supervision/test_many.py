"""Many children: what is kept of them, and what it costs to start and stop ever more of them."""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any

import pytest
import trio

from actors import Actor, ChildSpec, DynamicSupervisor, ExitReason, SpawnOptions, Supervisor, method
from actors.dynamic_restarts import DynamicRestartMachine
from actors.errors import ActorStartError, UnderstudyError
from actors.restarts import RestartMachine
from actors.supervision import Forgotten, StartChild, StopChild, SupervisorAnswer
from runtime import open_node
from runtime.membership.restart_intents import CHILDREN
from runtime.node import internals_of
from runtime.simulation import Simulation, simulate
from runtime.supervision.children import ChildTable

SECRET = "a secret for the tests of many children"
MEBIBYTE = 1 << 20


class Fed(Actor):
    """Looks at what it is given, and lets go of it."""

    def __init__(self, food: bytes = b"") -> None:
        self.size = len(food)

    @method
    async def eaten(self) -> int:
        return self.size

    @method
    async def crash(self) -> None:
        raise SystemExit("as asked")


class Slow(Actor):
    """Takes its time to start and to stop."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def on_start(self) -> None:
        await trio.sleep(self.seconds)

    async def on_stop(self, reason: ExitReason) -> None:
        await trio.sleep(self.seconds)


@pytest.mark.parametrize(("restart", "kept"), [("temporary", False), ("transient", True)])
async def test_arguments_of_temporary_children_are_not_kept_and_those_of_others_are(
    restart: str, kept: bool
) -> None:
    async with open_node("alone", secret=SECRET) as node:
        template = ChildSpec.of("fed", Fed).changed(restart=restart)  # type: ignore[arg-type]
        pool = await node.options(name="pool").spawn(DynamicSupervisor, template, intensity=5)
        gc.collect()
        tracemalloc.start()
        try:
            children: list[Any] = [await pool.spawn(bytes(5 * MEBIBYTE)) for _ in range(6)]
            stored = sum(
                len(entry.value)
                for entry in (await internals_of(node).store.range(CHILDREN)).entries
            )
            gc.collect()
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert await children[0].eaten() == 5 * MEBIBYTE
        if kept:
            assert held > 30 * MEBIBYTE
            assert stored > 30 * MEBIBYTE
            with pytest.raises(UnderstudyError):
                await children[0].crash()
            with trio.fail_after(60):
                assert await (await node.lookup(children[0].name, Fed)).eaten() == 5 * MEBIBYTE
        else:
            assert held < 5 * MEBIBYTE
            assert stored < 100_000


def lines_run(story: Callable[[], object]) -> int:
    """How many lines of Python the story runs: a measure of work that no load of the machine
    changes.
    """
    count = 0

    def line(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return line

    before = sys.gettrace()
    sys.settrace(line)
    try:
        story()
    finally:
        sys.settrace(before)
    return count


def decided(machine: Any, table: ChildTable, count: int) -> None:
    """All are asked for, start, and are stopped, side by side; what the shell does for each with
    its table is done as well.
    """

    def take(effects: Any) -> None:
        queue = deque(effects)
        while queue:
            effect = queue.popleft()
            if isinstance(effect, SupervisorAnswer):
                table.settle(effect)
            elif isinstance(effect, Forgotten):
                table.forget(effect.id)
            elif isinstance(effect, StartChild):
                if machine.phase == "running" and isinstance(machine, RestartMachine):
                    queue.extend(machine.on_started(effect.id, 1.0))
            elif isinstance(effect, StopChild):
                queue.extend(machine.on_stopped(effect.id))

    take(machine.start(0.0))
    specs = [
        ChildSpec(id=f"c-{number}", actor="m:C", options=SpawnOptions(name=f"name-{number}"))
        for number in range(count)
    ]
    for number, spec in enumerate(specs):
        effects = machine.add(spec.rule(), number)
        table.want(spec, number)
        take(effects)
    if not isinstance(machine, RestartMachine):
        # The last quarter does not start, while all others are still asked for.
        for spec in specs[count * 3 // 4 :]:
            take(machine.on_start_failed(spec.id, ExitReason("start failed"), 0.0))
        for spec in specs[: count * 3 // 4]:
            take(machine.on_started(spec.id, 0.0))
    for number, spec in enumerate(specs[: count // 2]):
        take(machine.terminate(table.id_of(f"name-{number}"), count + number))
        take(machine.delete(spec.id, 2 * count + number))
    take(machine.on_lost({spec.id for spec in specs[count // 2 :]}, ExitReason("node died"), 1.0))
    take(machine.stop(2.0))
    assert machine.phase == "ended"


@pytest.mark.long
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(RestartMachine, id="static"),
        pytest.param(lambda: DynamicRestartMachine(intensity=0), id="dynamic"),
    ],
)
def test_what_is_decided_and_looked_up_for_one_child_costs_the_same_among_10_000_as_among_a_few(
    make: Any,
) -> None:
    few, many = (
        lines_run(lambda count=count: decided(make(), ChildTable("top", ()), count))  # type: ignore[misc]
        for count in (500, 10_000)
    )
    assert many < 20 * few * 1.05


def started_and_stopped(count: int, at_once: int) -> float:
    """Seconds of the processor that it takes on one node, which carries all the work: its store,
    names, supervisor and host.
    """

    async def main() -> float:
        async with open_node("alone", secret=SECRET) as node:
            template = ChildSpec.of("fed", Fed).changed(restart="temporary")
            pool = await node.options(name="pool", mailbox_limit=2 * count).spawn(
                DynamicSupervisor, template
            )
            began = time.process_time()
            for _ in range(count // at_once):
                await together([pool.spawn] * at_once)
            assert (await pool.count()).active == count
            names = [child.name for child in await pool.children()]
            for start in range(0, count, at_once):
                await together(
                    [partial(pool.stop_child, name) for name in names[start : start + at_once]]
                )
            assert (await pool.count()).active == 0
            took = time.process_time() - began
            # None was taken for one that does not stop: those would be reported as killed.
            assert await pool.deaths() == []
            return took

    return trio.run(main)


@pytest.mark.parametrize(
    "at_once",
    [
        pytest.param(25, marks=pytest.mark.long, id="some at a time"),
        pytest.param(0, id="all at once"),
    ],
)
def test_children_cost_the_same_to_start_and_stop_however_many_there_are(at_once: int) -> None:
    started_and_stopped(50, 25)

    def ratio() -> float:
        few, many = (started_and_stopped(count, at_once or count) for count in (125, 500))
        return many / few

    # Not by the clock on the wall, and far from what twice as much for each would be for 10,000:
    # linear is 4, quadratic 16 each time. A processor that is shared makes one of them noisy.
    assert any(ratio() < 8 for _ in range(3))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_10_000_children_that_start_and_stop_at_once_cost_as_much_each_as_a_thousand() -> None:
    few, many = (started_and_stopped(count, count) for count in (1_000, 10_000))
    # Linear is 10; half as much more is what memory costs that no longer fits caches. Quadratic is
    # 100.
    assert many < 25 * few


async def test_what_the_runtime_asks_of_its_own_node_is_asked_once_however_long_it_takes() -> None:
    async with open_node("alone", secret=SECRET) as node:
        # Four times as long as the first attempt of such a call at another node would be waited
        # for.
        child = ChildSpec.of("slow", Slow, 1.0)
        tree = await node.options(name="tree").spawn(Supervisor, [child])
        await tree.stop_child("slow")
        assert dict(internals_of(node).host.counts.attempts) == {}, "attempts that were made again"


def test_children_that_start_at_once_do_not_fail_because_there_are_many_of_them() -> None:
    async def story(simulation: Simulation) -> None:
        template = ChildSpec.of("slow", Slow, 1.0).changed(start_timeout=0.5, restart="temporary")
        pool = await simulation.node.options(name="pool").spawn(DynamicSupervisor, template)
        await together([pool.spawn] * 100)
        assert (await pool.count()).active == 100
        with pytest.raises(ActorStartError, match=r"has not started within 0\.5 s"):
            await pool.spawn()

    simulate(story, seeds=[0], faults=())


async def together(calls: Sequence[Callable[[], Awaitable[object]]]) -> None:
    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(call)
