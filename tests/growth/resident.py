"""Resident memory while calls, references and connections come and go by the million:
`python -m tests.growth.resident`, or with numbers of its own.

Each is done in ten parts, and memory is read after each part, once glibc's malloc has given back
what is free: without that, it comes and goes by ten MiB between parts. What leaks shows as growth
from the second part to the last; the first one fills caches. Before the connections, so many are
made that a node remembers no more clients that have ended: a table that fills up is no leak.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import attrs
import click
import trio

from actors import Actor, method
from runtime import LocalCluster, open_local_cluster
from runtime.command_line.connect import ChosenCluster, connect_with, security_for
from runtime.references.table import MOST_DEAD

PARTS = 10

SHOWN = (1, 2, 6, 10)
"""The parts whose memory is shown."""

AT_ONCE = 100
"""Calls and references that are under way at once; a tenth of it for connections."""

MEBIBYTE = 1024 * 1024

ALLOWED = 2 * MEBIBYTE
"""Growth that counts as none: in which pages there is something left differs from part to part."""


def give_back_memory() -> None:
    """Collect garbage, and have malloc give all free pages back to the system, if it is glibc's."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Echo(Actor):
    """Gives back what it gets."""

    @method
    async def echo(self, value: int) -> int:
        return value

    @method
    async def give_back_memory(self) -> None:
        """That of its process."""
        give_back_memory()


@attrs.frozen
class Resident:
    """Bytes of the process that calls and of the one that is called, after each part."""

    work: str
    count: int
    caller: list[int]
    called: list[int]

    @property
    def growth(self) -> int:
        """By how much the one grew that grew more, after the first part."""
        return max(self.caller[-1] - self.caller[1], self.called[-1] - self.called[1])


def resident(pid: int) -> int:
    """Bytes of memory that a process occupies."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def side_by_side(count: int, tasks: int, work: Callable[[int], Awaitable[None]]) -> None:
    """Do a work so many times, in so many tasks."""
    numbers = iter(range(count))

    async def some() -> None:
        for number in numbers:
            await work(number)

    async with trio.open_nursery() as nursery:
        for _ in range(tasks):
            nursery.start_soon(some)


async def measured(
    work: str,
    count: int,
    cluster: LocalCluster,
    called: Echo,
    part: Callable[[int], Awaitable[None]],
) -> Resident:
    """Do ten parts of a work, and read the memory of both processes after each."""
    node = cluster.process("worker-1").pid
    found = Resident(work, count, [], [])
    for _ in range(PARTS):
        await part(max(1, count // PARTS))
        await called.give_back_memory()
        give_back_memory()
        found.caller.append(resident(os.getpid()))
        found.called.append(resident(node))
    return found


async def measure(calls: int, references: int, connections: int, ended: int) -> list[Resident]:
    """So many calls to another process, references to values there, and connections with it.
    `ended`: connections that are made before, and not measured.
    """
    async with open_local_cluster(1) as cluster:
        called = await cluster.node.options(on="worker-1").spawn(Echo)
        echo = called.echo
        (worker,) = [one for one in cluster.node.members() if one.name == "worker-1"]
        address = next(one for one in worker.addresses if one.startswith("tcp:"))
        keyring, tls = security_for(ChosenCluster(cluster.address, cluster.node.cluster, None))

        async def call(number: int) -> None:
            assert await echo(number) == number

        async def refer(number: int) -> None:
            reference = await echo.remote(number)
            assert await reference.fetch() == number

        async def meet(number: int) -> None:
            to = address.removeprefix("tcp:")
            chosen = ChosenCluster(to, cluster.node.cluster, None)
            async with connect_with(chosen, keyring, tls):
                pass

        connect = partial(side_by_side, tasks=AT_ONCE // 10, work=meet)
        found = [
            await measured(
                work, count, cluster, called, partial(side_by_side, tasks=AT_ONCE, work=each)
            )
            for work, count, each in (("calls", calls, call), ("references", references, refer))
        ]
        await connect(ended)
        return [*found, await measured("connections", connections, cluster, called, connect)]


def line(found: Resident) -> str:
    """A line of the table."""
    columns = [
        f"{sizes[part - 1] / MEBIBYTE:.1f}"
        for sizes in (found.caller, found.called)
        for part in SHOWN
    ]
    return f"| {found.work} | {found.count:,} | {' | '.join(columns)} |"


@click.command()
@click.argument("counts", type=int, nargs=3, default=(1_000_000, 1_000_000, 10_000))
@click.option(
    "--ended",
    type=int,
    default=MOST_DEAD,
    show_default=True,
    help="Connections before those that are measured: as many as a node remembers.",
)
def main(counts: tuple[int, int, int], ended: int) -> None:
    """Measure so many calls, references and connections. Exits with 1 if memory grows."""
    parts = " | ".join(f"{who}, {part} of 10" for who in ("caller", "called") for part in SHOWN)
    click.echo(f"| MiB resident after | all | {parts} |\n|---|{'---:|' * 9}")
    found = trio.run(measure, *counts, ended)
    for one in found:
        click.echo(line(one))
    sys.exit(any(one.growth > ALLOWED for one in found))


if __name__ == "__main__":
    main()
