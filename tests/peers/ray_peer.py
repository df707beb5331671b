"""Ray: one node, threaded actors, each in a process of its own."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import ray
from ray.util import ActorPool

from tests.peers import works
from tests.peers.works import IN_FLIGHT, MEMBERS, report


class Laborer:
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

    def spin(self, seconds: float) -> float:
        return works.spin(seconds)

    def first(self, array: object) -> float:
        return works.first(array)


Bench: Any = ray.remote(num_cpus=0)(Laborer)


def _calls(seconds: float, names: set[str]) -> None:
    actor = Bench.remote()
    ray.get(actor.read.remote())
    if "sequential" in names:
        report("sequential", works.rate(lambda: ray.get(actor.read.remote()), seconds))
    if "pipelined" in names:
        report("pipelined", works.waves(actor.read.remote, ray.get, seconds, IN_FLIGHT))
    for name, size in (("echo-1k", works.KIBIBYTE), ("echo-64k", 64 * works.KIBIBYTE)):
        if name in names:
            data = bytes(size)
            found = works.rate(lambda data=data: ray.get(actor.echo.remote(data)), seconds)  # type: ignore[misc]
            report(name, found if name == "echo-1k" else works.mebibytes(found, size))
    if "echo-array" in names:
        array = np.ones(works.ARRAY_BYTES // 8)
        found = works.rate(lambda: ray.get(actor.echo.remote(array)), seconds)
        report("echo-array", works.mebibytes(found, works.ARRAY_BYTES))
    if "raise" in names:

        def wait(started: list[object]) -> None:
            for each in started:
                try:
                    ray.get(each)
                except ValueError:
                    continue

        report("raise", works.waves(actor.fail.remote, wait, seconds, 200))


def _maps(seconds: float, names: set[str]) -> None:
    members = [Bench.remote() for _ in range(MEMBERS)]
    ray.get([member.read.remote() for member in members])
    for name in ("map-10us", "map-1ms"):
        if name in names:
            items = works.items_of(name, seconds)
            began = time.perf_counter()
            count = len(list(ActorPool(members).map(lambda a, item: a.spin.remote(item), items)))
            report(name, count / (time.perf_counter() - began))
    if "map-array" in names:
        arrays = [np.zeros(works.MEBIBYTE // 8) for _ in range(works.array_count(seconds))]
        began = time.perf_counter()
        count = len(list(ActorPool(members).map(lambda a, item: a.first.remote(item), arrays)))
        report("map-array", count / (time.perf_counter() - began))


def _kill() -> None:
    actor = Bench.remote()
    pid = ray.get(actor.pid.remote())
    waiting = actor.wait.remote()
    time.sleep(0.3)
    began = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    try:
        ray.get(waiting)
    except ray.exceptions.RayActorError:
        report("kill", 1000 * (time.perf_counter() - began))


def main() -> None:
    """Do all works that the command line names; `actors` is left out: each is a process."""
    seconds, names = works.seconds_and_works()
    ray.init(
        num_cpus=MEMBERS,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}},
    )
    try:
        _calls(seconds, names)
        if "first" in names:
            report(
                "first",
                works.median_milliseconds(lambda: ray.get(Bench.remote().read.remote()), 5),
            )
        _maps(seconds, names)
        if "kill" in names:
            _kill()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
