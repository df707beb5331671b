"""One node of a cluster that a dashboard watches, measured when asked. Its callers call an actor on
another node.

`python -m tests.benchmarks.watched_node NAME CALLED [ADDRESS]` prints the address of the node. Then
it reads a number of seconds and a number of callers from each line of its input, and answers with
the calls that were made, and with the processor time of this process meanwhile, in seconds.
"""

from __future__ import annotations

import sys
import time
from functools import partial

import trio

from actors import ChildSpec, Supervisor
from runtime import Node, open_node
from runtime.environment import SystemEnvironment
from runtime.node.opening import Platform
from runtime.timings import Timings
from tests.benchmarks.ours import Bench, Idle

CHILDREN = 20
"""Of the node's supervisor."""

ACTORS = 300
"""On the node: more than an overview lists."""

UNREAD_SECONDS = 3.5
"""After a page of calls was closed, a node measures its calls for so long, and not for the usual
minute: otherwise it would still do so in the turns without pages. Less than the time between two
questions of a dashboard may not be.
"""


async def fill(node: Node) -> None:
    """Start the actors of which a dashboard tells."""
    await node.options(name=f"bench-{node.name}").spawn(Bench)
    children = [ChildSpec(id=f"child-{number}", actor=Idle) for number in range(CHILDREN)]
    await node.options(name=f"shop-{node.name}").spawn(Supervisor, children)
    for _ in range(ACTORS):
        await node.spawn(Idle)


async def called(bench: Bench, seconds: float, callers: int) -> int:
    """How many calls so many callers make. Without a deadline, which would travel with them."""
    count, until = 0, trio.current_time() + seconds

    async def call() -> None:
        nonlocal count
        while trio.current_time() < until:
            await bench.read()
            count += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, seconds)
        for _ in range(callers):
            nursery.start_soon(call)
    return count


async def serve(name: str, other: str, *join: str) -> None:
    """Be the node until the input ends. `join`: the address of the cluster, none to found it."""
    platform = Platform(environment=SystemEnvironment(Timings(statistics_unread=UNREAD_SECONDS)))
    async with open_node(name, join=join[0] if join else None, platform=platform) as node:
        await fill(node)
        print(node.address, flush=True)
        bench: Bench | None = None
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            seconds, callers = line.split()
            if bench is None:
                # Not before it is asked: the other node comes later.
                bench = await node.lookup(f"bench-{other}", Bench)
            began = time.process_time()
            count = await called(bench, float(seconds), int(callers))
            print(count, time.process_time() - began, flush=True)


if __name__ == "__main__":
    trio.run(partial(serve, *sys.argv[1:]))
