"""Chapter 8: a test of the box office, on a simulated cluster whose nodes are killed."""

import pytest

from actors import RetryPolicy, Supervisor
from kept_office import KeptOffice, theatre
from runtime.testing import VirtualCluster, VirtualFaults

PATIENT = RetryPolicy(max_retries=20)


@pytest.mark.understudy(nodes=2)
async def test_no_seat_is_sold_twice(cluster: VirtualCluster, faults: VirtualFaults) -> None:
    await cluster.node.options(name="theatre").singleton(Supervisor, [theatre(3)])
    office = await cluster.lookup("box-office", KeptOffice)
    assert await office.buy(1, "ada") == "seat 1 is for ada"
    faults.kill(await office.where(), restart_after=60)
    with pytest.raises(Exception, match="seat 1 is taken"):
        await office.buy.options(retry=PATIENT, timeout=600)(1, "bob")
    assert await office.free() == 2
