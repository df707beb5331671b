"""The end of a local cluster takes a bounded time, however long its actors, its store and its nodes
take: on a virtual clock, with processes that never leave.
"""

from __future__ import annotations

import math
import os
import random
import signal
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from actors import Actor
from actors.supervision import ExitReason
from runtime.cluster_processes import LEAVE_SECONDS, open_cluster_on
from runtime.hosting.orderly_stop import STOP_SECONDS
from runtime.node import internals_of
from runtime.processes import ExitStatus
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


class StayingProcess:
    """A process whose node is asked to leave and never does."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid = os.getpid()
        self.exit_status: ExitStatus | None = None
        self.asked: list[float] = []
        self.killed = -math.inf

    async def ready(self) -> bytes:
        await trio.lowlevel.checkpoint()
        return b""

    def send_signal(self, number: int) -> None:
        assert number == signal.SIGTERM
        self.asked.append(trio.current_time())

    async def wait(self) -> ExitStatus:
        await trio.sleep_forever()
        raise AssertionError

    def kill(self) -> None:
        self.exit_status = ExitStatus.of_return_code(-signal.SIGKILL)
        self.killed = trio.current_time()


class StayingServer:
    """A fork server of such processes."""

    def __init__(self) -> None:
        self.processes: list[StayingProcess] = []

    async def ready(self) -> None:
        await trio.lowlevel.checkpoint()

    async def start(self, target: str, argument: bytes, name: str) -> StayingProcess:
        await trio.lowlevel.checkpoint()
        self.processes.append(StayingProcess(name))
        return self.processes[-1]


@pytest.mark.parametrize("slow", ["on_stop", "the store", "a stop without a limit"])
def test_a_local_cluster_ends_in_its_time_however_long_all_its_parts_take(
    slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    timings = Timings()
    away = False

    async def silent(store: EmbeddedStore, *arguments: object, **others: object) -> object:
        if away:
            await trio.sleep_forever()
        return await transaction(store, *arguments, **others)  # type: ignore[arg-type]

    transaction = EmbeddedStore.transaction
    monkeypatch.setattr(EmbeddedStore, "transaction", silent)

    async def main() -> None:
        nonlocal away
        server = StayingServer()
        platform = Platform(
            environment=SeededEnvironment(random.Random(1)), network=MemoryNetwork()
        )
        async with trio.open_nursery() as nursery:
            async with open_cluster_on(cast("Any", server), 0, platform=platform) as cluster:
                for _ in range(2):
                    await cluster.start_node()
                node = cluster.node
                host = internals_of(node).host
                for number in range(COUNT):
                    actor = await node.options(name=f"slow-{number}").spawn(Slow)
                    cell = host.cells[actor.address.name]
                    assert isinstance(cell.instance, Slow)
                    cell.instance.seconds = STOP_SECONDS * 0.9 if slow == "on_stop" else 0.0
                away = slow == "the store"
                if slow == "a stop without a limit":
                    assert isinstance(cell.instance, Slow)
                    cell.instance.seconds = 1000.0
                    nursery.start_soon(
                        host.stop, "slow-19", 0, ExitReason("shutdown", "by its supervisor"), None
                    )
                    await trio.testing.wait_all_tasks_blocked()
                began = trio.current_time()
            nursery.cancel_scope.cancel()
        first, second = server.processes
        # And not after the founding node, by the fork server, which would wait once more.
        assert first.killed == second.killed <= began + timings.drain + LEAVE_SECONDS
        # Side by side, after the actors of the founding node.
        assert first.asked == second.asked == [first.killed - LEAVE_SECONDS]

    trio.run(main, clock=MockClock(autojump_threshold=0))
