"""Right and wrong uses of the fixtures for pytest, for type checkers; nobody runs this. A wrong one
carries the ignore that would otherwise be unused.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import assert_type

from runtime import Node
from runtime.testing import (
    AsyncLocalCluster,
    BlockingLocalCluster,
    BlockingVirtualCluster,
    EtcdNamespace,
    OngoingFault,
    ProcessFaults,
    VirtualCluster,
    VirtualFaults,
)
from tests.doors.types_of_doors import Typed


async def test_async(cluster: VirtualCluster, faults: VirtualFaults) -> None:
    counter = await cluster.options(name="counter", on="worker-1").spawn(Typed, 1)
    assert_type(await counter.add(1), int)
    assert_type(await (await cluster.lookup("counter", Typed)).add(1), int)
    await counter.add("1")  # type: ignore[arg-type]
    assert_type(cluster.node, Node)
    assert_type(faults.cut("worker-1"), OngoingFault)
    faults.kill(1)  # type: ignore[arg-type]

    async def members(node: Node) -> int:
        return len(node.members())

    assert_type(await cluster.run_on("worker-1", members), int)


def test_plain(cluster: BlockingVirtualCluster) -> None:
    counter = cluster.spawn(Typed, 1)
    assert_type(counter.add(1), int)
    counter.add("1")  # type: ignore[arg-type]
    cluster.spawn(Typed, "1")  # type: ignore[arg-type]
    assert_type(cluster.now(), float)


async def test_async_processes(
    local_cluster: AsyncLocalCluster, faults: ProcessFaults, etcd: EtcdNamespace
) -> None:
    counter = await local_cluster.spawn(Typed, 1)
    assert_type(await counter.add(1), int)
    assert_type(etcd.address, str)
    faults.kill("worker-1")


def test_processes(local_cluster: BlockingLocalCluster) -> None:
    assert_type(local_cluster.spawn(Typed, 1).add(1), int)
