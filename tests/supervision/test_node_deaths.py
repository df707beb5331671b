"""Trees whose nodes die: supervisors move, and adopt the children that live instead of doubling
them. On a virtual clock, over many seeds.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar, cast

import pytest
import trio

from actors import Actor, ChildSpec, DynamicSupervisor, Handle, RetryPolicy, Supervisor, method
from actors.errors import (
    ActorNotFoundError,
    ActorStartError,
    ClassMismatchError,
    UnderstudyError,
)
from actors.supervision import RestartType
from runtime.membership.restart_intents import RestartIntents
from runtime.simulation import Simulation, simulate
from tests.supervision.workers import Worker
from tests.waiting import until

SEEDS = range(5)


async def life(simulation: Simulation, name: str) -> tuple[str, int]:
    """Of a named worker, as soon as a node can say."""
    with trio.fail_after(60):
        while True:
            try:
                worker = await simulation.node.lookup(name, Worker)
                return await worker.life.options(timeout=5)()
            except UnderstudyError:
                await trio.sleep(0.1)


def branch(strategy: str = "one-for-one") -> ChildSpec:
    """A supervisor on any node but the first, with a worker on each of nodes 2 and 3, and one more
    on node 3.
    """
    workers = [
        ChildSpec.of("near", Worker).changed(on="node-2"),
        ChildSpec.of("far", Worker).changed(on="node-3"),
        ChildSpec.of("farther", Worker).changed(on="node-3"),
    ]
    return ChildSpec.of("branch", Supervisor, workers, strategy=strategy).changed(on="node-2")  # type: ignore[arg-type]


async def adopts(simulation: Simulation) -> None:
    root = await simulation.node.options(name="root").spawn(Supervisor, [branch()])
    before = [await life(simulation, f"root/branch/{id}") for id in ("near", "far", "farther")]
    simulation.kill("node-2")
    after = [await life(simulation, f"root/branch/{id}") for id in ("near", "far", "farther")]
    assert after[1:] == before[1:]
    assert after[0][0] == "node-2"
    assert after[0][1] > before[0][1]
    children = await until(
        root.children,
        "the first child runs",
        lambda found: found[0].state == "running",
        seconds=30,
        every=0.1,
    )
    status = children[0]
    assert status.last_exit is not None
    assert status.last_exit.kind in ("node died", "not placed")
    assert (await root.status()).recent_restarts == 0
    assert "node died" in [report.reason.kind for report in await root.deaths()]
    # Adopted children are watched like others.
    far = await simulation.node.lookup("root/branch/far", Worker)
    with pytest.raises(UnderstudyError):
        await far.fail()
    assert (await life(simulation, "root/branch/far"))[1] > before[1][1]


def test_a_supervisor_that_dies_with_its_node_is_restarted_and_adopts_the_children_that_live() -> (
    None
):
    simulate(adopts, seeds=SEEDS, faults=())


async def restarts_all(simulation: Simulation) -> None:
    await simulation.node.options(name="root").spawn(Supervisor, [branch("one-for-all")])
    before = [await life(simulation, f"root/branch/{id}") for id in ("near", "far", "farther")]
    simulation.kill("node-2")
    await until(
        lambda: life(simulation, "root/branch/near"),
        "it lives again",
        lambda now: now[1] != before[0][1],
        seconds=30,
        every=0.1,
    )
    after = [await life(simulation, f"root/branch/{id}") for id in ("near", "far", "farther")]
    assert all(new[1] > old[1] for new, old in zip(after, before, strict=True))
    assert [new[1] for new in after] == sorted(new[1] for new in after), "started in order"


def test_children_that_live_and_die_together_are_all_started_anew() -> None:
    simulate(restarts_all, seeds=SEEDS, faults=())


async def keeps_the_dynamic(simulation: Simulation) -> None:
    template = ChildSpec.of("job", Worker).changed(restart="transient")
    pool = ChildSpec.of("pool", DynamicSupervisor, template).changed(on="node-2")
    await simulation.node.options(name="root").spawn(Supervisor, [pool])
    supervisor = await simulation.node.lookup("root/pool", DynamicSupervisor)
    names = [(await supervisor.spawn()).name for _ in range(12)]
    before = {name: await life(simulation, name) for name in names}
    assert {place for place, _ in before.values()} >= {"node-2", "node-3"}
    simulation.kill("node-2")
    after = {name: await life(simulation, name) for name in names}
    for name in names:
        moved = before[name][0] == "node-2"
        assert (after[name][1] > before[name][1]) == moved, (name, before[name], after[name])
    with trio.fail_after(60):
        supervisor = await simulation.node.lookup("root/pool", DynamicSupervisor)
        assert (await supervisor.count.options(timeout=10)()).active == 12
    # New ones do not take the ids of those that were adopted.
    assert (await supervisor.spawn()).name not in names


def test_a_dynamic_supervisor_that_moves_keeps_the_children_that_it_was_given() -> None:
    simulate(keeps_the_dynamic, seeds=SEEDS, faults=())


async def orphans_end(simulation: Simulation) -> None:
    owner = await simulation.node.options(name="top", on="node-2").spawn(
        Supervisor,
        [
            ChildSpec.of("here", Worker).changed(on="node-2"),
            ChildSpec.of("there", Worker).changed(on="node-3"),
        ],
    )
    assert (await owner.count()).active == 2
    assert (await life(simulation, "top/there"))[0] == "node-3"
    there = await simulation.node.lookup("top/there", Worker)
    simulation.kill("node-2")
    with trio.fail_after(60):
        while True:
            try:
                await there.life.options(timeout=1)()
            except ActorNotFoundError:
                break
            except UnderstudyError:
                pass
            await trio.sleep(0.2)


def test_children_whose_supervisor_nobody_restarts_are_stopped() -> None:
    simulate(orphans_end, seeds=SEEDS, faults=())


class Root(Supervisor):
    """Knows where it is."""

    @method(concurrent=True, idempotent=True)
    async def life(self) -> tuple[str, int]:
        return self.node.name, self.epoch


class Candidate(Actor):
    """Makes its node a candidate for the root."""

    @method(concurrent=True)
    async def stand(self) -> str:
        specs = [
            ChildSpec.of("a", Worker).changed(on="node-1"),
            ChildSpec.of("b", Worker).changed(on="node-3"),
        ]
        root = await self.node.options(name="root").singleton(Root, specs)
        return root.address.node


async def elects(simulation: Simulation) -> None:
    places: set[str] = set()

    async def stand(node: str) -> None:
        places.add(await (await simulation.node.options(on=node).spawn(Candidate)).stand())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stand, "node-2")
        nursery.start_soon(stand, "node-3")
    (place,) = places
    other = ({"node-2", "node-3"} - places).pop()
    before = await life(simulation, "root/a")
    simulation.kill(place)
    assert await life(simulation, "root/a") == before
    root = await simulation.node.lookup("root", Root)
    with trio.fail_after(60):
        assert (await root.life.options(retry=RetryPolicy(max_retries=100, max_delay=0.5))())[
            0
        ] == other
    assert (await life(simulation, "root/b"))[0] == "node-3"
    # Stopped by request it has ended, for every candidate.
    await simulation.node.stop(root)
    await trio.sleep(10)
    for name in ("root", "root/a", "root/b"):
        with pytest.raises(ActorNotFoundError):
            await simulation.node.lookup(name)


def test_a_singleton_root_is_on_one_node_and_moves_when_that_dies() -> None:
    simulate(elects, seeds=SEEDS, faults=())


class Doomed(Worker):
    """Crashes as soon as it has started."""

    async def on_start(self) -> None:
        self.nursery.start_soon(self.explode)


async def escalates(simulation: Simulation) -> None:
    loop = ChildSpec.of(
        "loop",
        Supervisor,
        [ChildSpec.of("doomed", Doomed).changed(on="node-3")],
        intensity=5,
        period=5.0,
    )
    began = simulation.now()
    top = await simulation.node.options(name="top").spawn(
        Supervisor, [loop.changed(restart="transient", on="node-2")]
    )
    await until(
        top.children,
        "the first child is stopped",
        lambda found: found[0].state == "stopped",
        every=0.01,
    )
    # The window is never used up: restarts are immediate, so it takes as long as they do.
    assert simulation.now() - began <= 5.0 + 0.1
    with pytest.raises(ActorNotFoundError):
        await simulation.node.lookup("top/loop/doomed")


def test_a_crash_loop_escalates_within_its_period() -> None:
    simulate(escalates, seeds=SEEDS, faults=())


async def weathers(simulation: Simulation) -> None:
    """The whole under faults: in the end everybody runs once, under one supervisor, and answers."""
    specs = [branch().changed(on=None), ChildSpec.of("leaf", Worker)]
    with trio.fail_after(100):
        while True:
            try:
                await simulation.node.options(name="root").singleton(Supervisor, specs)
                break
            except UnderstudyError:
                await trio.sleep(0.5)
    names = ["root/leaf", *(f"root/branch/{id}" for id in ("near", "far", "farther"))]
    for _ in range(20):
        await trio.sleep(1)
        for name in names:
            try:
                await (await simulation.node.lookup(name, Worker)).life.options(timeout=1)()
            except UnderstudyError:
                pass
    await simulation.calm()
    lives = {name: await life(simulation, name) for name in names}
    await trio.sleep(20)
    assert {name: await life(simulation, name) for name in names} == lives, (
        "nobody is restarted in calm weather"
    )
    branch_status = await (await simulation.node.lookup("root/branch", Supervisor)).children()
    assert [(status.name, status.epoch) for status in branch_status] == [
        (name, lives[name][1]) for name in names[1:]
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds",
    [
        range(2),
        pytest.param(range(2, 5), marks=pytest.mark.long),
        *(pytest.param(range(at, at + 5), marks=pytest.mark.long) for at in (5, 10, 15, 20)),
    ],
)
def test_a_tree_under_random_faults_is_whole_in_the_end(seeds: range) -> None:
    simulate(weathers, seeds=seeds, nodes=4)


class Remembering(DynamicSupervisor):
    """Notes which of its children run when it has started, before it does anything else."""

    found: ClassVar[list[dict[str, str]]] = []

    async def on_start(self) -> None:
        await super().on_start()
        self.found.append({child.name: child.state for child in await self.children()})


async def adopts_before_it_has_started(simulation: Simulation) -> None:
    Remembering.found.clear()
    specs = [
        ChildSpec.of(f"{restart}-{number}", Worker).changed(restart=restart, on="node-3")
        for restart in ("temporary", "transient", "permanent")
        for number in range(3)
    ]
    pool = ChildSpec.of("pool", Remembering).changed(on="node-2")
    await simulation.node.options(name="root").spawn(Supervisor, [pool])
    supervisor = await simulation.node.lookup("root/pool", Remembering)
    names = [(await supervisor.start_child(spec)).name for spec in specs]
    before = {name: await life(simulation, name) for name in names}
    simulation.kill("node-2")
    await until(
        lambda: len(Remembering.found), "it has started again", lambda count: count == 2, seconds=60
    )
    assert Remembering.found == [{}, dict.fromkeys(names, "running")]
    assert {name: await life(simulation, name) for name in names} == before


def test_a_dynamic_supervisor_has_adopted_the_children_that_live_when_it_has_started() -> None:
    simulate(adopts_before_it_has_started, seeds=SEEDS, faults=())


class OtherRoot(Supervisor):
    """Another class, which is not derived from it: that would do where its base is asked for."""


CLASSES: dict[str, type[Supervisor]] = {"node-2": Root, "node-3": OtherRoot}


class Rival(Actor):
    """Makes its node a candidate for an actor of its own class."""

    @method
    async def stand(self) -> bool:
        cls = CLASSES[self.node.name]
        try:
            await self.node.options(name="root").singleton(cls)
        except ClassMismatchError:
            return False
        return True


async def elects_one_class(simulation: Simulation) -> None:
    """Of two candidates of different classes the one is refused: its class is never started, not
    even when the other's node dies. After that the name is free.
    """
    stands: dict[str, bool] = {}

    async def stand(node: str) -> None:
        stands[node] = await (await simulation.node.options(on=node).spawn(Rival)).stand()

    async with trio.open_nursery() as nursery:
        for node in CLASSES:
            nursery.start_soon(stand, node)
    (elected,) = [node for node in CLASSES if stands[node]]
    assert (await simulation.node.lookup("root", CLASSES[elected])).address.node == elected
    simulation.kill(elected, restart_after=30.0)
    places: set[str] = set()

    async def is_free() -> bool:
        try:
            found = await simulation.node.lookup("root")
        except ActorNotFoundError:
            return True
        places.add(cast("Handle", found).address.node)
        return False

    await until(is_free, "the name is free", seconds=60, every=0.1)
    assert places <= {elected}, "the refused one has not started it"
    refused = next(node for node in CLASSES if node != elected)
    assert await (await simulation.node.options(on=refused).spawn(Rival)).stand()


def test_a_candidate_of_another_class_is_refused_and_does_not_start_its_own_later() -> None:
    simulate(elects_one_class, seeds=SEEDS, faults=())


class SilentIntents:
    """Leaves the first writes of restart intents for some names without an answer, or refuses them,
    as often as `times` says; counts the attempts.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
        self.times: dict[str, int] = {}
        give = RestartIntents.give

        async def given(intents: RestartIntents, name: str, *rest: Any, **options: Any) -> int:
            if self.times.get(name):
                self.times[name] -= 1
                if error is not None:
                    raise error
                await trio.sleep_forever()
            return await give(intents, name, *rest, **options)

        monkeypatch.setattr(RestartIntents, "give", given)


