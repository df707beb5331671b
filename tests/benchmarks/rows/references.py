"""Values that stay with their owner: made and dropped, moved, and a hundred thousand of
them alive.
"""

from __future__ import annotations

import attrs
import numpy

from runtime import open_local_cluster, open_node
from runtime.environment import Process, SystemEnvironment
from runtime.node import internals_of
from runtime.testing import Platform
from tests.benchmarks.floor import open_floor
from tests.benchmarks.measuring import (
    MEBIBYTE,
    Call,
    Figure,
    Row,
    Settings,
    at_least,
    at_most,
    in_turn,
    pipelined,
    sequential,
)
from tests.benchmarks.memory import floor_weight
from tests.benchmarks.ours import Holder, Owner, open_bench

COUNT = 100_000
AT_ONCE = 1_000
SIZE = 8


class FarAway(SystemEnvironment):
    """What a node on another host has: it shares no memory with this one, and no Unix sockets."""

    def process(self) -> Process:
        """See `Environment.process`."""
        return attrs.evolve(super().process(), host="far away")


async def measure(settings: Settings) -> list[Row]:
    """By the clock of the node that asks."""
    return [*await _made_and_dropped(settings), *await _moved(settings), *await _alive(settings)]


async def _made_and_dropped(settings: Settings) -> list[Row]:
    async with open_bench() as (_, cluster), open_floor() as floor:
        owner = await cluster.node.options(on="worker-1").spawn(Owner)

        async def put() -> None:
            await cluster.node.put(16)

        async def call() -> None:
            await owner.one.remote()

        figures = await in_turn(
            settings.rounds,
            lambda: sequential(put, settings.seconds),
            lambda: sequential(call, settings.seconds),
            lambda: pipelined(call, settings.seconds),
            lambda: pipelined(floor.call, settings.seconds),
        )
    names = (
        "put and dropped",
        "made by a call and dropped, one by one",
        "made by calls and dropped, 1,000 at once",
    )
    return [
        at_least(Row(f"references {name}", "1/s", figure, figures[3]), value=10_000)
        for name, figure in zip(names, figures, strict=False)
    ]


async def _moved(settings: Settings) -> list[Row]:
    size = settings.size(SIZE)
    array = numpy.arange(size * MEBIBYTE // 8, dtype=numpy.float64)
    gibibytes = size / 1024
    async with open_local_cluster(nodes=1, cluster="bench-references") as cluster:
        near = await cluster.node.options(on="worker-1").spawn(Holder)
        async with open_node(
            "far",
            join=cluster.node.address,
            cluster=cluster.node.cluster,
            secret=internals_of(cluster.node).keyring,
            platform=Platform(environment=FarAway()),
        ) as node:
            far = await node.options(on="worker-1").spawn(Holder)

            async def in_place() -> None:
                reference = await cluster.node.put(array)
                await near.touch(reference.as_value())  # type: ignore[arg-type]

            async def sent() -> None:
                reference = await node.put(array)
                await far.touch(reference.as_value())  # type: ignore[arg-type]

            async def as_argument() -> None:
                await far.touch(array)  # type: ignore[arg-type]

            copy = numpy.empty_like(array)

            async def copied() -> None:
                numpy.copyto(copy, array)
                copy[::512].sum()

            figures = await in_turn(
                settings.rounds,
                lambda: _speed(in_place, gibibytes, settings),
                lambda: _speed(sent, gibibytes, settings),
                lambda: _speed(as_argument, gibibytes, settings),
                lambda: _speed(copied, gibibytes, settings),
            )
    in_process = "a copy in one process"
    return [
        at_least(
            Row(
                f"array of {size} MiB by reference, one host",
                "GiB/s",
                figures[0],
                figures[3],
                in_process,
            ),
            value=8,
        ),
        Row(f"array of {size} MiB by reference, TCP", "GiB/s", figures[1], figures[3], in_process),
        at_least(
            Row(f"array of {size} MiB by value, TCP", "GiB/s", figures[2], figures[3], in_process),
            value=1.5,
        ),
    ]


async def _alive(settings: Settings) -> list[Row]:
    """The growth of the process that has the values, and of the one that holds them."""
    count = settings.size(COUNT)
    step = min(count, AT_ONCE)
    async with open_local_cluster(nodes=2, cluster="bench-alive") as cluster:
        owner = await cluster.node.options(on="worker-1").spawn(Owner)
        holder = await cluster.node.options(on="worker-2").spawn(Holder)
        await holder.hold(await owner.many(step))
        before = [await owner.weight(), await holder.weight()]
        for _ in range(0, count, step):
            await holder.hold(await owner.many(step))
        after = [await owner.weight(), await holder.weight()]
    bare = (await floor_weight("objects", count))[0] * count / MEBIBYTE
    against = "floor, objects in a dict"
    rows: list[Row] = []
    for who, least, most in zip(("owner", "holder"), before, after, strict=True):
        grown = (most - least) / MEBIBYTE
        row = Row(
            f"{count:,} references alive, {who}",
            "MiB",
            Figure(grown, grown, grown),
            Figure(bare, bare, bare),
            against,
        )
        rows.append(at_most(row, 100))
    return rows


async def _speed(work: Call, gibibytes: float, settings: Settings) -> float:
    return gibibytes * await sequential(work, settings.seconds, step=1)
