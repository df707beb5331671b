"""Actors that are started: many on one node, and one on another node until its first answer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack

import trio

from tests.benchmarks.floor import open_floor
from tests.benchmarks.measuring import (
    Call,
    Figure,
    Row,
    Settings,
    at_least,
    at_most,
    in_turn,
    sequential,
)
from tests.benchmarks.memory import floor_weight
from tests.benchmarks.ours import Bench, Crowd, Idle, Numbered, open_bench

COUNT = 20_000

_Pair = tuple[Figure, Figure]
"""What is measured, and what it is beside."""


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

        async def on_another(cls: Callable[..., object], arguments: tuple[object, ...]) -> float:
            """Of one `spawn_many`, to a fresh node."""
            process = await cluster.start_node()
            await cluster.node.wait_for(3)
            began = trio.current_time()
            await cluster.node.options(on=process.name).spawn_many(cls, [arguments] * count)
            rate = count / (trio.current_time() - began)
            process.kill()
            await cluster.node.wait_gone(process.name)
            return rate

        async def in_series() -> float:
            """Of one `spawn` after the other, to that node."""
            began = trio.current_time()
            for _ in range(count // 20):
                await placed.spawn(Idle)
            return count // 20 / (trio.current_time() - began)

        one = await in_turn(
            settings.rounds,
            lambda: _milliseconds(spawn_one, settings),
            lambda: _milliseconds(floor.call, settings),
        )
        many = await in_turn(settings.rounds, spawn_many, objects)
        elsewhere = await in_turn(settings.rounds, lambda: on_another(Idle, ()), in_series)
        built = await in_turn(settings.rounds, lambda: on_another(Numbered, (1,)), in_series)
    return _rows(count, one, many, elsewhere, built)


def _rows(count: int, one: _Pair, many: _Pair, elsewhere: _Pair, built: _Pair) -> list[Row]:
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
        *(
            at_least(
                Row(
                    f"{count:,} new actors elsewhere, spawn_many{what}",
                    "actors/s",
                    *measured,
                    against="spawn one by one",
                ),
                value=goal,
            )
            for what, measured, goal in (
                ("", elsewhere, 50_000),
                (", with constructors", built, 10_000),
            )
        ),
    ]


async def _milliseconds(call: Call, settings: Settings) -> float:
    return 1000 / await sequential(call, settings.seconds)
