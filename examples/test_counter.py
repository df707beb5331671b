"""Tests of an actor: on a simulated cluster, on real processes, and while nodes are killed.

Run it with `pytest test_counter.py`. No other plug-in is needed.
"""

import pytest

from actors import Actor, OutcomeUnknownError, method
from runtime.blocking import BlockingLocalCluster
from runtime.testing import (
    BlockingVirtualCluster,
    ProcessFaults,
    VirtualCluster,
    VirtualFaults,
)


class Counter(Actor):
    def __init__(self) -> None:
        self.value = 0

    @method
    async def add(self, amount: int) -> int:
        self.value += amount
        await self.save(self.value)
        return self.value

    async def on_start(self) -> None:
        self.value = await self.saved() or 0


async def test_it_counts(cluster: VirtualCluster) -> None:
    counter = await cluster.options(name="counter").spawn(Counter)
    assert await counter.add(2) == 2
    assert await counter.add(3) == 5


def test_it_counts_in_a_plain_test(cluster: BlockingVirtualCluster) -> None:
    counter = cluster.options(name="counter").spawn(Counter)
    assert counter.add(2) == 2


@pytest.mark.understudy(nodes=2, seed=17)
async def test_what_was_counted_outlives_its_node(
    cluster: VirtualCluster, faults: VirtualFaults
) -> None:
    counter = await cluster.options(name="counter", on="worker-1").spawn(Counter)
    await counter.add(2)
    faults.kill("worker-1")
    with pytest.raises(OutcomeUnknownError):
        await counter.add.options(timeout=60)(1)
    again = await cluster.options(name="counter", on="worker-2").spawn(Counter)
    assert await again.add(3) == 5


def test_on_real_processes(local_cluster: BlockingLocalCluster, faults: ProcessFaults) -> None:
    counter = local_cluster.options(name="counter", on="worker-1").spawn(Counter)
    assert counter.add(2) == 2
    faults.kill("worker-1")
    again = local_cluster.options(name="counter", on="worker-2").spawn(Counter)
    assert again.add(3) == 5
