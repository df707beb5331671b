"""Dask: actors of dask.distributed, and `Client.map`; workers with one thread each."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
from distributed import Client, LocalCluster

from tests.peers import works
from tests.peers.works import IN_FLIGHT, MEMBERS, report


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


def _results(started: list[Any]) -> None:
    for each in started:
        each.result()


def _failures(started: list[Any]) -> None:
    for each in started:
        try:
            each.result()
        except ValueError:
            continue


def _calls(actor: Any, seconds: float, names: set[str]) -> None:
    if "sequential" in names:
        report("sequential", works.rate(lambda: actor.read().result(), seconds))
    if "pipelined" in names:
        report("pipelined", works.waves(actor.read, _results, seconds, IN_FLIGHT))
    for name, size in (("echo-1k", works.KIBIBYTE), ("echo-64k", 64 * works.KIBIBYTE)):
        if name in names:
            data = bytes(size)
            found = works.rate(lambda data=data: actor.echo(data).result(), seconds)  # type: ignore[misc]
            report(name, found if name == "echo-1k" else works.mebibytes(found, size))
    if "echo-array" in names:
        array = np.ones(works.ARRAY_BYTES // 8)
        found = works.rate(lambda: actor.echo(array).result(), seconds)
        report("echo-array", works.mebibytes(found, works.ARRAY_BYTES))
    if "raise" in names:
        report("raise", works.waves(actor.fail, _failures, seconds, 200))


def _maps(client: Any, seconds: float, names: set[str]) -> None:
    for name in ("map-10us", "map-1ms"):
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
        actor = client.submit(Bench, actor=True, pure=False).result()
        actor.read().result()
        _calls(actor, seconds, names)
        if "first" in names:
            report(
                "first",
                works.median_milliseconds(
                    lambda: client.submit(Bench, actor=True, pure=False).result().read().result(),
                    20,
                ),
            )
        if "actors" in names:
            began = time.perf_counter()
            made = [client.submit(Bench, actor=True, pure=False) for _ in range(works.ACTORS)]
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
