"""Links that are there and carry nothing: what each of them weighs in the node that others are
connected to.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

from runtime.environment import SystemEnvironment
from runtime.links.transports import SocketNetwork
from runtime.membership.cluster_client import ClusterAccess, open_client
from runtime.node import internals_of
from tests.benchmarks.measuring import Figure, Row, Settings, at_most
from tests.benchmarks.memory import floor_weight
from tests.benchmarks.ours import Crowd, open_bench

COUNT = 500
KIBIBYTE = 1024


async def measure(settings: Settings) -> list[Row]:
    """Clients of this process connect to a node of another one, whose memory is read before and
    after. Taken once.
    """
    count = settings.size(COUNT)
    async with open_bench() as (_, cluster), AsyncExitStack() as stack:
        crowd = await cluster.node.options(on="worker-1").spawn(Crowd)
        address = next(
            member.addresses for member in cluster.node.members() if member.name == "worker-1"
        )[0]

        async def connect() -> None:
            client = open_client(
                address,
                ClusterAccess(
                    cluster.node.cluster,
                    internals_of(cluster.node).keyring,
                    SystemEnvironment(),
                    SocketNetwork(),
                ),
            )
            await stack.enter_async_context(client)

        for _ in range(5):
            await connect()
        before = await crowd.weight()
        for _ in range(count):
            await connect()
        each = (await crowd.weight() - before) / count / KIBIBYTE
        bare, _ = await floor_weight("pipes", count)
    ours, floor = (Figure(value, value, value) for value in (each, bare / KIBIBYTE))
    return [
        at_most(
            Row(
                f"each of {count} idle links, its accepting end",
                "KiB",
                ours,
                floor,
                against="floor, socket and two tasks",
            ),
            100,
        )
    ]
