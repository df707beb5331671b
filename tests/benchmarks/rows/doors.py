"""One call after the other at each door, beside trio's: the same method of the same actor."""

from __future__ import annotations

import asyncio
import time

import trio

from runtime import aio, blocking
from tests.benchmarks.measuring import Row, Settings, at_least, in_turn, sequential
from tests.benchmarks.ours import open_bench

OF_TRIO = 0.5
STEP = 20


async def measure(settings: Settings) -> list[Row]:
    """Trio's side waits while the others call, each in a thread of this process."""
    async with open_bench() as (bench, cluster):
        address = cluster.address

        def at_blocking() -> float:
            with blocking.connect(address) as connection:
                read = connection.handle(bench).read
                began, count = time.perf_counter(), 0
                while time.perf_counter() - began < settings.seconds:
                    for _ in range(STEP):
                        read()
                    count += STEP
                return count / (time.perf_counter() - began)

        async def calls() -> float:
            async with aio.connect(address) as connection:
                read = connection.handle(bench).read
                began, count = time.perf_counter(), 0
                while time.perf_counter() - began < settings.seconds:
                    for _ in range(STEP):
                        await read()
                    count += STEP
                return count / (time.perf_counter() - began)

        figures = await in_turn(
            settings.rounds,
            lambda: sequential(bench.read, settings.seconds),
            lambda: trio.to_thread.run_sync(at_blocking),
            lambda: trio.to_thread.run_sync(lambda: asyncio.run(calls())),
        )
    return [
        at_least(
            Row(f"one call after the other, {door}", "calls/s", figure, figures[0], against="trio"),
            ratio=OF_TRIO,
        )
        for door, figure in (("blocking door", figures[1]), ("asyncio door", figures[2]))
    ]
