"""Links over connections that break at any byte: nothing is lost, nothing is doubled, order is
kept.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from actors import Actor, method
from runtime import Node, open_node
from runtime.environment import SystemEnvironment
from runtime.links.transports import Connection, SocketConnection, SocketNetwork
from runtime.testing import Platform
from tests.links.ledger_node import TIMINGS
from tests.waiting import until

SECRET = "a secret of these tests"


class Recorder(Actor):
    """Remembers what it was given."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    @method
    async def note(self, number: int, padding: bytes = b"") -> int:
        self.seen.append(number)
        return number

    @method
    async def note_and_rest(self, number: int) -> int:
        self.seen.append(number)
        await trio.lowlevel.checkpoint()
        return number

    @method(concurrent=True)
    async def slowly(self, number: int) -> int:
        self.seen.append(number)
        await trio.sleep(0.2)
        return number

    @method
    async def all(self) -> list[int]:
        return self.seen


class Fragile(SocketConnection):
    """Passes `budget` bytes in its sending direction and then breaks, in the middle of whatever it
    was sending.
    """

    budget = 1 << 62

    def send_some(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        first = memoryview(buffers[0])[: self.budget]
        if not first:
            self.close()
            raise ConnectionResetError("cut by the test")
        count = super().send_some((first,))
        self.budget -= count
        return count


class CuttingNetwork(SocketNetwork):
    """Every connection dialled breaks after a random number of bytes, as long as `cutting`
    holds.
    """

    def __init__(self, draw: random.Random, shortest: int, longest: int) -> None:
        super().__init__()
        self.draw = draw
        self.range = (shortest, longest)
        self.cutting = True
        self.cuts = 0
        self.latest: Fragile | None = None

    async def connect(self, address: str) -> Connection:
        connection: Any = await super().connect(address)
        connection.__class__ = Fragile
        if self.cutting:
            connection.budget = self.draw.randint(*self.range)
            self.cuts += 1
        self.latest = connection
        return connection


async def pair(nursery: trio.Nursery, network: CuttingNetwork) -> tuple[Node, Node]:
    nodes: list[Node] = []

    async def run(task_status: trio.TaskStatus[None]) -> None:
        network.cutting = False
        # Connections that are cut all the time, on a busy machine, cost a node a lease of the usual
        # length.
        one, other = (
            Platform(environment=SystemEnvironment(TIMINGS), network=network) for _ in range(2)
        )
        async with (
            open_node("home", secret=SECRET, platform=one) as home,
            open_node("away", join=home.address, secret=SECRET, platform=other) as away,
        ):
            nodes.extend((home, away))
            task_status.started()
            await trio.sleep_forever()

    await nursery.start(run)
    return nodes[0], nodes[1]


@pytest.mark.parametrize("seed", range(6))
async def test_calls_survive_connections_that_are_cut_at_any_byte(seed: int) -> None:
    draw = random.Random(seed)
    network = CuttingNetwork(draw, 700, 6_000)
    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            home, away = await pair(nursery, network)
            recorder = await home.options(name="recorder").spawn(Recorder)
            from_away = await away.lookup("recorder", Recorder)
            answers: list[int] = []

            async def call(number: int) -> None:
                answers.append(await from_away.note(number, bytes(draw.randint(0, 200))))

            network.cutting = True
            assert network.latest is not None
            network.latest.close()
            async with trio.open_nursery() as callers:
                for number in range(1500):
                    callers.start_soon(call, number)
                    if number % 50 == 0:
                        await trio.sleep(0.002)
            network.cutting = False
            seen = await recorder.all()
            assert Counter(seen) == Counter(range(1500)), f"seed {seed}"
            assert sorted(answers) == list(range(1500))
            assert network.cuts >= 3
            nursery.cancel_scope.cancel()


async def test_calls_of_one_task_run_in_their_order_over_cut_connections() -> None:
    network = CuttingNetwork(random.Random(1), 400, 2_000)
    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            home, away = await pair(nursery, network)
            recorder = await home.options(name="recorder").spawn(Recorder)
            from_away = await away.lookup("recorder", Recorder)
            network.cutting = True
            for number in range(300):
                await from_away.note.send(number)
            network.cutting = False
            assert await from_away.note(300) == 300
            assert await recorder.all() == list(range(301))
            nursery.cancel_scope.cancel()


async def test_a_call_that_runs_while_its_connection_is_cut_still_delivers_its_result_once() -> (
    None
):
    network = CuttingNetwork(random.Random(2), 400, 2_000)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            home, away = await pair(nursery, network)
            recorder = await home.options(name="recorder").spawn(Recorder)
            from_away = await away.lookup("recorder", Recorder)
            assert await from_away.note(0) == 0
            answers: list[int] = []

            async def call() -> None:
                answers.append(await from_away.slowly(7))

            async with trio.open_nursery() as callers:
                callers.start_soon(call)
                await until(recorder.all, "the call runs", lambda found: 7 in found, every=0)
                assert network.latest is not None
                network.latest.close()
            assert answers == [7]
            assert (await recorder.all()).count(7) == 1
            nursery.cancel_scope.cancel()
