"""What commands say of an actor that does not run."""

from __future__ import annotations

import json
from functools import partial

import pytest
import trio

from actors import ChildSpec, Supervisor
from actors.errors import ActorNotFoundError
from runtime import open_node
from runtime.command_line.actor_places import find_actor
from runtime.environment import SystemEnvironment
from runtime.links.transports import SocketNetwork
from runtime.logs.archive import GONE
from runtime.membership.cluster_client import ClusterAccess, open_client
from runtime.node import internals_of
from tests.dashboard.conftest import SECRET, Clerk


async def test_a_child_that_does_not_run_is_said_to_be_what_its_supervisor_knows() -> None:
    async with open_node("one", secret=SECRET) as node:
        boss = await node.options(name="shop").spawn(Supervisor, [ChildSpec.of("clerk", Clerk)])
        await boss.stop_child("clerk")
        async with open_client(
            node.address,
            ClusterAccess(node.cluster, SECRET.encode(), SystemEnvironment(), SocketNetwork()),
            rights="observer",
        ) as client:
            with pytest.raises(ActorNotFoundError, match="its supervisor shop says stopped"):
                await find_actor(client, "shop/clerk")
            with pytest.raises(ActorNotFoundError, match="did you mean 'shop'"):
                await find_actor(client, "shopp")
            with pytest.raises(ActorNotFoundError, match=r"'one' is a node.*understudy stack one"):
                await find_actor(client, "one")
            await boss.restart_child("clerk")
            for find in (partial(find_actor, client), client.lookup):
                with pytest.raises(ActorNotFoundError, match="did you mean 'shop/clerk'"):
                    await find("clerk")


async def test_one_that_has_just_ended_is_not_offered_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def names_alike(_client: object, name: str) -> set[str]:
        await trio.lowlevel.checkpoint()
        return {name, "clerks"}

    monkeypatch.setattr("runtime.command_line.actor_places.names_alike", names_alike)
    async with open_node("one", secret=SECRET) as node:
        access = ClusterAccess(node.cluster, SECRET.encode(), SystemEnvironment(), SocketNetwork())
        async with open_client(node.address, access, rights="observer") as client:
            with pytest.raises(ActorNotFoundError, match="ended or moves; ask again") as raised:
                await find_actor(client, "clerk")
    assert "did you mean" not in str(raised.value)


ENDS: list[dict[str, object]] = [
    {"how": "died", "reason": "its lease has ended"},
    {"how": "left", "reason": ""},
    {"how": "died", "reason": "its process has ended", "calls_only": True},
]
"""Of nodes w0, w1 and w2, the last to end last."""


async def test_an_actor_that_is_nowhere_is_not_said_to_have_been_on_a_node_that_left_or_only_called() -> (
    None
):
    async with open_node("one", secret=SECRET) as node:
        store = internals_of(node).store
        access = ClusterAccess(node.cluster, SECRET.encode(), SystemEnvironment(), SocketNetwork())
        for number in (2, 1, 0):
            end = {"at": 1e9 + number, **ENDS[number]}
            await store.put(f"{GONE}w{number}/{number + 1}", json.dumps(end).encode())
            async with open_client(node.address, access, rights="observer") as client:
                with pytest.raises(ActorNotFoundError) as caught:
                    await find_actor(client, "nowhere")
            text = str(caught.value)
            assert ("node w0 (incarnation 1) has ended, and it may have been" in text) == (
                number == 0
            ), text
            assert "w1" not in text
            assert "w2" not in text
