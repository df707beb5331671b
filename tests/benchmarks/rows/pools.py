"""Items per second of a map over a pool, beside `concurrent.futures.ProcessPoolExecutor.map` with
as many processes; also while one of them is killed midway, which breaks the executor: its map is
begun once more, by a new one.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

import trio

from actors import RetryPolicy
from runtime import LocalCluster, open_local_cluster
from runtime.pools.pool import Pool
from tests.benchmarks.measuring import MEBIBYTE, Row, Settings, at_least, in_turn

EQUAL = 1.0
WORK = (("10 µs", 1e-5), ("1 ms", 1e-3), ("50 ms", 0.05))


def spin(seconds: float) -> float:
    """Compute for so long."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
    return seconds


def first(array: object) -> float:
    """Look at a large argument."""
    return float(array[0])  # type: ignore[index]


async def measure(settings: Settings) -> list[Row]:
    """Both do the same items in turn."""
    rows: list[Row] = []
    for members in (2, 4):
        async with (
            open_local_cluster(members) as cluster,
            await cluster.node.pool(None, spin, size=members) as spinning,
            await cluster.node.pool(None, first, size=members) as looking,
        ):
            await spinning.ready(members)
            await looking.ready(members)
            with ProcessPoolExecutor(
                members, multiprocessing.get_context("forkserver")
            ) as executor:
                for name, seconds in WORK:
                    count = max(4 * members, int(settings.seconds * members / max(seconds, 1e-4)))
                    items = [seconds] * settings.size(count)
                    rows.append(
                        await _row(name, members, settings, spinning, executor, spin, items)
                    )
                rows.append(
                    await _row(
                        "1 MiB arrays",
                        members,
                        settings,
                        looking,
                        executor,
                        first,
                        _arrays(settings.size(200)),
                    )
                )
            rows.append(await _row_with_a_death(members, settings, cluster, spinning))
    return rows


async def _row(
    name: str,
    members: int,
    settings: Settings,
    pool: Pool[float],
    executor: ProcessPoolExecutor,
    function: Callable[..., float],
    items: Sequence[object],
) -> Row:
    async def ours() -> float:
        began = time.perf_counter()
        count = sum([1 async for _ in pool.map(function, items)])
        return count / (time.perf_counter() - began)

    async def theirs() -> float:
        began = time.perf_counter()
        await trio.to_thread.run_sync(lambda: list(executor.map(function, items)))
        return len(items) / (time.perf_counter() - began)

    mine, other = await in_turn(settings.rounds, ours, theirs)
    row = Row(f"map, {name}, {members} members", "items/s", mine, other, against="executor")
    return at_least(row, ratio=EQUAL)


async def _row_with_a_death(
    members: int, settings: Settings, cluster: LocalCluster, pool: Pool[float]
) -> Row:
    items = [1e-3] * settings.size(int(1000 * members * settings.seconds))
    repeated = RetryPolicy(repeat_unknown=True)

    async def ours() -> float:
        await pool.ready(members)
        began, count = time.perf_counter(), 0
        async for _ in pool.map(spin, items, retry=repeated):
            count += 1
            if count == len(items) // 2:
                name = next(name for name, one in cluster.processes.items() if one.running)
                cluster.process(name).kill()
        rate = count / (time.perf_counter() - began)
        # For the next round, and not a part of this one.
        await cluster.start_node()
        return rate

    async def theirs() -> float:
        began = time.perf_counter()
        await trio.to_thread.run_sync(_map_by_executors, members, items)
        return len(items) / (time.perf_counter() - began)

    mine, other = await in_turn(settings.rounds, ours, theirs)
    row = Row(f"map, 1 ms, 1 of {members} killed", "items/s", mine, other, against="executor")
    return at_least(row, ratio=EQUAL)


def _map_by_executors(members: int, items: Sequence[float]) -> None:
    """All items, by a second executor if the first one breaks, as it does."""
    for is_last in (False, True):
        with ProcessPoolExecutor(members, multiprocessing.get_context("forkserver")) as executor:
            # All processes first, by items that no idle one can take: one that the executor starts
            # while another is killed waits for ever for a lock that the dead one held, and the
            # executor for it (CPython 3.11).
            wait([executor.submit(spin, 0.2) for _ in range(members)])
            processes = multiprocessing.active_children()
            try:
                for number, _ in enumerate(executor.map(spin, items)):
                    if number == len(items) // 2 and not is_last:
                        processes[0].kill()
            except BrokenProcessPool:
                continue
            else:
                return
            finally:
                # For the same lock: where the others had done all items before the executor saw
                # the death, it waits for ever for those that wait for the lock.
                if not is_last:
                    for process in processes:
                        process.kill()


def _arrays(count: int) -> list[object]:
    # An extra: not imported where these rows are not asked for.
    import numpy as np

    return [np.zeros(MEBIBYTE // 8)] * count
