"""The end of a local cluster takes a bounded time, however long its actors, its store and its nodes
take: on a virtual clock, with processes that never leave.
"""

from __future__ import annotations

import random
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from actors import Actor
from actors.supervision import ExitReason
from runtime import LocalCluster, open_node
from runtime.cluster_processes import LEAVE_SECONDS, NodeProcess
from runtime.hosting.orderly_stop import STOP_SECONDS
from runtime.node import internals_of
from runtime.store.embedded_store import EmbeddedStore
from runtime.testing import Platform
from runtime.timings import Timings
from tests.memory_network import MemoryNetwork
from tests.scheduling import SeededEnvironment

COUNT = 20
"""Actors, which one after the other would take far longer than the end of the cluster may."""


class Slow(Actor):
    """Takes its time to stop."""

    seconds = 0.0

    async def on_stop(self, reason: ExitReason) -> None:
        await trio.sleep(self.seconds)


class Staying:
    """A process whose node is asked to leave and never does."""

    name = "worker"

    def __init__(self, asked: list[float]) -> None:
        self.running = True
        self._asked = asked

    def kill(self) -> None:
        self.running = False

    async def _leave_or_end(self) -> None:
        self._asked.append(trio.current_time())
        await trio.sleep_forever()


@pytest.mark.parametrize("slow", ["on_stop", "the store", "a stop without a limit"])
def test_a_local_cluster_ends_in_its_time_however_long_all_its_parts_take(
    slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    timings = Timings()
    away = False
    asked: list[float] = []

    async def silent(store: EmbeddedStore, *arguments: object, **others: object) -> object:
        if away:
            await trio.sleep_forever()
        return await transaction(store, *arguments, **others)  # type: ignore[arg-type]

    transaction = EmbeddedStore.transaction
    monkeypatch.setattr(EmbeddedStore, "transaction", silent)

    async def main() -> None:
        nonlocal away
        platform = Platform(
            environment=SeededEnvironment(random.Random(1)), network=MemoryNetwork()
        )
        async with open_node("driver", secret="of these tests", platform=platform) as node:
            host = internals_of(node).host
            cluster = LocalCluster(node, cast("Any", None), None)
            for name in ("worker-1", "worker-2"):
                cluster._processes[name] = cast("NodeProcess", Staying(asked))
            for number in range(COUNT):
                actor = await node.options(name=f"slow-{number}").spawn(Slow)
                cell = host.cells[actor.address.name]
                assert isinstance(cell.instance, Slow)
                cell.instance.seconds = STOP_SECONDS * 0.9 if slow == "on_stop" else 0.0
            away = slow == "the store"
            async with trio.open_nursery() as nursery:
                if slow == "a stop without a limit":
                    assert isinstance(cell.instance, Slow)
                    cell.instance.seconds = 1000.0
                    nursery.start_soon(
                        host.stop, "slow-19", 0, ExitReason("shutdown", "by its supervisor"), None
                    )
                    await trio.testing.wait_all_tasks_blocked()
                began = trio.current_time()
                await cluster._close()
                ended = trio.current_time()
                # And not after the founding node, by the fork server, which would wait once more.
                assert not any(process.running for process in cluster.processes.values())
        assert ended - began <= timings.drain + LEAVE_SECONDS
        # Side by side, after the actors of the founding node.
        assert asked == [ended - LEAVE_SECONDS] * 2

    trio.run(main, clock=MockClock(autojump_threshold=0))
