"""A node whose advertised address leads nowhere: whoever asks the cluster from another machine is
told at which address it is not reached, and not that its process may be stopped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from actors.errors import DeadlineExceededError, StoreUnavailableError
from runtime import open_node
from runtime.command_line.node_answers import ask_nodes, inspection
from runtime.environment import Process, SystemEnvironment
from runtime.links.keyring import Keyring
from runtime.links.transports import SocketNetwork
from runtime.membership.cluster_client import ClusterAccess, open_client
from runtime.node import Node
from runtime.node.opening import Platform
from runtime.timings import Timings
from tests.free_addresses import free_address
from tests.live_pair import SECRET


class Elsewhere(SystemEnvironment):
    """That of a process on another machine: no Unix socket leads to the nodes of this one."""

    def process(self) -> Process:
        return attrs.evolve(super().process(), host="elsewhere")


@asynccontextmanager
async def beside_an_unreached_founder() -> AsyncIterator[tuple[Node, str]]:
    """A node that reaches the founder, and the address at which others do not."""
    dead, listens = free_address(), free_address()
    async with (
        open_node("founder", secret=SECRET, listen=listens, advertise=dead),
        open_node("other", secret=SECRET, join=listens) as other,
    ):
        yield other, dead


async def test_a_lookup_and_a_command_name_the_address_that_is_not_reached() -> None:
    environment = Elsewhere()
    access = ClusterAccess("understudy", Keyring((SECRET.encode(),)), environment, SocketNetwork())
    async with (
        beside_an_unreached_founder() as (other, dead),
        open_client(other.address, access, "elsewhere", "observer") as client,
    ):
        where = f"cannot be reached from here ({dead}: "
        with pytest.raises(DeadlineExceededError) as caught:
            await client.lookup("nobody", 1.0)
        assert f"the node founder, which keeps the cluster's store, {where}" in str(caught.value)
        answers = await ask_nodes(client, lambda one: inspection(client, one).stacks(None))
        assert set(answers.by_node) == {"other"}
        assert answers.silent["founder"].startswith(f"it {where}")


async def test_a_process_that_joins_as_a_client_names_the_address_that_is_not_reached() -> None:
    async with beside_an_unreached_founder() as (other, dead):
        with trio.fail_after(100), pytest.raises(StoreUnavailableError, match=rf"\({dead}: "):
            async with open_node(
                secret=SECRET,
                join=other.address,
                role="client",
                platform=Platform(environment=Elsewhere(Timings(store_call=3.0))),
            ) as client:
                await client.lookup("nobody")
