"""Dask: actors of dask.distributed, and `Client.map`; workers with one thread each."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
from distributed import Client, LocalCluster

from tests.peers import works
from tests.peers.works import MEMBERS, report


def _maps(client: Any, seconds: float, names: set[str]) -> None:
    for name in works.SPINS:
        if name in names:
            items = works.items_of(name, seconds)
            began = time.perf_counter()
            count = len(client.gather(client.map(works.spin, items, pure=False)))
            report(name, count / (time.perf_counter() - began))
    if "map-array" in names:
        arrays = [np.zeros(works.MEBIBYTE // 8) for _ in range(works.array_count(seconds))]
        began = time.perf_counter()
        count = len(client.gather(client.map(works.first, arrays, pure=False)))
        report("map-array", count / (time.perf_counter() - began))


def main() -> None:
    """Do all works that the command line names."""
    seconds, names = works.seconds_and_works()
    with (
        LocalCluster(
            n_workers=MEMBERS, threads_per_worker=1, dashboard_address=None, processes=True
        ) as cluster,
        Client(cluster) as client,
    ):
        actor = client.submit(works.Bench, actor=True, pure=False).result()
        actor.read().result()
        works.blocking_calls(
            lambda method, *words: getattr(actor, method)(*words),
            lambda started: started.result(),
            np.ones(works.ARRAY_BYTES // 8),
            seconds,
            names,
        )
        if "first" in names:
            report(
                "first",
                works.median_milliseconds(
                    lambda: (
                        client.submit(works.Bench, actor=True, pure=False).result().read().result()
                    ),
                    20,
                ),
            )
        if "actors" in names:
            began = time.perf_counter()
            made = [client.submit(works.Bench, actor=True, pure=False) for _ in range(works.ACTORS)]
            client.gather(made)[-1].read().result()
            report("actors", works.ACTORS / (time.perf_counter() - began))
        _maps(client, seconds, names)
        if "kill" in names:
            pid = actor.pid().result()
            waiting = actor.wait()
            time.sleep(0.3)
            began = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            try:
                waiting.result(timeout=20)
            except Exception as error:
                if not isinstance(error, TimeoutError):
                    report("kill", 1000 * (time.perf_counter() - began))


if __name__ == "__main__":
    main()