RESTARTS: tuple[RestartType, ...] = ("temporary", "transient", "permanent")


async def left_by_its_supervisor(
    simulation: Simulation, silent: SilentIntents
) -> dict[str, tuple[str, int]]:
    """The supervisor of three children dies with its node, and its next epoch cannot write at once
    that it has them. Returns the lives of the children.
    """
    pool = ChildSpec.of("pool", DynamicSupervisor).changed(on="node-2")
    await simulation.node.options(name="root").spawn(Supervisor, [pool])
    supervisor = await simulation.node.lookup("root/pool", DynamicSupervisor)
    names = [
        (
            await supervisor.start_child(
                ChildSpec.of(restart, Worker).changed(
                    restart=restart, on="node-3", start_timeout=1.0
                )
            )
        ).name
        for restart in RESTARTS
    ]
    before = {name: await life(simulation, name) for name in names}
    silent.times = dict.fromkeys(names, 2)
    simulation.kill("node-2")
    await until(
        lambda: max(silent.times.values()),
        "all were to be adopted",
        lambda left: left < 2,
        seconds=60,
    )
    return before


def test_children_whose_adoption_is_not_written_within_their_start_timeout_are_adopted_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They were forgotten, and went on running."""

    async def story(simulation: Simulation) -> None:
        with monkeypatch.context() as patched:
            before = await left_by_its_supervisor(simulation, SilentIntents(patched, None))
        supervisor = await simulation.node.lookup("root/pool", DynamicSupervisor)
        found = {child.name: child.state for child in await supervisor.children()}
        assert found == dict.fromkeys(before, "running")
        assert {name: await life(simulation, name) for name in before} == before

    simulate(story, seeds=SEEDS, faults=())


def test_children_that_cannot_be_adopted_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """No supervisor would stop them later."""

    async def story(simulation: Simulation) -> None:
        error = ActorStartError("not to be written, says the test")
        with monkeypatch.context() as patched:
            before = await left_by_its_supervisor(simulation, SilentIntents(patched, error))

        async def left() -> list[str]:
            found: list[str] = []
            for name in before:
                with suppress(ActorNotFoundError):
                    await simulation.node.lookup(name)
                    found.append(name)
            return found

        await until(left, "they have ended", lambda names: not names, seconds=60)

    simulate(story, seeds=SEEDS, faults=())
