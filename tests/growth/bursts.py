"""Calls that are all begun in one moment, each by a task of its own, to an actor of another node:
`python -m tests.growth.bursts`, or with numbers of its own.

For each number: how long the caller's event loop stands still at the longest, when the first answer
is there, what all take, and what the caller's memory grows by meanwhile.
"""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

import attrs
import click
import trio

from actors import Actor, method
from runtime import open_local_cluster

USUAL = (1_000, 10_000, 100_000)

MEBIBYTE = 1024 * 1024


class Quiet(Actor):
    """Answers."""

    @method
    async def read(self) -> int:
        return 16


@attrs.define
class Burst:
    """What was measured. `still`: the longest time between two turns of a task that only takes
    turns; `first` and `total`: seconds from the beginning; `grown`: bytes of the caller.
    """

    count: int
    still: float = 0.0
    first: float = 0.0
    total: float = 0.0
    grown: int = 0


def most_resident() -> int:
    """The most bytes that this process has occupied since `forget_most`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("the kernel does not tell")


def forget_most() -> int:
    """Begin to watch for the most bytes anew; the present number."""
    Path("/proc/self/clear_refs").write_text("5")
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def take_turns(found: Burst, scope: trio.CancelScope) -> None:
    """Note the longest time between two turns."""
    with scope:
        last = time.perf_counter()
        while True:
            await trio.lowlevel.checkpoint()
            now = time.perf_counter()
            found.still, last = max(found.still, now - last), now


async def burst(quiet: Quiet, count: int) -> Burst:
    """Begin so many calls at once."""
    found = Burst(count)

    async def call() -> None:
        await quiet.read()
        if not found.first:
            found.first = time.perf_counter() - began

    gc.collect()
    before = forget_most()
    turns = trio.CancelScope()
    async with trio.open_nursery() as beside:
        beside.start_soon(take_turns, found, turns)
        await trio.lowlevel.checkpoint()
        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(call)
        found.total = time.perf_counter() - began
        turns.cancel()
    found.grown = most_resident() - before
    return found


async def measure(counts: tuple[int, ...]) -> None:
    """Print a line for each number."""
    async with open_local_cluster(1) as cluster:
        placed = cluster.node.options(on="worker-1", mailbox_limit=2 * max(counts))
        quiet = await placed.spawn(Quiet)
        await burst(quiet, 100)
        for count in counts:
            one = await burst(quiet, count)
            click.echo(
                f"| {count:,} | {1000 * one.still:,.2f} | {1000 * one.first:,.2f} "
                f"| {one.total:.2f} | {1e6 * one.total / count:.0f} "
                f"| {one.grown / MEBIBYTE:.0f} |"
            )


@click.command()
@click.argument("counts", type=int, nargs=-1)
def main(counts: tuple[int, ...]) -> None:
    """Measure these numbers of calls, one after the other."""
    gc.set_threshold(50_000, 20, 100)
    click.echo(
        "| calls at once | longest stand-still, ms | first answer, ms | all, s | µs each "
        "| memory, MiB |\n|---:|---:|---:|---:|---:|---:|"
    )
    trio.run(measure, counts or USUAL)


if __name__ == "__main__":
    main()
