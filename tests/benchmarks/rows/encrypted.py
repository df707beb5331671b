"""Calls and large values over TCP, with TLS and without; and the same with bare sockets, which says
what Python's `ssl` costs by itself.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import cast

import trio

from runtime import open_node
from runtime.environment import Process, SystemEnvironment
from runtime.links.encryption import TlsMode
from runtime.testing import Platform
from tests.benchmarks.bare_echo import SMALL, BareEcho, open_bare_echo
from tests.benchmarks.measuring import (
    MEBIBYTE,
    Figure,
    Row,
    Settings,
    at_least,
    in_turn,
    pipelined,
    sequential,
)
from tests.benchmarks.ours import Bench

SECRET = "of the benchmark"
LARGE = 64


class Elsewhere(SystemEnvironment):
    """As on another machine, so that nodes of this one use TCP."""

    def process(self) -> Process:
        """See `Environment.process`."""
        return Process("elsewhere", os.getpid(), "")


async def measure(settings: Settings) -> list[Row]:
    """Each rate with TLS beside the one without."""
    seconds, size = settings.seconds, settings.size(LARGE)
    large = bytes(size * MEBIBYTE)
    async with AsyncExitStack() as stack:
        encrypted = await stack.enter_async_context(_open_bench("require"))
        plain = await stack.enter_async_context(_open_bench("off"))

        async def there_and_back(bench: Bench) -> float:
            return 2 * size * await sequential(lambda: bench.echo(large), seconds, 1)

        one, bare_one = await in_turn(
            settings.rounds,
            lambda: sequential(encrypted.read, seconds),
            lambda: sequential(plain.read, seconds),
        )
        many, bare_many = await in_turn(
            settings.rounds,
            lambda: pipelined(encrypted.read, seconds),
            lambda: pipelined(plain.read, seconds),
        )
        secured = stack.enter_context(open_bare_echo(tls=True))
        open_socket = stack.enter_context(open_bare_echo(tls=False))
        # All four in turn: the share that remains to ours is compared with that of the sockets.
        bulk, plain_bulk, bare_bulk, bare_plain = await in_turn(
            settings.rounds,
            lambda: there_and_back(encrypted),
            lambda: there_and_back(plain),
            lambda: _bare(secured, size, seconds),
            lambda: _bare(open_socket, size, seconds),
        )
        small, bare_small = await in_turn(
            settings.rounds,
            lambda: secured.rate(SMALL, seconds),
            lambda: open_socket.rate(SMALL, seconds),
        )
    against = "the same over plain TCP"
    bare = "bare sockets without TLS"
    return [
        at_least(
            Row("one call after the other, TLS", "calls/s", one, bare_one, against=against),
            ratio=0.7,
        ),
        at_least(
            Row("1,000 callers at once, TLS", "calls/s", many, bare_many, against=against),
            ratio=0.8,
        ),
        at_least(
            Row(f"echo of {size} MiB, TLS", "MiB/s", bulk, plain_bulk, against=against), ratio=0.5
        ),
        Row(f"{SMALL} bytes there and back, bare TLS", "1/s", small, bare_small, against=bare),
        Row(f"{size} MiB there and back, bare TLS", "MiB/s", bare_bulk, bare_plain, against=bare),
        share_of_sockets(size, bulk, plain_bulk, bare_bulk, bare_plain),
    ]


def share_of_sockets(
    size: int, ours: Figure, ours_plain: Figure, bare: Figure, bare_plain: Figure
) -> Row:
    """The share of the plain rate that remains with TLS, beside the share that remains to bare
    sockets. The goal is theirs: no program keeps more than its TLS library leaves.
    """
    left = Figure.of([100 * ours.value / ours_plain.value])
    floor = Figure.of([100 * bare.value / bare_plain.value])
    against = "what TLS leaves to bare sockets"
    row = Row(f"{size} MiB, what TLS leaves", "% of plain", left, floor, against=against)
    return at_least(row, ratio=1.0)


async def _bare(echo: BareEcho, size: int, seconds: float) -> float:
    return 2 * size * await echo.rate(size * MEBIBYTE, seconds)


@asynccontextmanager
async def _open_bench(tls: TlsMode) -> AsyncIterator[Bench]:
    """An actor on a node of another process, which is reached over TCP."""
    async with (
        open_node("near", secret=SECRET, tls=tls) as node,
        trio.open_nursery() as nursery,
    ):
        code = f"import trio; from {__name__} import serve; trio.run(serve, *sys.argv[1:])"
        command = [sys.executable, "-c", f"import sys; {code}", node.address, tls]
        far: trio.Process = await nursery.start(
            functools.partial(trio.run_process, command, stdout=subprocess.PIPE)
        )
        assert far.stdout is not None
        assert await far.stdout.receive_some()
        yield await node.options(on="far").spawn(Bench)
        far.terminate()


async def serve(address: str, tls: str) -> None:
    """The node that answers, until SIGTERM."""
    async with open_node(
        "far",
        join=address,
        secret=SECRET,
        tls=cast("TlsMode", tls),
        platform=Platform(environment=Elsewhere()),
    ):
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            print("ready", flush=True)
            async for _ in signals:
                break
