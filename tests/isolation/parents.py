"""Programs that have isolated actors and are killed."""

from __future__ import annotations

from collections.abc import Callable

import cbor2
import trio

from runtime import open_node
from tests.isolation.actors_used import Counter


def be_parent(argument: bytes, report: Callable[[bytes], None]) -> None:
    """Open a node with two isolated actors, report their pids and wait to be killed."""
    trio.run(_be_parent, report)


async def _be_parent(report: Callable[[bytes], None]) -> None:
    async with open_node("parent", secret="the secret of a parent") as node:
        actors = [await node.options(isolation="process").spawn(Counter) for _ in range(2)]
        report(cbor2.dumps([await actor.pid() for actor in actors]))
        await trio.sleep_forever()
