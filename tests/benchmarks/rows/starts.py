"""Starts on another node from many tasks at once, and actors with names from their start to their
stop.
"""

from __future__ import annotations

import itertools

import trio

from actors.actor import Actor
from runtime import LocalCluster
from tests.benchmarks.measuring import (
    Row,
    Settings,
    at_least,
    at_most,
    in_turn,
    pipelined,
    sequential,
)
from tests.benchmarks.ours import Idle, Numbered, open_bench

COUNT = 1_000
AT_ONCE = 20


async def measure(settings: Settings) -> list[Row]:
    """Actors without a constructor, with one, and with names."""
    count, numbers = settings.size(COUNT), itertools.count()
    async with open_bench() as (bench, cluster):
        placed = cluster.node.options(on="worker-1")

        async def live() -> None:
            """Make an actor with a name, call it, and stop it."""
            actor = await placed.options(name=f"one-{next(numbers)}").spawn(Idle)
            await actor.read()
            await cluster.node.stop(actor)

        async def answer() -> None:
            await (await placed.options(name=f"one-{next(numbers)}").spawn(Idle)).read()

        async def milliseconds() -> float:
            return 1000 / await sequential(answer, settings.seconds)

        async def call() -> float:
            return 1000 / await sequential(bench.read, settings.seconds)

        plain, built, at_once = await in_turn(
            settings.rounds,
            lambda: _side_by_side(cluster, count, Idle),
            lambda: _side_by_side(cluster, count, Numbered, 1),
            lambda: _in_one(cluster, count),
        )
        lives, one_by_one = await in_turn(
            settings.rounds,
            lambda: pipelined(live, settings.seconds, AT_ONCE),
            lambda: sequential(live, settings.seconds),
        )
        first, bare = await in_turn(settings.rounds, milliseconds, call)
    against = "one spawn_many"
    return [
        at_least(
            Row(f"{count:,} spawns side by side", "actors/s", plain, at_once, against),
            value=15_000,
        ),
        Row(f"{count:,} spawns side by side, constructors", "actors/s", built, at_once, against),
        at_least(
            Row(
                f"named actors made, called, stopped, {AT_ONCE}",
                "actors/s",
                lives,
                one_by_one,
                "one after the other",
            ),
            value=8_000,
        ),
        at_most(
            Row("new named actor and its first answer", "ms", first, bare, "one call"), value=0.6
        ),
    ]


async def _side_by_side(
    cluster: LocalCluster, count: int, actor: type[Actor], *args: object
) -> float:
    """Actors in a second, each spawned by a task of its own."""
    placed = cluster.node.options(on="worker-1")

    async def spawn() -> None:
        await placed.spawn(actor, *args)

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(spawn)
    return count / (trio.current_time() - began)


async def _in_one(cluster: LocalCluster, count: int) -> float:
    began = trio.current_time()
    await cluster.node.options(on="worker-1").spawn_many(Idle, [()] * count)
    return count / (trio.current_time() - began)
