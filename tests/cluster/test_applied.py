"""Processes that are killed between the save and the answer: the call is repeated to a successor,
and is not applied again.
"""

from __future__ import annotations

import pytest
import trio

from actors import ChildSpec, RetryPolicy, SpawnOptions, Supervisor
from runtime import open_local_cluster
from runtime.cluster_processes import LocalCluster
from tests.cluster.actors_used import Ledger

pytestmark = pytest.mark.cluster

AGAIN = RetryPolicy(max_retries=20, initial_delay=0.05, repeat_unknown=True)


async def supervised(cluster: LocalCluster, options: SpawnOptions) -> Ledger:
    spec = ChildSpec(id="ledger", actor=Ledger, options=options)
    await cluster.node.options(name="tree").spawn(Supervisor, [spec], intensity=100)
    return await cluster.node.lookup("ledger", Ledger)


async def test_a_call_saved_before_its_process_was_killed_is_answered_by_the_successor() -> None:
    async with open_local_cluster(nodes=0) as cluster:
        for name in ("left", "right", "middle"):
            await cluster.start_node(name, labels={"role": "ledger"})
        with trio.fail_after(30):
            ledger = await supervised(
                cluster, SpawnOptions(name="ledger", labels={"role": "ledger"})
            )
            for count in (1, 2):
                home, epoch = await ledger.where.options(retry=AGAIN)()
                answer = await ledger.add_and_be_killed.options(retry=AGAIN)(1)
                assert answer == f"{count}, saved by {home} at {epoch}"
                elsewhere, later = await ledger.where.options(retry=AGAIN)()
                assert elsewhere != home
                assert later > epoch
            assert await ledger.read() == 2


async def test_the_successor_may_be_on_the_node_of_the_caller() -> None:
    async with open_local_cluster(nodes=1) as cluster:
        with trio.fail_after(30):
            ledger = await supervised(cluster, SpawnOptions(name="ledger"))
            home, epoch = await ledger.where()
            assert home == "worker-1"
            assert (
                await ledger.add_and_be_killed.options(retry=AGAIN)(5)
                == f"5, saved by worker-1 at {epoch}"
            )
            assert (await ledger.where())[0] == "driver"
            assert (
                await ledger.add_and_be_killed.options(retry=AGAIN)(1)
                == f"6, saved by driver at {(await ledger.where())[1]}"
            )
            assert await ledger.read() == 6
