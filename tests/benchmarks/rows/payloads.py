"""Bytes and arrays there and back, and small calls beside large ones."""

from __future__ import annotations

from contextlib import AsyncExitStack

import numpy
import trio

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
    sequential,
    times,
)
from tests.benchmarks.ours import Bench, open_bench

LONGEST_P99 = 10.0


async def measure(settings: Settings) -> list[Row]:
    """MiB per second, the sum of both directions."""
    large, medium = settings.size(64), settings.size(8)
    async with AsyncExitStack() as stack:
        bench, _ = await stack.enter_async_context(open_bench())
        floor = await stack.enter_async_context(open_floor())

        async def beside_the_floor(echo: Call, size: int) -> tuple[Figure, Figure]:
            raw = bytes(size * MEBIBYTE)
            return await in_turn(
                settings.rounds,
                lambda: _both_ways(echo, size, settings),
                lambda: _both_ways(lambda: floor.echo(raw), size, settings),
            )

        small_bytes, large_bytes = bytes(MEBIBYTE), bytes(large * MEBIBYTE)
        array = numpy.zeros(medium * MEBIBYTE // 8)
        return [
            at_least(
                Row(
                    "echo of 1 MiB",
                    "MiB/s",
                    *await beside_the_floor(lambda: bench.echo(small_bytes), 1),
                ),
                value=2000,
            ),
            at_least(
                Row(
                    f"echo of {large} MiB",
                    "MiB/s",
                    *await beside_the_floor(lambda: bench.echo(large_bytes), large),
                ),
                value=1200,
            ),
            Row(
                f"echo of an array of {medium} MiB",
                "MiB/s",
                *await beside_the_floor(lambda: bench.echo_array(array), medium),
            ),
        ]


async def measure_mixed(settings: Settings) -> list[Row]:
    """How long small calls take on a link that carries large transfers all the time, and on the
    same link without them.
    """
    large = bytes(settings.size(64) * MEBIBYTE)
    percents = (50, 99)
    beside: list[list[float]] = [[] for _ in percents]
    alone: list[list[float]] = [[] for _ in percents]
    async with open_bench() as (bench, cluster):
        carrier = await cluster.node.options(on="worker-1").spawn(Bench)
        for number in range(settings.rounds + 1):
            for values, took in (
                (beside, await _times_beside(bench.read, lambda: carrier.echo(large), settings)),
                (alone, await times(bench.read, settings.seconds)),
            ):
                for percent, found in zip(percents, values, strict=True):
                    if number:
                        found.append(took[len(took) * percent // 100])
    against = "nothing else on the link"
    p50, p99 = (
        Row(
            f"small calls beside {len(large) // MEBIBYTE} MiB, p{percent}",
            "ms",
            Figure.of(loaded),
            Figure.of(idle),
            against,
        )
        for percent, loaded, idle in zip(percents, beside, alone, strict=True)
    )
    return [p50, at_most(p99, LONGEST_P99)]


async def _both_ways(echo: Call, mebibytes: int, settings: Settings) -> float:
    return 2 * mebibytes * await sequential(echo, settings.seconds, step=1)


async def _times_beside(call: Call, transfer: Call, settings: Settings) -> list[float]:
    async def carry() -> None:
        while True:
            await transfer()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(carry)
        took = await times(call, settings.seconds)
        nursery.cancel_scope.cancel()
    return took
