"""Isolated actors are in groups, and use them, like any other."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator

import pytest
import trio

from actors.errors import (
    DirectoryUnavailableError,
    EmptyGroupError,
    RemoteError,
    StoreUnavailableError,
)
from actors.messages import import_path
from actors.options import Isolation
from runtime import open_node
from runtime.node import Node, internals_of
from tests.groups.actors_used import Reader
from tests.groups.test_groups import until_seen
from tests.isolation.conftest import SECRET
from tests.isolation.observers import Onlooker
from tests.waiting import until

pytestmark = pytest.mark.cluster


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Node, Node]]:
    """Two nodes that know each other."""
    async with (
        open_node("here", secret=SECRET) as here,
        open_node("there", join=here.address, secret=SECRET) as there,
    ):
        await here.wait_for(2)
        with trio.fail_after(60):
            yield here, there


async def test_isolated_members_are_seen_everywhere_as_often_as_they_have_joined_and_leave(
    pair: tuple[Node, Node],
) -> None:
    here, there = pair
    await here.options(name="a", isolation="process").spawn(Reader, "news")
    b = await there.options(name="b", isolation="process").spawn(Reader)
    await b.enter("news", 2)
    for node in pair:
        await until_seen(node.group("news", Reader), ["a", "b", "b"])
    assert await here.group("news", Reader).broadcast(Reader.on_news, "hello") == 3
    assert await b.wait_heard(2) == ["hello"] * 2
    assert await b.exit("news")
    await until_seen(here.group("news", Reader), ["a", "b"])
    assert await b.exit("news")
    assert not await b.exit("news")
    assert not await b.exit("others")
    await until_seen(here.group("news", Reader), ["a"])


async def test_a_process_that_is_killed_takes_its_actor_out_of_its_groups(
    pair: tuple[Node, Node],
) -> None:
    here, there = pair
    onlooker = await there.options(isolation="process").spawn(Onlooker)
    staying = await here.options(name="staying").spawn(Reader, "news")
    victim = await here.options(name="victim", isolation="process").spawn(Onlooker, "news")
    assert sorted(await onlooker.wait_sees("news", 2)) == ["staying", "victim"]
    os.kill(await victim.pid(), signal.SIGKILL)
    assert await onlooker.wait_sees("news", 1) == ["staying"]
    await until_seen(here.group("news", Reader), ["staying"])
    await here.stop(staying)
    assert await onlooker.wait_sees("news", 0) == []


async def test_members_of_the_own_node_come_first_and_are_chosen_first(
    pair: tuple[Node, Node],
) -> None:
    here, there = pair
    for node in pair:
        for isolation in ("none", "process"):
            await node.options(name=f"{node.name}-{isolation}", isolation=isolation).spawn(
                Reader, "news"
            )
    for node, other in ((here, there), (there, here)):
        onlooker = await node.options(isolation="process").spawn(Onlooker)
        seen = await onlooker.wait_sees("news", 4)
        assert [name.partition("-")[0] for name in seen] == [
            node.name,
            node.name,
            other.name,
            other.name,
        ]
        assert set(await onlooker.choose_some("news", 60)) == {
            f"{node.name}-none",
            f"{node.name}-process",
        }


async def test_a_group_without_members_has_none_to_choose(pair: tuple[Node, Node]) -> None:
    here, there = pair
    onlooker = await here.options(isolation="process").spawn(Onlooker)
    with pytest.raises(RemoteError, match="has no members that node here knows of") as caught:
        await onlooker.choose_some("news", 1)
    assert EmptyGroupError.__name__ in caught.value.remote_traceback
    await there.options(name="far").spawn(Reader, "news")
    await onlooker.wait_sees("news", 1)
    assert await onlooker.choose_some("news", 2) == ["far", "far"]


async def test_all_members_are_called_from_the_process_and_each_outcome_is_reported(
    pair: tuple[Node, Node],
) -> None:
    here, _ = pair
    onlooker = await here.options(isolation="process").spawn(Onlooker)
    readers = [
        await node.options(isolation=isolation).spawn(Reader, "news")
        for node in pair
        for isolation in ("none", "process")
    ]
    await onlooker.wait_sees("news", 4)
    assert (
        sorted(await onlooker.ask_all("news"))
        == [("here", "NoneType")] * 2 + [("there", "NoneType")] * 2
    )
    assert await onlooker.spread("news", "hello") == 4
    for reader in readers:
        assert await reader.wait_heard(1) == ["hello"]
    assert [value for value, error in await onlooker.ask_all("news") if error != "ValueError"] == []


async def test_an_actor_sees_itself_in_a_group_and_thousands_of_members_arrive(node: Node) -> None:
    with trio.fail_after(60):
        onlooker = await node.options(isolation="process", name="onlooker").spawn(Onlooker, "crowd")
        crowd = await node.spawn(Reader)
        await crowd.enter("crowd", 3_000)
        seen = await onlooker.wait_sees("crowd", 3_001)
        assert seen.count("onlooker") == 1


@pytest.mark.parametrize("isolation", ["none", "process"])
async def test_a_member_that_broadcasts_in_its_turn_hears_it_afterwards(
    node: Node, isolation: Isolation
) -> None:
    with trio.fail_after(60):
        onlooker = await node.options(isolation=isolation).spawn(Onlooker, "news")
        other = await node.options(isolation="process").spawn(Reader, "news")
        await onlooker.wait_sees("news", 2)
        assert await onlooker.spread("news", "hello") == 2
        assert await onlooker.wait_heard(1) == await other.wait_heard(1) == ["hello"]


async def test_a_group_that_nobody_holds_any_more_is_followed_no_longer(node: Node) -> None:
    with trio.fail_after(60):
        onlooker = await node.options(isolation="process").spawn(Onlooker)
        await onlooker.look_often(0.05)
        await onlooker.wait_sees("news", 0)
        assert "group news" in await onlooker.tasks()
        await until(
            onlooker.tasks,
            "the group is not followed any more",
            lambda tasks: "group news" not in tasks,
            every=0.02,
        )
        # And what is held is followed, however long.
        await onlooker.hold("news")
        for _ in range(4):
            await trio.sleep(0.05)
        reader = await node.options(name="late").spawn(Reader, "news")
        await until(onlooker.held_names, "the late one is seen", lambda names: names == ["late"])
        await node.stop(reader)


async def test_a_group_that_is_asked_for_with_each_call_is_followed_once(node: Node) -> None:
    with trio.fail_after(60):
        onlooker = await node.options(isolation="process").spawn(Onlooker, "news")
        await onlooker.wait_sees("news", 1)
        for number in range(20):
            assert await onlooker.spread("news", str(number)) == 1
        assert (await onlooker.tasks()).count("group news") == 1


async def test_while_the_store_is_away_a_group_is_unavailable_and_followed_again_afterwards(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*arguments: object) -> None:
        await trio.lowlevel.checkpoint()
        raise StoreUnavailableError("away, by the test")

    with trio.fail_after(60):
        onlooker = await node.options(isolation="process").spawn(Onlooker)
        near = await node.spawn(Onlooker)
        await node.options(name="reader").spawn(Reader, "news")
        with monkeypatch.context() as patched:
            patched.setattr(internals_of(node).store, "range", away)
            for one in (onlooker, near):
                for ask in (one.ask_all("news"), one.spread("news", "hello"), one.ready("news")):
                    with pytest.raises(RemoteError, match="the members of the group 'news'") as it:
                        await ask
                    assert it.value.remote_type == import_path(DirectoryUnavailableError)
        # No other task asks for it: it is followed by the same request.
        assert await onlooker.wait_sees("news", 1) == ["reader"]
        await onlooker.ready("news")
        assert await onlooker.spread("news", "hello") == 1
