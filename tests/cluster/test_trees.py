"""Trees over node processes that are killed for real: the root is elected anew, and adopts what
lives.
"""

from __future__ import annotations

import os
import signal

import pytest
import trio

from actors import ChildSpec, RetryPolicy, Supervisor, UnderstudyError
from runtime import open_local_cluster
from runtime.node import Node
from tests.cluster.tree_actors import Candidate, Member, Root
from tests.waiting import until

pytestmark = pytest.mark.cluster


async def life(node: Node, name: str) -> tuple[int, int]:
    while True:
        try:
            return await (await node.lookup(name, Member)).life()
        except UnderstudyError:
            await trio.sleep(0.01)


async def test_a_killed_root_is_elected_elsewhere_and_adopts_its_children() -> None:
    async with open_local_cluster(nodes=3) as cluster:
        node = cluster.node
        specs = [
            ChildSpec.of("steady", Member).changed(on="worker-3"),
            ChildSpec.of(
                "branch",
                Supervisor,
                [ChildSpec.of("leaf", Member).changed(on="worker-3")],
                intensity=10,
            ),
        ]
        for name in ("worker-1", "worker-2"):
            await (await node.options(on=name).spawn(Candidate)).stand(specs)
        before = {name: await life(node, name) for name in ("root/steady", "root/branch/leaf")}
        for _ in range(4):
            root = await node.lookup("root", Root)
            process = await root.process.options(retry=RetryPolicy(max_retries=20))()
            victim = next(member.name for member in node.members() if member.pid == process)
            os.kill(process, signal.SIGKILL)
            with trio.fail_after(60):
                assert (
                    await root.process.options(retry=RetryPolicy(max_retries=100, max_delay=0.1))()
                    != process
                )
                assert {name: await life(node, name) for name in before} == before
                await node.wait_gone(victim)
                await cluster.start_node(victim)
                await until(
                    lambda: [member.name for member in node.members()],
                    f"{victim} is a member",
                    lambda names: victim in names,  # noqa: B023
                )
                await (await node.options(on=victim).spawn(Candidate)).stand(specs)
        # A child whose own process is killed comes back, and the root has seen it.
        os.kill(before["root/steady"][0], signal.SIGKILL)
        with trio.fail_after(60):
            await node.wait_gone("worker-3")
            await cluster.start_node("worker-3")
            assert (await life(node, "root/steady"))[1] > before["root/steady"][1]
            statuses = await (await node.lookup("root", Root)).children()
        # The later of the two: it could not be placed until its node was back.
        assert {status.last_exit.kind for status in statuses if status.last_exit is not None} & {
            "node died",
            "not placed",
        }
