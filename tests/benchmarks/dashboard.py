"""What open pages of a dashboard cost a cluster: calls a second with and without them, in turns,
and the processor time of a node that has nothing else to do.

    python -m tests.benchmarks.dashboard [TURNS] [--busy]

Ten pages that show the cluster, then ten that show everything there is. The dashboard and the
readers share the machine's cores with the nodes, so their own work is in the rates. It is not in
the processor time of the node for each call. `--busy` leaves out the node that has nothing to do.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trio

from actors import Actor, method
from runtime.local_cluster import open_local_cluster

PAGES = 10
CALLERS = 16
SECONDS = 2.0
IDLE_SECONDS = 20.0
EVERYTHING = [
    *("tree", "calls", "references", "pools", "store"),
    *("logs", "jobs", "actor/echo", "cluster", "cluster"),
]

READER = """
import http.client, sys, threading
host, token, *topics = sys.argv[1:]
def read(topic):
    connection = http.client.HTTPConnection(host)
    path = f"/api/events?topic=cluster&topic={topic}"
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    while answer.read1(65536):
        pass
for topic in topics:
    threading.Thread(target=read, args=(topic,)).start()
"""


class Echo(Actor):
    """Answers."""

    @method(concurrent=True)
    async def echo(self, value: int) -> int:
        """The same value."""
        return value


@asynccontextmanager
async def process(*command: str) -> AsyncIterator[trio.Process]:
    """A process that ends with the block."""
    found = await trio.lowlevel.open_process([sys.executable, *command], stdout=subprocess.PIPE)
    try:
        yield found
    finally:
        found.kill()
        with trio.CancelScope(shield=True):
            await found.wait()


async def rate(echo: Echo) -> float:
    """Calls a second."""
    count = 0

    async def call() -> None:
        nonlocal count
        while True:
            await echo.echo(1)
            count += 1

    began = trio.current_time()
    with trio.move_on_after(SECONDS):
        async with trio.open_nursery() as nursery:
            for _ in range(CALLERS):
                nursery.start_soon(call)
    return count / (trio.current_time() - began)


class Sample(NamedTuple):
    """Calls a second, and the processor time of their node for each, in microseconds."""

    rate: float
    cost: float


async def sample(echo: Echo, pid: int) -> Sample:
    """Measure once."""
    began = cpu_seconds(pid)
    found = await rate(echo)
    return Sample(found, 1e6 * (cpu_seconds(pid) - began) / (found * SECONDS))


async def compare(
    echo: Echo, pid: int, host: str, token: str, topics: Sequence[str], turns: int
) -> None:
    """Print the two rates, and how far each turn's are apart. `pid`: the node's."""
    without: list[Sample] = []
    pages: list[Sample] = []
    for _ in range(turns):
        # Both orders, so that a machine that becomes slower favours neither.
        without.append(await sample(echo, pid))
        async with process("-c", READER, host, token, *topics):
            await trio.sleep(1.0)
            pages.append(await sample(echo, pid))
            pages.append(await sample(echo, pid))
        await trio.sleep(1.0)
        without.append(await sample(echo, pid))
    print(f"{len(topics)} pages ({', '.join(dict.fromkeys(topics))}):")
    for place, what in enumerate(("calls/s", "µs of the node's processor time for a call")):
        before, after = ([one[place] for one in samples] for samples in (without, pages))
        # A turn's four are without, with, with, without: each with its neighbour.
        changes = [100 * (after[number] / before[number] - 1) for number in range(len(before))]
        low, middle, high = statistics.quantiles(changes, n=4)
        print(
            f"  {statistics.median(before):,.1f} {what} without, {statistics.median(after):,.1f} "
            f"with: {middle:+.1f} % (half of {len(changes)} pairs: {low:+.1f} to {high:+.1f} %)",
            flush=True,
        )


async def compare_idle(pid: int, host: str, token: str, topics: Sequence[str]) -> None:
    """Print how much of a core a node takes that has nothing else to do."""
    await trio.sleep(2.0)
    began = cpu_seconds(pid)
    await trio.sleep(IDLE_SECONDS)
    without = cpu_seconds(pid) - began
    async with process("-c", READER, host, token, *topics):
        await trio.sleep(2.0)
        began = cpu_seconds(pid)
        await trio.sleep(IDLE_SECONDS)
        pages = cpu_seconds(pid) - began
    shares = [100 * seconds / IDLE_SECONDS for seconds in (without, pages)]
    print(f"  an idle node takes {shares[0]:.2f} % of a core without, {shares[1]:.2f} % with them")


def cpu_seconds(pid: int) -> float:
    """The processor time of a process and its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def main(turns: int, *, busy: bool) -> None:
    """Measure."""
    async with open_local_cluster(nodes=2) as cluster:
        echo = await cluster.node.options(name="echo", on="worker-1").spawn(Echo)
        command = ("-m", "runtime.command_line", "dashboard", "--json")
        async with process(*command, "--address", cluster.node.address) as dashboard:
            assert dashboard.stdout is not None
            told = json.loads(await dashboard.stdout.receive_some())
            token = told["url"].partition("#token=")[2]
            await rate(echo)
            for topics in (PAGES * ["cluster"], EVERYTHING):
                pid = cluster.processes["worker-1"].pid
                await compare(echo, pid, told["listen"], token, topics, turns)
                if not busy:
                    await compare_idle(pid, told["listen"], token, topics)


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    trio.run(partial(main, *(numbers or [8]), busy="--busy" in sys.argv))
