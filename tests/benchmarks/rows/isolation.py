"""Actors with a process of their own: one that is started until its first answer, and one that is
killed until the next answers.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from statistics import median

import trio

from actors import Actor, ChildSpec, Supervisor, method
from actors.errors import CallError
from runtime import open_node
from runtime.node import Node
from tests.benchmarks.floor import open_floor
from tests.benchmarks.measuring import Row, Settings, at_most, in_turn, sequential

PAUSE_SECONDS = 0.05
"""Between two of them, in which the node gets its next spare process: actors are not killed, or
started, all the time.
"""


class Resident(Actor):
    """Says which process it has."""

    @method(concurrent=True)
    async def pid(self) -> int:
        return os.getpid()


async def measure(settings: Settings) -> list[Row]:
    """On one node; the very first process, for which the warm one is started, is not counted."""
    logger = logging.getLogger("understudy")
    async with AsyncExitStack() as stack:
        # Each death is an error to the runtime, and here the work.
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.CRITICAL)
        node = await stack.enter_async_context(
            open_node("alone", secret="a secret of the benchmark")
        )
        floor = await stack.enter_async_context(open_floor())
        spec = ChildSpec.of("resident", Resident).changed(isolation="process")
        await node.options(name="supervisor").spawn(Supervisor, [spec], intensity=1_000_000)
        resident = await node.lookup("supervisor/resident", Resident)

        async def one_call() -> float:
            return 1000 / await sequential(floor.call, settings.seconds)

        started = await in_turn(
            settings.rounds, lambda: _median(lambda: _start(node), settings), one_call
        )
        killed = await in_turn(
            settings.rounds, lambda: _median(lambda: _kill(resident), settings), one_call
        )
    return [
        at_most(
            Row(
                "new isolated actor and its first answer", "ms", *started, against="floor, one call"
            ),
            10,
        ),
        at_most(
            Row("isolated actor killed, its next answer", "ms", *killed, against="floor, one call"),
            50,
        ),
    ]


async def _start(node: Node) -> float:
    began = trio.current_time()
    resident = await node.options(isolation="process").spawn(Resident)
    await resident.pid()
    took = trio.current_time() - began
    await node.stop(resident)
    return took


async def _kill(resident: Resident) -> float:
    pid = await resident.pid()
    began = trio.current_time()
    os.kill(pid, signal.SIGKILL)
    while True:  # noqa: ASYNC913  a call always waits
        try:
            if await resident.pid() != pid:
                return trio.current_time() - began
        except CallError:
            continue


async def _median(work: Callable[[], Awaitable[float]], settings: Settings) -> float:
    """In milliseconds."""
    began = trio.current_time()
    took: list[float] = []
    while not took or trio.current_time() - began < settings.seconds:
        took.append(1000 * await work())
        await trio.sleep(PAUSE_SECONDS)
    return median(took)
