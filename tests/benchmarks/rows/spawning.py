"""Actors that are started: many on one node, and one on another node until its first answer."""

from __future__ import annotations

from contextlib import AsyncExitStack

from tests.benchmarks.floor import open_floor
from tests.benchmarks.measuring import Call, Row, Settings, at_least, at_most, in_turn, sequential
from tests.benchmarks.memory import floor_weight
from tests.benchmarks.ours import Bench, Crowd, open_bench

COUNT = 20_000


async def measure(settings: Settings) -> list[Row]:
    """Each round of many has a fresh node."""
    count = settings.size(COUNT)
    async with AsyncExitStack() as stack:
        _, cluster = await stack.enter_async_context(open_bench())
        floor = await stack.enter_async_context(open_floor())
        placed = cluster.node.options(on="worker-1")

        async def spawn_one() -> object:
            return await (await placed.spawn(Bench)).read()

        async def spawn_many() -> float:
            process = await cluster.start_node()
            await cluster.node.wait_for(3)
            rate = await (await cluster.node.options(on=process.name).spawn(Crowd)).rate(count)
            process.kill()
            await cluster.node.wait_gone(process.name)
            return rate

        async def objects() -> float:
            return (await floor_weight("objects", count))[1]

        one = await in_turn(
            settings.rounds,
            lambda: _milliseconds(spawn_one, settings),
            lambda: _milliseconds(floor.call, settings),
        )
        many = await in_turn(settings.rounds, spawn_many, objects)
    return [
        at_most(
            Row("new actor elsewhere and its first answer", "ms", *one, against="floor, one call"),
            0.3,
        ),
        at_least(
            Row(
                f"{count:,} new actors on one node",
                "actors/s",
                *many,
                against="floor, objects in a dict",
            ),
            value=20_000,
        ),
    ]


async def _milliseconds(call: Call, settings: Settings) -> float:
    return 1000 / await sequential(call, settings.seconds)
