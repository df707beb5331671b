"""What says nothing about a child uses up no restarts: its node died, no node fits, its branch is
restarted. On a virtual clock.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

from actors import Actor, ChildSpec, DynamicSupervisor, RetryPolicy, Supervisor, method
from actors.errors import ActorNotFoundError, ActorStartError, UnderstudyError
from runtime.membership.restart_intents import CHILDREN, STATIC, SUPERVISED
from runtime.node import internals_of
from runtime.simulation import Simulation, simulate
from runtime.simulation.runs import cluster_of
from tests.supervision.workers import Worker
from tests.waiting import until

SEEDS = range(2)


class Slow(Worker):
    """Takes its time to start."""

    async def on_start(self) -> None:
        await trio.sleep(2)


class Killer(Worker):
    """Takes every node down that it is started on, but for the one that nobody may lose."""

    async def on_start(self) -> None:
        kills.append(self.node.name)
        simulated[-1].kill(self.node.name)
        await trio.sleep_forever()


kills: list[str] = []
simulated: list[Simulation] = []


def on_node_2(*ids: str) -> list[ChildSpec]:
    return [ChildSpec.of(id, Worker).changed(on="node-2") for id in ids]


async def life(simulation: Simulation, name: str) -> tuple[str, int]:
    """Of a named worker, asked once: the call waits for it, whatever becomes of it and of its
    supervisors.
    """
    with trio.fail_after(60):
        worker = await simulation.node.lookup(name, Worker)
        return await worker.life.options(retry=RetryPolicy(max_retries=100, max_delay=1.0))()


async def fails(simulation: Simulation, name: str) -> None:
    with pytest.raises(UnderstudyError):
        await (await simulation.node.lookup(name, Worker)).fail()


async def kept(simulation: Simulation) -> list[str]:
    """The keys of what the store knows of children that will be started again."""
    store = internals_of(simulation.node).store
    return [
        entry.key
        for prefix in (SUPERVISED, STATIC, CHILDREN)
        for entry in (await store.range(prefix)).entries
    ]


@pytest.mark.parametrize("strategy", ["one-for-one", "one-for-all", "rest-for-one"])
def test_a_node_that_dies_with_many_children_ends_no_supervisor_and_each_child_is_started_once(
    strategy: Any,
) -> None:
    async def story(simulation: Simulation) -> None:
        specs = [ChildSpec.of("first", Worker).changed(on="node-3"), *on_node_2("a", "b", "c", "d")]
        top = await simulation.node.options(name="top").spawn(
            Supervisor, specs, strategy=strategy, intensity=0
        )
        before = {status.id: status.epoch for status in await top.children()}
        simulation.kill("node-2")
        for id in "abcd":
            assert (await life(simulation, f"top/{id}"))[1] > (before[id] or 0)
        status = await top.status()
        assert status.recent_restarts == 0
        assert [child.restarts for child in status.children] == [
            int(strategy == "one-for-all"),
            1,
            1,
            1,
            1,
        ]
        died = [report for report in status.deaths if report.reason.kind == "node died"]
        assert sorted(report.id for report in died) == ["a", "b", "c", "d"]
        assert len({report.at for report in died}) == 1, "one event"
        assert all(report.started is not None and report.started < report.at for report in died)

    simulate(story, seeds=SEEDS, faults=())


def test_a_node_that_dies_with_many_dynamic_children_uses_up_no_restarts() -> None:
    async def story(simulation: Simulation) -> None:
        template = ChildSpec.of("job", Worker)
        pool = await simulation.node.options(name="pool").spawn(
            DynamicSupervisor, template, intensity=0
        )
        names = [(await pool.spawn()).name for _ in range(12)]
        where = {name: await life(simulation, name) for name in names}
        assert [place for place, _ in where.values()].count("node-2") >= 2
        simulation.kill("node-2")
        for name in names:
            assert ((await life(simulation, name))[1] > where[name][1]) == (
                where[name][0] == "node-2"
            )
        assert (await pool.status()).recent_restarts == 0

    simulate(story, seeds=SEEDS, faults=())


def test_a_child_that_takes_its_nodes_down_with_it_is_tried_again_ever_more_slowly() -> None:
    async def story(simulation: Simulation) -> None:
        simulated[:], kills[:] = [simulation], []
        killer = ChildSpec.of("killer", Killer).changed(on="node-2")
        pool = await simulation.node.options(name="pool").spawn(DynamicSupervisor, intensity=0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_started_in_vain, pool, killer)
            sound: Any = await pool.start_child(ChildSpec.of("sound", Worker).changed(on="node-3"))
            await trio.sleep(60)
            assert (await sound.life())[0] == "node-3"
            nursery.cancel_scope.cancel()
        assert (await pool.status()).recent_restarts == 0
        assert 1 <= len(kills) <= 60 / 5 + 10

    simulate(story, seeds=SEEDS, faults=())


async def _started_in_vain(pool: DynamicSupervisor, spec: ChildSpec) -> None:
    with pytest.raises(ActorStartError):
        await pool.start_child(spec)


def test_a_child_without_a_node_waits_and_counts_no_restart() -> None:
    async def story(simulation: Simulation) -> None:
        specs = [*on_node_2("pinned"), ChildSpec.of("free", Worker).changed(on="node-3")]
        top = await simulation.node.options(name="top").spawn(
            Supervisor, specs, intensity=1, period=100.0
        )
        simulation.kill("node-2", restart_after=40.0)
        await until(
            top.children,
            "the first child is restarting",
            lambda children: children[0].state == "restarting",
            seconds=30,
            every=0.1,
        )
        free = await life(simulation, "top/free")
        await fails(simulation, "top/free")
        began = simulation.now()
        assert (await life(simulation, "top/free"))[1] > free[1]
        assert simulation.now() - began < 2.0, "it was held up by the other"
        pinned = (await top.children())[0]
        assert pinned.last_exit is not None
        assert pinned.last_exit.kind == "not placed"
        assert (await life(simulation, "top/pinned"))[0] == "node-2"
        assert (await top.status()).recent_restarts == 1

    simulate(story, seeds=SEEDS, faults=())


@pytest.mark.parametrize("strategy", ["one-for-one", "one-for-all"])
def test_calls_to_the_children_of_a_branch_that_is_restarted_wait_as_for_a_single_child(
    strategy: Any,
) -> None:
    async def story(simulation: Simulation) -> None:
        inner = ChildSpec.of(
            "inner",
            Supervisor,
            [ChildSpec.of("leaf", Worker), ChildSpec.of("slow", Slow)],
            intensity=0,
        )
        branch = ChildSpec.of(
            "branch",
            Supervisor,
            [inner, ChildSpec.of("other", Slow)],
            intensity=0,
            strategy=strategy,
        )
        top = await simulation.node.options(name="top").spawn(Supervisor, [branch])
        leaf = await simulation.node.lookup("top/branch/inner/leaf", Worker)
        before = await leaf.life()
        lives: list[tuple[str, int]] = []

        async def call(name: str) -> None:
            with trio.fail_after(60):
                lives.append(await (await simulation.node.lookup(name, Worker)).life())

        ended = trio.Event()

        async def ask_all_the_time() -> None:
            while not ended.is_set():
                for name in ("top/branch/inner/leaf", "top/branch/inner/slow", "top/branch/other"):
                    nursery.start_soon(call, name)
                await trio.sleep(0.04)

        async with trio.open_nursery() as nursery:
            await fails(simulation, "top/branch/inner/leaf")
            nursery.start_soon(ask_all_the_time)
            await trio.sleep(5)
            ended.set()
        assert (await life(simulation, "top/branch/inner/leaf"))[1] > before[1]
        assert (await top.children())[0].restarts == 1
        assert len(lives) > 100
        await simulation.node.stop(top)
        for name in (
            "top/branch/inner/leaf",
            "top/branch/inner/slow",
            "top/branch/other",
            "top/branch",
        ):
            with pytest.raises(ActorNotFoundError):
                await simulation.node.lookup(name)
        assert await kept(simulation) == []

    simulate(story, seeds=SEEDS, faults=())


def test_calls_do_not_wait_for_a_branch_that_is_not_restarted() -> None:
    async def story(simulation: Simulation) -> None:
        inner = ChildSpec.of("inner", Supervisor, [ChildSpec.of("leaf", Worker)], intensity=0)
        pool = ChildSpec.of("pool", DynamicSupervisor, ChildSpec.of("job", Worker))
        branch = ChildSpec.of("branch", Supervisor, [inner, pool], intensity=0).changed(
            restart="transient", on="node-2"
        )
        top = await simulation.node.options(name="top").spawn(Supervisor, [branch])
        job = (
            await (await simulation.node.lookup("top/branch/pool", DynamicSupervisor)).spawn()
        ).name
        await fails(simulation, "top/branch/inner/leaf")
        await until(
            top.children,
            "the first child is stopped",
            lambda children: children[0].state == "stopped",
            seconds=30,
            every=0.1,
        )
        with trio.fail_after(2):
            for name in ("top/branch/inner/leaf", "top/branch/inner", "top/branch", job):
                with pytest.raises(ActorNotFoundError):
                    await simulation.node.lookup(name)
        await until(
            lambda: kept(simulation),
            "nothing is kept",
            lambda found: not found,
            seconds=5,
            every=0.1,
        )

    simulate(story, seeds=SEEDS, faults=())


class Candidate(Actor):
    """Makes its node a candidate for singletons."""

    @method(concurrent=True)
    async def stand_for_root(self) -> None:
        await self.node.options(name="root").singleton(Supervisor, on_node_2("a", "b"))

    @method(concurrent=True)
    async def stand_for_worker(self) -> None:
        await self.node.options(name="worker").singleton(Worker)


def test_a_root_that_died_with_its_children_begins_again() -> None:
    async def story(simulation: Simulation) -> None:
        for name in ("node-1", "node-2", "node-3"):
            await (await simulation.node.options(on=name).spawn(Candidate)).stand_for_root()
        before = await life(simulation, "root/a")
        owner = (await simulation.node.lookup("root", Supervisor)).address.node
        for name in {owner, "node-2"}:
            simulation.kill(name, restart_after=15.0)
        assert (await life(simulation, "root/a"))[1] > before[1]
        assert (await life(simulation, "root/b"))[0] == "node-2"

    simulate(story, seeds=SEEDS, faults=())


def test_a_singleton_of_a_plain_actor_is_restarted_after_a_crash_and_not_after_a_stop() -> None:
    async def story(simulation: Simulation) -> None:
        for name in ("node-1", "node-2", "node-3"):
            await (await simulation.node.options(on=name).spawn(Candidate)).stand_for_worker()
        for _ in range(4):
            before = await life(simulation, "worker")
            await fails(simulation, "worker")
            assert (await life(simulation, "worker"))[1] > before[1]
        await simulation.node.stop(await simulation.node.lookup("worker", Worker))
        await trio.sleep(30)
        with pytest.raises(ActorNotFoundError):
            await simulation.node.lookup("worker")
        assert await kept(simulation) == []

    simulate(story, seeds=SEEDS, faults=())


def test_a_singleton_stays_stopped_though_other_candidates_are_about_to_start_it_again() -> None:
    """They have seen its crash, not that another candidate has started it since."""

    async def story(simulation: Simulation) -> None:
        network = cluster_of(simulation).network
        for one in ("node-1", "node-2", "node-3"):
            for other in ("node-1", "node-2", "node-3"):
                if one != other:
                    network.path(one, other).delay = 0.02
        for _ in range(15):
            for name in ("node-1", "node-2", "node-3"):
                await (await simulation.node.options(on=name).spawn(Candidate)).stand_for_worker()
            worker = await simulation.node.lookup("worker", Worker)
            for _ in range(simulation.random.randrange(1, 4)):
                with pytest.raises(UnderstudyError):
                    await worker.fail()
                await simulation.node.wait_ended(worker)
                worker = await simulation.node.lookup("worker", Worker)
            await trio.sleep(simulation.random.uniform(0.0, 0.3))
            await simulation.node.stop(worker)
            await trio.sleep(10)
            with pytest.raises(ActorNotFoundError):
                await simulation.node.lookup("worker")
        assert await kept(simulation) == []

    simulate(story, seeds=SEEDS, faults=())


def test_a_candidate_whose_caller_goes_away_leaves_no_candidacy_and_takes_no_others() -> None:
    """Its request may reach the store after it was cancelled."""

    async def story(simulation: Simulation) -> None:
        node = simulation.node
        for patience in (0.0001, 0.001, 0.002, 0.003, 0.005, 0.01):
            with trio.move_on_after(patience):
                await node.options(name="short").singleton(Slow)
        # A claim of unknown outcome is given back after a while.
        await trio.sleep(5)
        with trio.fail_after(5), pytest.raises(ActorNotFoundError):
            await node.lookup("short")
        assert await kept(simulation) == []

        await node.options(name="worker").singleton(Worker)
        for patience in (0.0001, 0.001, 0.002, 0.003, 0.005):
            with trio.move_on_after(patience):
                await node.options(name="worker").singleton(Worker)
        for _ in range(3):
            before = await life(simulation, "worker")
            await fails(simulation, "worker")
            assert (await life(simulation, "worker"))[1] > before[1]

    simulate(story, seeds=SEEDS, faults=())


def test_children_that_end_while_the_store_is_away_are_not_waited_for_when_it_is_back() -> None:
    async def story(simulation: Simulation) -> None:
        top = await simulation.node.options(name="top").spawn(
            Supervisor, [ChildSpec.of("a", Worker)]
        )
        await top.start_child(ChildSpec.of("b", Worker))
        await top.stop_child("b")
        # For longer than what is asked of the store may take.
        simulation.kill("node-1", restart_after=25.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(top.stop_child, "a")
            nursery.start_soon(top.delete_child, "b")
        await trio.sleep(30)
        for id in "ab":
            with trio.fail_after(5), pytest.raises(ActorNotFoundError):
                await simulation.node.lookup(f"top/{id}")
        assert await kept(simulation) == []

    simulate(story, seeds=range(1), faults=())


class VerySlow(Worker):
    """Takes longer to start than a child may."""

    async def on_start(self) -> None:
        await trio.sleep(90)


def test_a_child_supervisor_may_take_as_long_to_start_as_its_children_do() -> None:
    async def story(simulation: Simulation) -> None:
        specs = [ChildSpec.of(id, VerySlow).changed(start_timeout=100.0) for id in "ab"]
        branch = ChildSpec.of("branch", Supervisor, specs).changed(on="node-2")
        assert branch.start_timeout is None
        assert ChildSpec.of("leaf", Worker).start_timeout == 60.0
        began = simulation.now()
        top = await simulation.node.options(name="top").spawn(Supervisor, [branch])
        assert simulation.now() - began >= 180
        assert [child.state for child in await top.children()] == ["running"]

    simulate(story, seeds=[0], faults=())


class Stubborn(Worker):
    """Does not end by itself."""

    @method
    async def work(self) -> None:
        await trio.sleep_forever()


class StubbornToTheLast(Worker):
    """Takes too long to say goodbye."""

    async def on_stop(self, reason: Any) -> None:
        await trio.sleep_forever()


@pytest.mark.parametrize("cls", [Stubborn, StubbornToTheLast])
def test_a_child_that_does_not_stop_in_its_time_is_reported_as_killed(cls: type[Worker]) -> None:
    async def story(simulation: Simulation) -> None:
        spec = ChildSpec.of("stubborn", cls).changed(shutdown=2.0, on="node-2")
        brutal = ChildSpec.of("brutal", cls).changed(shutdown="kill", on="node-2")
        top = await simulation.node.options(name="top").spawn(Supervisor, [spec, brutal])
        if cls is Stubborn:
            await (await simulation.node.lookup("top/stubborn", Stubborn)).work.send()
        await trio.sleep(10)
        await top.stop_child("stubborn")
        await top.stop_child("brutal")
        (report,) = await top.deaths()
        assert (report.id, report.reason.kind) == ("stubborn", "killed")
        assert "did not stop within 2 s" in report.reason.text
        assert report.started is not None
        assert 10 <= report.at - report.started < 20

    simulate(story, seeds=[0], faults=())
