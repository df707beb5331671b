"""What commands say of an actor that does not run."""

from __future__ import annotations

from functools import partial

import pytest

from actors import ChildSpec, Supervisor
from actors.errors import ActorNotFoundError
from runtime import open_node
from runtime.command_line.actor_places import find_actor
from runtime.environment import SystemEnvironment
from runtime.links.transports import SocketNetwork
from runtime.membership.cluster_client import ClusterAccess, open_client
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
