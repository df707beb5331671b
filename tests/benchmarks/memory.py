"""What things weigh: resident memory of a process before and after.

`python -m tests.benchmarks.memory objects|pipes COUNT` prints, for the bare floor, the bytes of one
thing and how many are made in a second: an object in a dictionary, or one end of a connection with
its reader and its writer.
"""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys

import trio
import trio.testing

from tests.benchmarks.floor import Pipe


def resident() -> int:
    """Bytes of memory that this process occupies now. What the kernel keeps for its sockets is not
    among them.
    """
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def floor_weight(what: str, count: int) -> tuple[float, float]:
    """The bytes of one thing, and how many of them are made in a second, by a fresh process without
    the runtime.
    """
    command = [sys.executable, "-m", "tests.benchmarks.memory", what, str(count)]
    done = await trio.to_thread.run_sync(
        lambda: subprocess.run(command, check=True, capture_output=True, text=True)
    )
    weight, rate = done.stdout.split()
    return float(weight), float(rate)


class _Object:
    def __init__(self) -> None:
        self.value = 16


async def _weigh(what: str, count: int) -> None:
    async with trio.open_nursery() as nursery:
        sockets: list[socket.socket] = []
        if what == "pipes":
            for _ in range(count):
                sockets.extend(socket.socketpair())
        gc.collect()
        before, began = resident(), trio.current_time()
        things: list[object] = []
        if what == "objects":
            table = {f"actor-{number}": _Object() for number in range(count)}
            things.append(table)
        else:
            for number in range(count):
                pipe = Pipe(sockets[2 * number], lambda kind, control: None)
                nursery.start_soon(pipe.read)
                nursery.start_soon(pipe.write)
                things.append(pipe)
            await trio.testing.wait_all_tasks_blocked()
        took = trio.current_time() - began
        gc.collect()
        print((resident() - before) / count, count / took)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(_weigh, sys.argv[1], int(sys.argv[2]))
    os._exit(0)
