"""How long the commands wait for a store that is silent: on a virtual clock, so that waits are added
up and not the time that a busy machine takes.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from actors import Actor, method
from actors.errors import ActorNotFoundError
from runtime import open_node
from runtime.command_line import inspect, logs, stack, why
from runtime.command_line.actor_places import STORE_SECONDS
from runtime.command_line.connect import ChosenCluster
from runtime.command_line.node_answers import NODE_SECONDS
from runtime.environment import SystemEnvironment
from runtime.membership.cluster_client import ClusterAccess, ClusterClient, open_client
from runtime.simulation.network import HostNetwork
from runtime.testing import Platform
from runtime.timings import Timings
from tests.silent_network import SilentNetwork

SECRET = "a secret of the tests of a silent store"
TIMINGS = Timings(lease=60.0)
"""The store is silent for less."""
ONCE = NODE_SECONDS + 2 * STORE_SECONDS
"""For each question at the same time. One question after the other took 13 to 19 s."""

FIRST, W1, OPERATOR = "first", "w1", "operator"


class Waiter(Actor):
    """Waits."""

    @method
    async def wait(self) -> None:
        """Without end."""
        await trio.sleep_forever()


@asynccontextmanager
async def silent_store(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """The commands meet a cluster whose store is silent; w1 is not, and has an actor."""
    network = SilentNetwork(FIRST, W1, OPERATOR)

    def options(host: str) -> dict[str, Any]:
        environment = SystemEnvironment(TIMINGS)
        platform = Platform(environment=environment, network=HostNetwork(network, host))
        return {"secret": SECRET, "platform": platform}

    async with (
        open_node("first", **options(FIRST)) as first,
        open_node("w1", join=first.address, **options(W1)) as w1,
        trio.open_nursery() as nursery,
    ):
        waiter = await first.options(name="waiter", on="w1").spawn(Waiter)
        nursery.start_soon(waiter.wait)

        @asynccontextmanager
        async def connect(*_: object) -> AsyncIterator[ClusterClient]:
            async with open_client(
                w1.address,
                ClusterAccess(
                    w1.cluster,
                    SECRET.encode(),
                    SystemEnvironment(TIMINGS),
                    HostNetwork(network, OPERATOR),
                ),
                rights="observer",
            ) as client:
                network.silence(FIRST)
                yield client

        for command in (inspect, logs, stack, why):
            monkeypatch.setattr(command, "connect", connect)
        yield
        network.hear(FIRST)
        nursery.cancel_scope.cancel()


NOWHERE = ChosenCluster("", "", None)


async def _logs(name: str) -> None:
    wanted = logs._Wanted(name, logging.DEBUG, None, 10)
    await logs._run(wanted, follow=False, as_json=False, chosen=NOWHERE)


ASKED: dict[str, Callable[[str], Awaitable[object]]] = {
    "inspect": lambda name: inspect._ask(name, NOWHERE),
    "stack": lambda name: stack._ask(name, NOWHERE),
    "why": lambda name: why._ask(name, NOWHERE),
    "logs": _logs,
}


@pytest.mark.parametrize("command", ASKED)
async def test_a_command_waits_once_for_a_store_that_is_silent(
    command: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with silent_store(monkeypatch):
        for name in ("nobody", "waiter"):
            began = trio.current_time()
            asked = partial(ASKED[command], name)
            if name == "nobody":
                with pytest.raises(ActorNotFoundError, match="neither did the store"):
                    await asked()
            else:
                await asked()
            assert trio.current_time() - began < ONCE, name
