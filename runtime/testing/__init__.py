"""For tests of programs that use this runtime: make the faults happen that production will.

::

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

from runtime.faults import Fault, Faults, Point
from runtime.node.opening import Platform
from runtime.testing.etcd_server import EtcdServer, open_etcd

__all__ = ["EtcdServer", "Fault", "Faults", "Platform", "Point", "open_etcd"]
