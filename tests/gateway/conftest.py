"""A node, an actor on it and a gateway on a real socket, all in the loop of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from runtime import Node, open_node
from runtime.environment import SystemEnvironment
from runtime.gateway import RequestLimits, application
from runtime.gateway.server import ServerLimits, serve
from runtime.testing import Platform
from runtime.timings import Timings
from tests.gateway.actors_used import Counter
from tests.gateway.http_client import HttpClient

SECRET = "a secret of the tests of the gateway"


@attrs.frozen
class World:
    """What a test has."""

    node: Node
    counter: Counter
    http: HttpClient


@asynccontextmanager
async def gateway(
    node: Node,
    *,
    allow: tuple[str, ...] = (),
    token: str | None = None,
    limits: RequestLimits | None = None,
    server_limits: ServerLimits | None = None,
) -> AsyncIterator[HttpClient]:
    """A gateway of a node."""
    app = application(node, allow=allow, token=token, limits=limits)
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        where = await nursery.start(
            serve, app, "127.0.0.1:0", server_limits or ServerLimits(), stop
        )
        yield HttpClient(int(where.rpartition(":")[2]))
        stop.set()
        nursery.cancel_scope.deadline = trio.current_time() + 5


@pytest.fixture
def timings() -> Timings:
    """Of the node; a test parametrizes it to have others."""
    return Timings()


@pytest.fixture
async def world(timings: Timings) -> AsyncIterator[World]:
    """One node, the counter on it, and a gateway."""
    platform = Platform(environment=SystemEnvironment(timings))
    async with open_node("one", secret=SECRET, platform=platform) as node:
        counter = await node.options(name="counter").spawn(Counter)
        # As the command joins: the role of a client has to be enough.
        async with (
            open_node("gateway", join=node.address, secret=SECRET, role="client") as client,
            gateway(client) as http,
        ):
            yield World(node, counter, http)
