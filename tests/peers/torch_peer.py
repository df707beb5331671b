"""torch.distributed.rpc: two processes, TensorPipe, remote objects by RRef."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
from typing import Any

import torch
from torch.distributed import rpc

from tests.peers import works
from tests.peers.works import IN_FLIGHT, report


class Bench:
    """Does as little as possible."""

    def read(self) -> int:
        return 16

    def echo(self, data: Any) -> Any:
        return data

    def fail(self) -> None:
        raise ValueError("as asked")

    def wait(self) -> None:
        time.sleep(1000)

    def pid(self) -> int:
        return os.getpid()


def _join(rank: int, port: int) -> None:
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://127.0.0.1:{port}", num_worker_threads=16
    )
    rpc.init_rpc(f"rank-{rank}", rank=rank, world_size=2, rpc_backend_options=options)


def serve(port: int) -> None:
    """What the other process does."""
    _join(1, port)
    rpc.shutdown(graceful=True)


def _calls(actor: Any, seconds: float, names: set[str]) -> None:
    def start(method: str, *arguments: object) -> Any:
        return getattr(actor.rpc_async(), method)(*arguments)

    if "sequential" in names:
        report("sequential", works.rate(lambda: actor.rpc_sync().read(), seconds))
    if "pipelined" in names:
        report(
            "pipelined",
            works.waves(lambda: start("read"), torch.futures.wait_all, seconds, IN_FLIGHT),
        )
    for name, size in (("echo-1k", works.KIBIBYTE), ("echo-64k", 64 * works.KIBIBYTE)):
        if name in names:
            data = bytes(size)
            found = works.rate(lambda data=data: actor.rpc_sync().echo(data), seconds)  # type: ignore[misc]
            report(name, found if name == "echo-1k" else works.mebibytes(found, size))
    if "echo-array" in names:
        array = torch.ones(works.ARRAY_BYTES // 8, dtype=torch.float64)
        found = works.rate(lambda: actor.rpc_sync().echo(array), seconds)
        report("echo-array", works.mebibytes(found, works.ARRAY_BYTES))
    if "raise" in names:

        def wait(started: list[Any]) -> None:
            for each in started:
                try:
                    each.wait()
                except ValueError:
                    continue

        report("raise", works.waves(lambda: start("fail"), wait, seconds, 200))


def main() -> None:
    """Do all works that the command line names; it has no map."""
    seconds, names = works.seconds_and_works()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(port,))
    process.start()
    _join(0, port)
    actor = rpc.remote("rank-1", Bench)
    actor.rpc_sync().read()
    _calls(actor, seconds, names)
    if "first" in names:
        report(
            "first",
            works.median_milliseconds(lambda: rpc.remote("rank-1", Bench).rpc_sync().read(), 50),
        )
    if "actors" in names:
        began = time.perf_counter()
        made = [rpc.remote("rank-1", Bench) for _ in range(works.ACTORS)]
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
