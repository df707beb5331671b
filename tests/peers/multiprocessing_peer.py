"""The standard library: an object behind a `multiprocessing` manager, and `Pool.map`."""

from __future__ import annotations

import os
import signal
import threading
import time
from multiprocessing import get_context
from multiprocessing.managers import BaseManager
from typing import Any

import numpy as np

from tests.peers import works
from tests.peers.works import MEMBERS, report


class Manager(BaseManager):
    """Serves `Bench` objects in a process of its own."""


Manager.register("Bench", works.Bench)


def _threads(call: Any, seconds: float, count: int) -> float:
    """Calls per second of so many threads: a proxy has one connection for each thread."""
    counts: list[int] = []
    began = time.perf_counter()

    def caller() -> None:
        done = 0
        while time.perf_counter() - began < seconds:
            call()
            done += 1
        counts.append(done)

    threads = [threading.Thread(target=caller) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began)


def _calls(actor: Any, seconds: float, names: set[str]) -> None:
    def fail() -> None:
        try:
            actor.fail()
        except ValueError:
            return

    if "sequential" in names:
        report("sequential", works.rate(actor.read, seconds))
    if "pipelined" in names:
        # Thirty-two threads, since a thousand would only wait for each other.
        report("pipelined", _threads(actor.read, seconds, 32))
    array = np.ones(works.ARRAY_BYTES // 8)
    works.report_echoes(lambda data: works.rate(lambda: actor.echo(data), seconds), array, names)
    if "raise" in names:
        report("raise", _threads(fail, seconds, 32))


def _maps(seconds: float, names: set[str]) -> None:
    with get_context("forkserver").Pool(MEMBERS) as pool:
        pool.map(works.spin, [1e-5] * MEMBERS)
        for name in works.SPINS:
            if name in names:
                items = works.items_of(name, seconds)
                began = time.perf_counter()
                count = len(pool.map(works.spin, items))
                report(name, count / (time.perf_counter() - began))
        if "map-array" in names:
            arrays = [np.zeros(works.MEBIBYTE // 8) for _ in range(works.array_count(seconds))]
            began = time.perf_counter()
            count = len(pool.map(works.first, arrays))
            report("map-array", count / (time.perf_counter() - began))


def main() -> None:
    """Do all works that the command line names."""
    seconds, names = works.seconds_and_works()
    manager: Any = Manager(ctx=get_context("spawn"))
    manager.start()
    actor = manager.Bench()
    _calls(actor, seconds, names)
    if "first" in names:
        report("first", works.median_milliseconds(lambda: manager.Bench().read(), 50))
    if "actors" in names:
        began = time.perf_counter()
        made = [manager.Bench() for _ in range(works.ACTORS)]
        made[-1].read()
        report("actors", works.ACTORS / (time.perf_counter() - began))
        del made
    _maps(seconds, names)
    if "kill" in names:
        pid = actor.pid()
        moment: list[float] = []

        def kill() -> None:
            time.sleep(0.3)
            moment.append(time.perf_counter())
            os.kill(pid, signal.SIGKILL)

        threading.Thread(target=kill).start()
        try:
            actor.wait()
        except (EOFError, OSError):
            report("kill", 1000 * (time.perf_counter() - moment[0]))


if __name__ == "__main__":
    main()
