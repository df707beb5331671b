"""Concurrent things under many orders of tasks: links that resume."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from runtime import Node
from runtime.testing import Platform
from tests.links.test_resume import Recorder
from tests.live_pair import open_pair
from tests.memory_network import MemoryNetwork
from tests.scheduling import SeededEnvironment, under_seeds


@attrs.frozen
class Pair:
    here: Node
    there: Node
    network: MemoryNetwork


@asynccontextmanager
async def pair(draw: random.Random, latency: float = 0.0) -> AsyncIterator[Pair]:
    """Two nodes on a network in memory; each piece of data takes up to `latency` seconds."""
    network = MemoryNetwork(latency, draw)
    environment = SeededEnvironment(random.Random(draw.random()))
    async with open_pair(Platform(network=network, environment=environment)) as pair:
        yield Pair(pair.here, pair.there, network)


@under_seeds()
async def test_a_link_stands_again_soon_after_every_cut(draw: random.Random) -> None:
    """Both sides dial at once, over a network in which anything may overtake anything on another
    connection.
    """
    async with pair(draw, latency=0.05) as nodes:
        recorder = await nodes.here.options(on="there").spawn(Recorder)
        for number in range(20):
            await trio.sleep(draw.random() * 0.3)
            nodes.network.reset_all()
            began = trio.current_time()
            assert await recorder.note(number) == number
            assert trio.current_time() - began < 3
        assert await recorder.all() == list(range(20))


@under_seeds()
async def test_calls_of_many_tasks_over_cut_links_run_once_each(draw: random.Random) -> None:
    async with pair(draw, latency=0.01) as nodes:
        recorder = await nodes.here.options(on="there", name="recorder").spawn(Recorder)
        back = await nodes.here.options(on="here", name="back").spawn(Recorder)
        from_there = await nodes.there.lookup("back", Recorder)
        answers: list[int] = []

        async def call(handle: Recorder, numbers: range) -> None:
            for number in numbers:
                answers.append(await (handle.note if number % 2 else handle.note_and_rest)(number))

        async def cut() -> None:
            while True:
                await trio.sleep(draw.random() * 0.1)
                nodes.network.reset_all()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cut)
            async with trio.open_nursery() as callers:
                for first in range(0, 100, 10):
                    callers.start_soon(
                        call, recorder if first % 20 else from_there, range(first, first + 10)
                    )
            nursery.cancel_scope.cancel()
        assert (
            Counter(await recorder.all() + await back.all())
            == Counter(answers)
            == Counter(range(100))
        )
