"""Scheduler seeds do what they say, with the trio that is installed."""

from __future__ import annotations

import trio
from trio._core import _run

from runtime.simulation.scheduler import ordered_by
from tests.scheduling import under_seeds


def order_of(seed: int) -> list[int]:
    order: list[int] = []

    async def main() -> None:
        async def task(number: int) -> None:
            await trio.lowlevel.checkpoint()
            order.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(task, number)

    with ordered_by(seed):
        trio.run(main)
    return order


def test_a_seed_is_an_order_of_tasks() -> None:
    assert all(order_of(seed) == order_of(seed) for seed in range(10))
    assert len({tuple(order_of(seed)) for seed in range(50)}) > 40


def test_a_block_of_a_seed_leaves_the_scheduler_as_it_was() -> None:
    before = _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r.getstate()
    order_of(1)
    assert (_run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r.getstate()) == before


@under_seeds(3, seconds=1e6)
async def test_virtual_time_passes_at_once() -> None:
    began = trio.current_time()
    await trio.sleep(80_000)
    assert trio.current_time() - began == 80_000
