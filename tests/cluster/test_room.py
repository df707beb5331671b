"""Several node processes place actors on the same few GPUs at the same moment: exactly as many run
as there are.
"""

from __future__ import annotations

from collections import Counter

import pytest
import trio

from actors import ChildSpec, Supervisor
from runtime import open_local_cluster
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
