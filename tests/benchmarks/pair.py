"""One busy pair: a process that calls and a process that answers, measured when asked. Several of
them compete for the cores.

`python -m tests.benchmarks.pair ours|floor sequential|pipelined` reads a number of seconds from
each line of its input, and answers with the calls per second.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import trio

from runtime import open_local_cluster
from tests.benchmarks.floor import open_floor
from tests.benchmarks.measuring import Call, pipelined, sequential
from tests.benchmarks.ours import Bench

WORKS = {"sequential": sequential, "pipelined": pipelined}


class Pairs:
    """Running pairs of one kind."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes

    async def rate(self, seconds: float) -> float:
        """Calls per second of all of them together."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{seconds}\n")
            process.stdin.flush()
        return sum([float(await _line(process)) for process in self._processes])


@asynccontextmanager
async def open_pairs(kind: str, work: str, count: int = 2) -> AsyncIterator[Pairs]:
    """Start `count` pairs and wait until they are ready. They inherit the environment of this
    process.
    """
    processes = [
        subprocess.Popen(  # noqa: ASYNC220  before anything is measured
            [sys.executable, "-m", "tests.benchmarks.pair", kind, work],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    try:
        for process in processes:
            assert await _line(process) == "ready\n"
        yield Pairs(processes)
    finally:
        for process in processes:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.wait()
            process.stdout.close()


async def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return await trio.to_thread.run_sync(process.stdout.readline)


async def _serve(kind: str, work: str) -> None:
    async with AsyncExitStack() as stack:
        call: Call
        if kind == "floor":
            call = (await stack.enter_async_context(open_floor())).call
        else:
            cluster = await stack.enter_async_context(open_local_cluster(nodes=1, cluster="pair"))
            bench = await cluster.node.options(on="worker-1").spawn(Bench)
            call = bench.read
        await call()
        print("ready", flush=True)
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            print(await WORKS[work](call, float(line)), flush=True)


if __name__ == "__main__":
    trio.run(_serve, *sys.argv[1:])  # type: ignore[arg-type]
