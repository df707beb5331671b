"""A cluster of real node processes on this machine, in one line; for tests, scripts and the demo.

The processes are forked from one warm process that has the imports done. They end with the `async
with` block, and with this process, however it ends. The founding node, which keeps the store unless
that is in etcd, lives in this process.

This file loads little: `open_local_cluster` starts the warm process first, and loads the rest while
that one does the same on another core.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from actors.keywords import names_keywords
from actors.short_repr import short_repr
from runtime.async_blocks import opens_in_block
from runtime.environment import check_loop, check_path
from runtime.processes import open_fork_server

if TYPE_CHECKING:
    from runtime.cluster_processes import LocalCluster

PRELOADED = ("runtime.cluster_processes", "actors", "runtime.first_uses")
"""What the warm process imports before it forks nodes."""


@names_keywords
@opens_in_block
@asynccontextmanager
async def open_local_cluster(
    nodes: int = 2,
    *,
    cluster: str = "local",
    store: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    call_timeout: float | None = None,
    tracing: bool = False,
    on_process_start: Callable[[], object] | str | None = None,
    on_line: Callable[[str, str], None] | None = None,
) -> AsyncIterator[LocalCluster]:
    """Start node processes called `worker-1`, `worker-2`, ... around a founding node in this
    process. Leaving the block stops all of them: what has not left after 5 s is killed, and named
    in the log before.

    - `nodes`: how many.
    - `cluster`: the name of the cluster.
    - `store`: an `etcd://` address to keep the cluster's store in. By default the founding node
      keeps it, in memory.
    - `data_dir`: directory where the founding node keeps the store instead. A cluster that is
      opened again on it has the states that its actors saved, and the cluster's secret.
    - `call_timeout`: seconds for calls that have no `timeout`, on all nodes. By default no limit.
    - `tracing`: make spans with OpenTelemetry, on all nodes.
    - `on_process_start`: a function, or its `module:function`, that each node process, and each
      process of an isolated actor, calls before all else.
    - `on_line`: called with the name of the node and each line that its process prints. By default
      the lines come out here, with the node's name in front.

    Actor classes of the script itself can be used: the processes import the same file, without its
    `if __name__ == "__main__"` part. While the block is open, `understudy status` and the other
    commands of this user find the cluster, and scripts of this user come in at the address of any
    of its nodes, by `connect` or `open_node(join=..., cluster=...)`.
    """
    check_loop("open_local_cluster")
    check_count(nodes)
    check_data_dir(data_dir, store)
    if on_line is not None and not callable(on_line):
        raise TypeError(
            f"on_line is a function of a node's name and a line, not {short_repr(on_line)}"
        )
    async with open_fork_server(preload=PRELOADED, on_line=on_line, wait_ready=False) as server:
        # Only now: the warm process imports the same meanwhile, on another core.
        from runtime.cluster_processes import open_cluster_on

        async with open_cluster_on(
            server,
            nodes,
            cluster=cluster,
            store=store,
            data_dir=data_dir,
            call_timeout=call_timeout,
            tracing=tracing,
            on_process_start=on_process_start,
        ) as opened:
            yield opened


def check_count(nodes: object) -> None:
    """Raises TypeError or ValueError for what is no number of processes."""
    if type(nodes) is not int:
        raise TypeError(f"nodes is a number of processes, not {short_repr(nodes)}")
    if nodes < 0:
        raise ValueError(f"nodes is a number of processes, 0 or more, not {nodes}")


def check_data_dir(data_dir: object, store: object) -> None:
    """Raises TypeError or ValueError for what is no path of a directory, or is beside `store`."""
    check_path("data_dir", data_dir)
    if not isinstance(data_dir, str | os.PathLike):
        return
    if not os.fspath(data_dir):
        raise ValueError("data_dir is empty: give the path of a directory")
    if store is not None:
        raise ValueError("the store is in data_dir or in etcd: give data_dir or store, not both")
