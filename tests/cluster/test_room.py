"""Several node processes place actors on the same few GPUs at the same moment: exactly as many run
as there are.
"""

from __future__ import annotations

from collections import Counter

import pytest
import trio

from actors import ChildSpec, Supervisor
from actors.errors import NoPlacementError
from runtime import LocalCluster, open_local_cluster
from runtime.node import Node, internals_of
from tests.cluster.room_actors import Model, Placer
from tests.waiting import until

pytestmark = pytest.mark.cluster

NODES, GPUS, PLACERS, EACH = 4, 5, 4, 10


async def find_room(node: Node, started: list[Model]) -> None:
    """A supervisor waits for room, and has it when one model stops."""
    spec = ChildSpec.of("model", Model, -1).changed(resources={"gpus": 1})
    waiting = f"waiting-{len(started)}"

    async def supervise() -> None:
        top = await node.options(name=waiting).spawn(Supervisor, [spec], intensity=0)
        assert (await top.status()).recent_restarts == 0

    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervise)
        await until(lambda: waiting in internals_of(node).cells, "the supervisor starts")
        last = started.pop()
        place = await last.place()
        await node.stop(last)
    model = await node.lookup(f"{waiting}/model", Model)
    assert await model.place() == place
    await node.stop(await node.lookup(waiting))


async def test_of_40_actors_that_four_nodes_place_on_20_gpus_20_run_and_20_are_refused() -> None:
    async with open_local_cluster(nodes=0) as cluster:
        node = cluster.node
        names = [f"worker-{number + 1}" for number in range(NODES)]
        for name in names:
            await cluster.start_node(name, resources={"gpus": GPUS})
        placers = [await node.options(on=name).spawn(Placer) for name in names]
        assert len(placers) == PLACERS
        started: list[Model] = []
        refused: list[str] = []

        async def place(placer: Placer) -> None:
            models, errors = await placer.place(EACH)
            started.extend(models)
            refused.extend(errors)

        with trio.fail_after(60):
            for turn in range(3):
                async with trio.open_nursery() as nursery:
                    for placer in placers:
                        nursery.start_soon(place, placer)
                assert len(started) == NODES * GPUS
                assert len(refused) == PLACERS * EACH - NODES * GPUS
                assert all("has 0 gpus left of 5" in text for text in refused)
                places = Counter([await model.place() for model in started])
                assert places == dict.fromkeys(names, GPUS)
                await find_room(node, started)
                for model in started:
                    await node.stop(model)
                # All nodes hear of a later name only when they have heard that these are free.
                later = await node.options(name=f"turn {turn}").spawn(Model, turn)
                for placer in placers:
                    await placer.hear_of(later.address.epoch)
                started.clear()
                refused.clear()


async def end(cluster: LocalCluster, name: str, how: str) -> None:
    process = cluster.process(name)
    if how == "leave":
        await process.leave()
    else:
        process.kill()
        await process.wait()


@pytest.mark.parametrize("how", ["leave", "kill"])
async def test_children_wait_for_room_while_their_node_is_away_and_have_it_when_it_is_back(
    how: str,
) -> None:
    """The node comes back under its name: what was taken of its earlier incarnation is not taken of
    this one.
    """
    async with open_local_cluster(nodes=0) as cluster:
        node = cluster.node
        for name, gpus in (("worker-1", 2), ("worker-2", 1)):
            await cluster.start_node(name, resources={"gpus": gpus})
        options = node.options(resources={"gpus": 1})
        await options.options(on="worker-2").spawn(Model, -1)
        specs = [
            ChildSpec.of(f"{number}", Model, number).changed(resources={"gpus": 1})
            for number in range(2)
        ]
        with trio.fail_after(60):
            top = await node.options(name="top").spawn(Supervisor, specs, intensity=0)
            for _ in range(3):
                await end(cluster, "worker-1", how)
                await until(
                    top.children,
                    "none runs",
                    lambda found: all(child.state != "running" for child in found),
                )
                with pytest.raises(NoPlacementError, match="has 0 gpus left of 1"):
                    await options.spawn(Model, -1)
                await cluster.start_node("worker-1", resources={"gpus": 2})
                models = [await node.lookup(f"top/{number}", Model) for number in range(2)]
                assert [await model.place() for model in models] == ["worker-1"] * 2
                with pytest.raises(NoPlacementError, match="has 0 gpus left of 2"):
                    await options.spawn(Model, -1)
            assert (await top.status()).recent_restarts == 0


@pytest.mark.parametrize("how", ["leave", "kill"])
async def test_a_pool_has_as_many_members_as_there_are_gpus_whatever_ends(how: str) -> None:
    async with open_local_cluster(nodes=0) as cluster:
        node = cluster.node
        names = ["worker-1", "worker-2"]
        for name in names:
            await cluster.start_node(name, resources={"gpus": 2})
        options = node.options(resources={"gpus": 1})
        with trio.fail_after(60):
            async with await node.pool("models", Model, 0, size=4, resources={"gpus": 1}) as pool:

                async def has(places: dict[str, int]) -> None:
                    await until(
                        lambda: Counter(member.address.node for member in pool.members()),
                        f"its members are on {places}",
                        lambda found: found == places,
                    )

                await has(dict.fromkeys(names, 2))
                for name in names:
                    await end(cluster, name, how)
                    (other,) = {*names} - {name}
                    await has({other: 2})
                    await cluster.start_node(name, resources={"gpus": 2})
                    await has(dict.fromkeys(names, 2))
                    with pytest.raises(NoPlacementError, match="has 0 gpus left of 2"):
                        await options.spawn(Model, -1)
                await pool.resize(2)
                await has(dict.fromkeys(names, 1))
                taken = [await options.spawn(Model, number) for number in range(2)]
                await pool.resize(4)
                for model in taken:
                    await node.stop(model)
                await has(dict.fromkeys(names, 2))
            for number in range(4):
                await options.spawn(Model, number)
