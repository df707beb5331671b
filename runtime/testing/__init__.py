"""For tests of programs that use this runtime: make the faults happen that production will.

The plug-in for pytest has clusters as fixtures (docs/how-to/testing.md). Their types, to annotate
with::

    from runtime.testing import VirtualCluster, VirtualFaults

    async def test_it_comes_back(cluster: VirtualCluster, faults: VirtualFaults) -> None:
        ...

Failpoints::

    from runtime.testing import Faults, Platform

    faults = Faults()
    faults.add("reply-lost", times=1, method="add")
    async with open_node(platform=Platform(faults=faults)) as node:
        ...

Without a change to the program, `UNDERSTUDY_FAULTS="reply-lost=0.1,request-lost=0.1"` switches
faults on in every node that starts.

`open_etcd` starts and stops a local etcd whose members can be killed and paused::

    async with open_etcd(members=3) as etcd, open_node(store=etcd.address) as node:
        etcd.kill(0)
        ...
"""

from importlib import import_module
from typing import TYPE_CHECKING

from runtime.faults import Fault, Faults, Point
from runtime.node.opening import Platform
from runtime.testing.etcd_server import EtcdCertificates, EtcdServer, open_etcd

if TYPE_CHECKING:
    from runtime.blocking import BlockingLocalCluster
    from runtime.testing.cluster_faults import OngoingFault, ProcessFaults, VirtualFaults
    from runtime.testing.etcd_namespace import EtcdNamespace
    from runtime.testing.process_cluster import AsyncLocalCluster
    from runtime.testing.virtual_cluster import VirtualCluster, VirtualClusterError
    from runtime.testing.virtual_thread import BlockingVirtualCluster

__all__ = [
    "AsyncLocalCluster",
    "BlockingLocalCluster",
    "BlockingVirtualCluster",
    "EtcdCertificates",
    "EtcdNamespace",
    "EtcdServer",
    "Fault",
    "Faults",
    "OngoingFault",
    "Platform",
    "Point",
    "ProcessFaults",
    "VirtualCluster",
    "VirtualClusterError",
    "VirtualFaults",
    "open_etcd",
]

PLACES = {
    "AsyncLocalCluster": "runtime.testing.process_cluster",
    "BlockingLocalCluster": "runtime.blocking",
    "BlockingVirtualCluster": "runtime.testing.virtual_thread",
    "EtcdNamespace": "runtime.testing.etcd_namespace",
    "OngoingFault": "runtime.testing.cluster_faults",
    "ProcessFaults": "runtime.testing.cluster_faults",
    "VirtualCluster": "runtime.testing.virtual_cluster",
    "VirtualClusterError": "runtime.testing.virtual_cluster",
    "VirtualFaults": "runtime.testing.cluster_faults",
}
"""The modules of what is imported when it is first used: a program with failpoints needs neither
the simulation nor the doors.
"""


if not TYPE_CHECKING:
    # To a type checker a name that is not there is a mistake.

    def __getattr__(name: str) -> object:
        """Import what was asked for."""
        place = PLACES.get(name)
        if place is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(place), name)
