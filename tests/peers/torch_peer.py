"""torch.distributed.rpc: two processes, TensorPipe, remote objects by RRef."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time

import torch
from torch.distributed import rpc

from tests.peers import works
from tests.peers.works import report


def _join(rank: int, port: int) -> None:
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://127.0.0.1:{port}", num_worker_threads=16
    )
    rpc.init_rpc(f"rank-{rank}", rank=rank, world_size=2, rpc_backend_options=options)


def serve(port: int) -> None:
    """What the other process does."""
    _join(1, port)
    rpc.shutdown(graceful=True)


def main() -> None:
    """Do all works that the command line names; it has no map."""
    seconds, names = works.seconds_and_works()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(port,))
    process.start()
    _join(0, port)
    actor = rpc.remote("rank-1", works.Bench)
    actor.rpc_sync().read()
    works.blocking_calls(
        lambda method, *words: getattr(actor.rpc_async(), method)(*words),
        lambda started: started.wait(),
        torch.ones(works.ARRAY_BYTES // 8, dtype=torch.float64),
        seconds,
        names,
        torch.futures.wait_all,
    )
    if "first" in names:
        report(
            "first",
            works.median_milliseconds(
                lambda: rpc.remote("rank-1", works.Bench).rpc_sync().read(), 50
            ),
        )
    if "actors" in names:
        began = time.perf_counter()
        made = [rpc.remote("rank-1", works.Bench) for _ in range(works.ACTORS)]
        made[-1].rpc_sync().read()
        report("actors", works.ACTORS / (time.perf_counter() - began))
        del made
    if "kill" in names:
        pid = actor.rpc_sync().pid()
        waiting = actor.rpc_async().wait()
        time.sleep(0.3)
        began = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        try:
            waiting.wait()
        except RuntimeError:
            report("kill", 1000 * (time.perf_counter() - began))
    process.kill()
    # The other process is gone: an orderly shutdown of the library would wait for it.
    os._exit(0)


if __name__ == "__main__":
    main()
