"""What seeds have found, told again as short stories that depend on no seed."""

from __future__ import annotations

import gc

import pytest
import trio

from actors import Actor, Reference, UnderstudyError, method
from actors.errors import NotExecutedError
from runtime.node import internals_of
from runtime.references.table import state_of
from runtime.simulation import Report, Simulation, run_scenario
from runtime.simulation.runs import cluster_of
from tests.waiting import until


class Slow(Actor):
    """Answers when it likes."""

    def __init__(self) -> None:
        self.runs = 0

    @method
    async def think(self, seconds: float) -> int:
        self.runs += 1
        await trio.sleep(seconds)
        return self.runs

    @method
    async def call_itself(self, other: Slow, seconds: float) -> str:
        try:
            await other.think.options(timeout=1.0)(seconds)
        except NotExecutedError:
            return "denied"
        except UnderstudyError:
            return "unknown"
        return "done"


def played(story: object, nodes: int = 3) -> Report:
    report = run_scenario(story, 1, nodes=nodes, faults=())  # type: ignore[arg-type]
    assert report.holds, report.check_results
    return report


def test_a_call_within_a_node_that_ran_while_its_lease_was_in_doubt_is_not_called_unexecuted() -> (
    None
):
    async def story(simulation: Simulation) -> None:
        named = await simulation.node.options(name="named", on="node-2").spawn(Slow)
        near = await simulation.node.options(on="node-2").spawn(Slow)
        outcome: list[str] = []

        async def ask() -> None:
            outcome.append(await near.call_itself.options(timeout=30)(named, 0.5))

        cut = simulation.partition(["node-2"], ["node-1", "node-3"])
        # The lease is doubted after 3.3 seconds at the latest, and ends after 5 at the earliest.
        await trio.sleep(2.6)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(1.5)
            cut()
        assert outcome == ["unknown"] or outcome == ["done"]

    played(story)


def test_the_name_of_a_start_that_was_cancelled_is_free_again_soon() -> None:
    async def story(simulation: Simulation) -> None:
        disk = cluster_of(simulation).machines["node-1"].disk
        disk.delay = 2.0
        with trio.move_on_after(0.5) as patience:
            await simulation.node.options(name="contested", on="node-2").spawn(Slow)
        assert patience.cancelled_caught
        disk.delay = 0.002
        await trio.sleep(6)
        assert (
            await (await simulation.node.options(name="contested", on="node-3").spawn(Slow)).think(
                0
            )
            == 1
        )

    played(story)


def test_a_node_may_leave_while_the_store_is_away_although_its_actors_have_names() -> None:
    async def story(simulation: Simulation) -> None:
        await simulation.node.options(name="named", on="node-2").spawn(Slow)
        simulation.pause("node-1")
        node = cluster_of(simulation).live("node-2")
        process = cluster_of(simulation).machines["node-2"].process
        assert node is not None
        assert process is not None
        node.leave()
        await process.ended.wait()
        assert process.error is None
        simulation.resume("node-1")
        await simulation.calm()

    played(story)


def test_a_store_begun_anew_renews_no_lease_and_answers_no_call_of_the_one_before() -> None:
    async def story(simulation: Simulation) -> None:
        for name in simulation.nodes[1:]:
            await simulation.node.options(name=f"at-{name}", on=name).spawn(Slow)
        before = {name: cluster_of(simulation).machines[name].process for name in simulation.nodes}
        cluster_of(simulation).crash("node-1", disk=False)
        # The scenario's own node leaves as well, as all of that cluster do; its place is taken by
        # another.
        with trio.CancelScope(shield=True):
            for name in simulation.nodes[1:]:
                process = before[name]
                assert process is not None
                with trio.fail_after(60):
                    await process.ended.wait()

    report = run_scenario(story, 1, faults=())
    said = [event.text for event in report.events if event.kind == "log"]
    assert any("serves another store now" in text for text in said)
    assert not any("still has its lease" in text for text in said)
    assert [
        result
        for result in report.check_results
        if result.name == "no unexpected end" and result.holds
    ]


class Safe(Actor):
    """Has values."""

    @method
    async def put(self, text: str) -> Reference[str]:
        return await self.node.put(text)


def test_a_reference_of_a_lost_store_never_names_a_value_of_the_new_one() -> None:
    got: list[str] = []

    async def story(simulation: Simulation) -> None:
        cluster = cluster_of(simulation)
        founder, other = cluster.live("node-1"), cluster.live("node-3")
        assert founder is not None
        assert other is not None
        safe = await other.options(on="node-1").spawn(Safe)
        for _ in range(200):
            reference = await safe.put("of the store that was lost")
        cluster.crash("node-1", disk=False)
        # The scenario's own node leaves, as all of that cluster do.
        with trio.CancelScope(shield=True):
            successor = await until(
                lambda: cluster.live("node-1"),
                "the founder has a successor",
                lambda node: node is not None and node is not founder,
                every=0.01,
            )
            assert successor is not None
            assert successor.incarnation == founder.incarnation
            kept = [await successor.put("of the new store") for _ in range(400)]
            assert state_of(reference).identity in [state_of(each).identity for each in kept]
            with trio.move_on_after(20):
                try:
                    got.append(await reference.fetch())
                except UnderstudyError as error:
                    got.append(type(error).__name__)

    report = run_scenario(story, 1, faults=())
    assert report.holds, report.check_results
    assert got in (["NotAMemberError"], ["OwnerDiedError"])


def test_a_result_kept_for_a_caller_that_has_given_up_is_freed() -> None:
    async def story(simulation: Simulation) -> None:
        slow = await simulation.node.options(on="node-2").spawn(Slow)
        path = cluster_of(simulation).network.path("node-2", "scenario")
        path.delay += 1.0
        reference = await slow.think.options(timeout=0.5).remote(0.0)
        with pytest.raises(UnderstudyError):
            await reference.fetch()
        del reference
        path.delay -= 1.0
        gc.collect()
        await trio.sleep(3)
        node = cluster_of(simulation).live("node-2")
        assert node is not None
        assert internals_of(node).endpoint.loads()["references"] == 0

    played(story)


def test_a_node_that_asks_the_store_for_the_way_to_the_stores_node_does_not_ask_for_ever() -> None:
    async def story(simulation: Simulation) -> None:
        for _ in range(5):
            simulation.kill("node-1")
            await trio.sleep(2)
            for connection in list(cluster_of(simulation).network.connections):
                connection.sends.cut_after = connection.sends.sent
            await trio.sleep(2)
        await simulation.calm()

    played(story)
