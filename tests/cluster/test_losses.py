"""A node process is killed with many children of one supervisor on it: nothing ends but what was
there, and that is started again.
"""

from __future__ import annotations

import os
import signal

import pytest
import trio

from actors import ChildSpec, Supervisor
from actors.retry import RetryPolicy
from runtime import open_local_cluster
from tests.cluster.actors_used import Diligent

pytestmark = pytest.mark.cluster

PATIENT = RetryPolicy(max_retries=100, initial_delay=0.05, max_delay=0.5, repeat_unknown=True)


async def test_a_killed_process_with_many_children_uses_up_no_restarts() -> None:
    async with open_local_cluster(nodes=1) as cluster:
        await cluster.start_node("first", labels={"role": "work"})
        leaves = [
            ChildSpec.of(f"{number}", Diligent).changed(labels={"role": "work"})
            for number in range(5)
        ]
        branch = ChildSpec.of("branch", Supervisor, leaves).changed(labels={"role": "work"})
        top = await cluster.node.options(name="top").spawn(Supervisor, [*leaves, branch])
        names = [f"top/{number}" for number in range(5)] + [
            f"top/branch/{number}" for number in range(5)
        ]
        workers = [await cluster.node.lookup(name, Diligent) for name in names]
        before = {await worker.work(0) for worker in workers}
        assert len(before) == 1
        await cluster.start_node("second", labels={"role": "work"})
        os.kill(before.pop(), signal.SIGKILL)
        with trio.fail_after(60):
            # Through the handles from before, each waits for its worker, and those of the branch
            # for the branch.
            for worker in workers:
                assert await worker.work.options(retry=PATIENT)(0)
        status = await top.status()
        assert status.recent_restarts == 0
        assert {child.state for child in status.children} == {"running"}
        inner = await (await cluster.node.lookup("top/branch", Supervisor)).status()
        assert inner.recent_restarts == 0
