"""Groups at the blocking and the asyncio door."""

from __future__ import annotations

import asyncio

import pytest

from actors.errors import EmptyGroupError
from runtime import aio
from runtime.blocking import BlockingLocalCluster, connect
from tests.doors.actors_used import Counter, Joining

pytestmark = pytest.mark.cluster


def test_a_group_at_the_blocking_door(cluster: BlockingLocalCluster) -> None:
    group = cluster.group("blocking", Counter)
    with pytest.raises(EmptyGroupError):
        group.choose()
    changes = group.watch()
    assert next(changes) == ()
    joined = [cluster.options(on="worker-1").spawn(Joining, "blocking") for _ in range(3)]
    while len(next(changes)) < 3:
        continue
    assert {one.name for one in group.members()} == {one.name for one in joined}
    answers = group.options(timeout=30.0).call_all(Counter.add, 2)
    assert [answer.value for answer in answers] == [2, 2, 2]
    # Handles of this door, wherever they come from.
    assert answers[0].member.add(1) == 3
    assert group.choose().read() in (2, 3)
    assert group.broadcast(Counter.append, "news") == 3
    assert all(one.wait_for("news") for one in joined)
    assert "blocking" in repr(group)
    with connect(cluster.address) as other:
        assert len(other.group("blocking", Counter).members()) == 3
    with pytest.raises(ValueError, match="usable name"):
        cluster.group(" ", Counter)


def test_a_group_at_the_asyncio_door(cluster: BlockingLocalCluster) -> None:
    joined = [cluster.options(on="worker-1").spawn(Joining, "asyncio") for _ in range(2)]

    async def main() -> None:
        async with aio.connect(cluster.address) as connection:
            group = await connection.group("asyncio", Counter)
            async for members in group.watch():
                if len(members) == 2:
                    break
            assert [await one.add(1) for one in await group.members()] == [1, 1]
            answers = await group.call_all(Counter.add, 2)
            assert [answer.value for answer in answers] == [3, 3]
            assert await answers[0].member.add(1) == 4
            assert await (await group.choose()).read() in (3, 4)
            assert await group.broadcast(Counter.append, "news") == 2

    asyncio.run(main())
    assert all(one.wait_for("news") for one in joined)
