"""What open pages of a dashboard cost a cluster: calls a second with and without them, in turns,
and the processor time of a node that has nothing else to do.

    python -m tests.benchmarks.dashboard [TURNS]

Ten pages that show the cluster, then ten that show everything there is. The dashboard and the
readers share the machine's cores with the nodes, so their own work is in the figures.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

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


async def compare(echo: Echo, host: str, token: str, topics: Sequence[str], turns: int) -> None:
    """Print the two rates."""
    without: list[float] = []
    pages: list[float] = []
    for _ in range(turns):
        # Both orders, so that a machine that becomes slower favours neither.
        without.append(await rate(echo))
        async with process("-c", READER, host, token, *topics):
            await trio.sleep(1.0)
            pages.append(await rate(echo))
            pages.append(await rate(echo))
        await trio.sleep(1.0)
        without.append(await rate(echo))
    before, after = statistics.median(without), statistics.median(pages)
    shown = ", ".join(dict.fromkeys(topics))
    change = 100 * (after / before - 1)
    print(f"{len(topics)} pages ({shown}):")
    print(f"  {before:,.0f} calls/s without, {after:,.0f} with: {change:+.1f} %", flush=True)


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


async def main(turns: int) -> None:
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
                await compare(echo, told["listen"], token, topics, turns)
                pid = cluster.processes["worker-1"].pid
                await compare_idle(pid, told["listen"], token, topics)


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else 8)
