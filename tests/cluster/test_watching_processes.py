"""Watches, links and groups over node processes that are killed and stopped for real."""

from __future__ import annotations

import pytest
import trio

from actors import Group
from runtime import open_local_cluster
from tests.groups.actors_used import Reader
from tests.watching.actors_used import Partner, Watched, Watcher

pytestmark = pytest.mark.cluster


async def test_a_killed_process_gives_one_notice_for_each_watch_and_stops_what_is_linked() -> None:
    async with open_local_cluster(nodes=2) as cluster:
        node = cluster.node
        victim = await node.options(name="victim", on="worker-1").spawn(Watched)
        unnamed = await node.options(on="worker-1").spawn(Watched)
        near, far = await node.spawn(Watcher), await node.options(on="worker-2").spawn(Watcher)
        linked, tied = (
            await node.options(on="worker-2").spawn(Partner),
            await node.options(on="worker-1").spawn(Partner),
        )
        for watcher in (near, far):
            await watcher.look_at_all([victim, unnamed, victim])
        await linked.tie(tied)
        with trio.fail_after(60):
            await victim.kill_process.send()
            for watcher in (near, far):
                notices = await watcher.wait_told(3)
                assert [notice.reason.kind for notice in notices] == ["node died"] * 3
                assert sorted(notice.name for notice in notices) == sorted(
                    ["victim", "victim", unnamed.name]
                )
            assert (await node.wait_ended(linked)).reason.kind in ("node died", "no such actor")
            await cluster.node.wait_gone("worker-1")
        # It comes back as a new incarnation, with an actor of the same name.
        await cluster.start_node("worker-1")
        await node.options(name="victim", on="worker-1").spawn(Watched)
        for watcher in (near, far):
            assert len(await watcher.told()) == 3
            # A watch from now on is of the new one.
            await watcher.look_at(victim)
        await node.stop(victim)
        with trio.fail_after(60):
            for watcher in (near, far):
                assert [notice.reason.kind for notice in await watcher.wait_told(4)] == [
                    "node died"
                ] * 3 + ["stopped"]


@pytest.mark.slow
async def test_a_node_that_cannot_be_reached_gives_no_notice_before_it_is_dead() -> None:
    async with open_local_cluster(nodes=1) as cluster:
        watched = await cluster.node.options(on="worker-1").spawn(Watched)
        watcher = await cluster.node.spawn(Watcher)
        await watcher.look_at(watched)
        process = cluster.process("worker-1")
        process.pause()
        with trio.move_on_after(2.0) as patience:
            await watcher.wait_told(1)
        assert patience.cancelled_caught
        with trio.fail_after(60):
            (notice,) = await watcher.wait_told(1)
        assert notice.reason.kind == "node died"
        process.resume()
        with trio.fail_after(60):
            await process.wait()
        assert len(await watcher.told()) == 1


async def test_a_group_drops_the_members_of_a_killed_process() -> None:
    async with open_local_cluster(nodes=2) as cluster:
        node = cluster.node
        group: Group[Reader] = node.group("news", Reader)
        readers = [
            await node.options(on=f"worker-{1 + number % 2}").spawn(Reader, "news")
            for number in range(6)
        ]
        with trio.fail_after(60):
            async for members in group.watch():
                if len(members) == 6:
                    break
            await readers[0].kill_process.send()
            async for members in group.watch():
                if len(members) == 3:
                    break
            assert {member.name for member in group.members()} == {
                reader.name for reader in readers[1::2]
            }
            assert await group.broadcast(Reader.on_news, "still here") == 3
            answers = await group.call_all(Reader.wait_heard, 1)
        assert [answer.value for answer in answers] == [["still here"]] * 3
