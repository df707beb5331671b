"""A node with actors, and a dashboard of it on a real socket, all in the loop of the test."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import pytest
import trio

from actors import Actor, ChildSpec, SpawnOptions, Supervisor, method
from runtime import Node, open_node
from runtime.dashboard.application import DashboardApplication
from runtime.dashboard.sampler import Sampler
from runtime.environment import SystemEnvironment
from runtime.gateway.server import ServerLimits, serve
from runtime.links.transports import SocketNetwork
from runtime.membership.cluster_client import ClusterAccess, open_client
from tests.gateway.http_client import HttpAnswer, HttpClient

SECRET = "a secret of the tests of the dashboard"
TOKEN = "atokenofthetests1"


class Clerk(Actor):
    """Sells."""

    @method
    async def sell(self) -> int:
        """Quick."""
        return 1

    @method
    async def wait(self) -> None:
        """Without end."""
        await trio.sleep_forever()

    @method
    async def fail(self) -> None:
        """End the actor."""
        self.nursery.start_soon(self._fail)

    async def _fail(self) -> None:
        raise RuntimeError("the till is <b>empty</b>")


class Customer(Actor):
    """Buys of a clerk again and again."""

    def __init__(self, clerk: Clerk) -> None:
        self._clerk = clerk

    async def on_start(self) -> None:
        self.nursery.start_soon(self._buy)

    async def _buy(self) -> None:
        while True:
            await self._clerk.sell()
            await trio.sleep(0.05)


@attrs.frozen
class Dashboard:
    """A dashboard that is served, and its client."""

    sampler: Sampler
    application: DashboardApplication
    http: HttpClient

    async def get(self, path: str, **headers: str) -> HttpAnswer:
        """Ask with the token."""
        given = {"Authorization": f"Bearer {TOKEN}", **headers}
        return await self.http.ask("GET", path, headers=given)

    async def snapshot(self, topic: str) -> Any:
        """The sections of a topic."""
        answer = await self.get(f"/api/snapshot?topic={topic}")
        assert answer.status == 200, answer.body
        return answer.json[topic]["sections"]

    async def act(self, **action: object) -> HttpAnswer:
        """Ask for an action."""
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        return await self.http.ask(
            "POST", "/api/actions", json.dumps(action).encode(), headers=headers
        )


@asynccontextmanager
async def dashboard_of(
    address: str, cluster: str, secret: bytes, *, actions: bool = False, base: str = ""
) -> AsyncIterator[Dashboard]:
    """A dashboard of the cluster at an address."""
    environment = SystemEnvironment()
    dial = partial(
        open_client,
        access=ClusterAccess(cluster, secret, environment, SocketNetwork()),
        # What the command joins with: it has to be enough.
        rights="operator" if actions else "observer",
    )
    sampler = Sampler(dial, address, environment, actions=actions)
    application = DashboardApplication(sampler, TOKEN, base=base, actions=actions)
    async with trio.open_nursery() as nursery:
        await nursery.start(sampler.run)
        limits = ServerLimits(stall_seconds=2.0)
        where = await nursery.start(serve, application, "127.0.0.1:0", limits, trio.Event())
        yield Dashboard(sampler, application, HttpClient(int(where.rpartition(":")[2])))
        nursery.cancel_scope.cancel()


@attrs.frozen
class World:
    """What a test has."""

    node: Node
    dashboard: Dashboard


@asynccontextmanager
async def open_world(*, actions: bool = False, base: str = "") -> AsyncIterator[World]:
    """One node with a supervised clerk, and a dashboard of it."""
    async with open_node("one", secret=SECRET) as node:
        spec = ChildSpec(id="clerk", actor=Clerk, options=SpawnOptions(name="shop/clerk"))
        await node.options(name="shop").spawn(Supervisor, [spec], intensity=100)
        async with dashboard_of(
            node.address, node.cluster, SECRET.encode(), actions=actions, base=base
        ) as dashboard:
            yield World(node, dashboard)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A dashboard that only shows."""
    async with open_world() as found:
        yield found
