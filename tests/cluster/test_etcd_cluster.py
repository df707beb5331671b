"""A cluster whose store is in etcd: no node is special."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from actors import ChildSpec, SpawnOptions, Supervisor
from actors.errors import NodeNameTakenError, StoreMismatchError
from runtime import Node, open_local_cluster, open_node
from runtime.testing import open_etcd
from runtime.timings import Timings
from tests.cluster.actors_used import Ledger
from tests.etcd import needs_etcd

pytestmark = [needs_etcd, pytest.mark.timeout(240)]

SECRET = "a secret of the tests with etcd"


@asynccontextmanager
async def nodes(store: str, count: int) -> AsyncIterator[list[tuple[Node, trio.Event]]]:
    """Nodes that all open at once; each leaves when its event is set."""
    opened: list[tuple[Node, trio.Event]] = []
    all_open = trio.Event()

    async def live(number: int) -> None:
        leave = trio.Event()
        async with open_node(f"node-{number}", store=store, secret=SECRET) as node:
            opened.append((node, leave))
            if len(opened) == count:
                all_open.set()
            await leave.wait()

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(live, number)
        await all_open.wait()
        yield opened
        for _, leave in opened:
            leave.set()


async def test_nodes_found_join_and_leave_all_at_once_and_the_first_is_none_of_note() -> None:
    with trio.fail_after(60):
        async with open_etcd() as etcd, nodes(etcd.address, 6) as opened:
            for node, _ in opened:
                assert len(await node.wait_for(6)) == 6
            ledger = await opened[-1][0].options(name="ledger").spawn(Ledger)
            assert await ledger.add(1) == 1
            for _, leave in opened[:4]:
                leave.set()
            rest = [node for node, _ in opened[4:]]
            for node in rest:
                for gone, _ in opened[:4]:
                    await node.wait_gone(gone.name)
                assert {member.name for member in node.members()} == {each.name for each in rest}
            assert await (await rest[0].lookup("ledger", Ledger)).add(1) == 2


async def test_a_name_of_a_live_node_and_a_secret_of_another_cluster_are_refused() -> None:
    async with open_etcd() as etcd, open_node("one", store=etcd.address, secret=SECRET) as one:
        with pytest.raises(NodeNameTakenError, match="a live node is called 'one' already"):
            async with open_node("one", store=etcd.address, secret=SECRET):
                pass
        with pytest.raises(StoreMismatchError, match="another secret"):
            async with open_node("two", store=etcd.address, secret="not that secret"):
                pass
        async with open_node(
            "two", cluster="other", store=etcd.address, secret="not that secret"
        ) as two:
            assert [member.name for member in two.members()] == ["two"]
        assert [member.name for member in one.members()] == ["one"]


async def test_a_node_that_joins_by_a_member_gets_the_address_of_the_etcd() -> None:
    async with (
        open_etcd() as etcd,
        open_node("one", store=etcd.address, secret=SECRET) as one,
        open_node("two", join=one.address, secret=SECRET) as two,
    ):
        await one.wait_for(2)
        assert two.status()["store"] == one.status()["store"] | {
            "node": "two",
            "incarnation": two.incarnation,
        }  # type: ignore[operator]


@pytest.mark.slow
async def test_actors_move_with_their_state_while_etcd_loses_a_member() -> None:
    with trio.fail_after(100):
        async with (
            open_etcd(3) as etcd,
            open_local_cluster(nodes=3, cluster="moving", store=etcd.address) as cluster,
        ):
            spec = ChildSpec(id="ledger", actor=Ledger, options=SpawnOptions(name="ledger"))
            await cluster.node.options(name="supervisor").spawn(Supervisor, [spec], intensity=100)
            ledger = await cluster.node.lookup("ledger", Ledger)
            entries = await ledger.add(1)
            for index in range(3):
                etcd.kill(index)
                where = (await ledger.where.options(timeout=20)())[0]
                if where in cluster.processes:
                    cluster.process(where).kill()
                    await cluster.start_node()
                entries_now = await ledger.add.options(timeout=30)(1)
                assert entries_now > entries
                entries = entries_now
                await etcd.start(index)
                await etcd.ready()


async def test_a_node_that_is_killed_may_come_back_under_its_name_at_once() -> None:
    rounds = 5
    async with open_local_cluster(nodes=1) as cluster:
        # Each that waited for the lease of the one before would take that long.
        with trio.fail_after(rounds * Timings().lease):
            for _ in range(rounds):
                before = {member.name: member.incarnation for member in cluster.node.members()}
                cluster.process("worker-1").kill()
                await cluster.process("worker-1").wait()
                await cluster.start_node("worker-1")
                async for members in cluster.node.watch_members():
                    if {member.name: member.incarnation for member in members}.get(
                        "worker-1", 0
                    ) > before["worker-1"]:
                        break
