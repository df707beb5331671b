"""What an isolated actor follows is followed again when its node has ended the stream with an
error. On a virtual clock, with a node that answers every other request with one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

import pytest
import trio

from actors.actor import Member
from actors.errors import DirectoryUnavailableError, MailboxFullError
from actors.identifiers import NodeId
from actors.method import Address
from runtime.environment import SystemEnvironment
from runtime.groups.followed_groups import Followed
from runtime.isolation.child_groups import GroupsClient
from runtime.isolation.node_api import NodeApi
from runtime.isolation.node_client import NodeClient

NODE = NodeId("node", 1)


class FailingApi:
    """A node that fails at every other request."""

    def __init__(self) -> None:
        self.asked = 0

    async def watch_members(self) -> AsyncGenerator[tuple[Member, ...], None]:
        """The node has as many processes as it was asked times."""
        self.asked += 1
        await trio.lowlevel.checkpoint()
        if self.asked % 2:
            raise MailboxFullError("too many requests, by the test")
        yield (Member("node", 1, (), "host", self.asked),)

    async def watch_group(self, group: str) -> AsyncGenerator[tuple[Address, ...], None]:
        """The only member is called like the number of the request."""
        self.asked += 1
        await trio.lowlevel.checkpoint()
        if self.asked % 2:
            raise DirectoryUnavailableError(f"{group} is away, by the test")
        yield (Address(str(self.asked), *NODE),)


@pytest.fixture
def api() -> NodeApi:
    return cast("NodeApi", FailingApi())


def groups_of(api: NodeApi, nursery: trio.Nursery) -> GroupsClient:
    return GroupsClient(NODE, cast("Any", None), SystemEnvironment(), api, nursery)


async def test_the_members_of_the_cluster_are_followed_after_each_failure(
    api: NodeApi, autojump_clock: object
) -> None:
    seen: list[int] = []

    class Client(NodeClient):
        def see(self, members: tuple[Member, ...]) -> None:
            seen.append(members[0].pid)
            if len(seen) == 3:
                nursery.cancel_scope.cancel()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            groups = groups_of(api, nursery)
            endpoint = cast("Any", Endpoint())
            client = Client(NODE, endpoint, api, groups, SystemEnvironment(), nursery)
            nursery.start_soon(client.follow)
    assert seen == [2, 4, 6]


async def test_a_group_is_followed_after_each_failure_and_those_who_wait_hear_of_it(
    api: NodeApi, autojump_clock: object
) -> None:
    async def until(followed: Followed, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await followed.wait_changed()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            groups = groups_of(api, nursery)
            followed = groups.followed("news")
            for number in ("2", "4", "6"):
                await until(followed, lambda: followed.problem is not None)
                assert isinstance(followed.problem, DirectoryUnavailableError)
                await until(followed, lambda: followed.problem is None)
                _, members = groups.members(followed)
                assert [one.address.name for one in members] == [number]
            nursery.cancel_scope.cancel()


class Endpoint:
    """As much of one as the client keeps."""

    lifetime = None
