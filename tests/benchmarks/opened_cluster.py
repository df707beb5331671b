"""A program of a user that opens a local cluster: `python -m tests.benchmarks.opened_cluster 4`
prints how many seconds that took.
"""

from __future__ import annotations

import sys
import time

import trio

from runtime import open_local_cluster


async def main(nodes: int) -> None:
    """Open it, say so, and close it."""
    began = time.perf_counter()
    async with open_local_cluster(nodes):
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]))
