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
from tests.peers.works import MEMBERS, report

Bench: Any = ray.remote(num_cpus=0)(works.Bench)


def _maps(seconds: float, names: set[str]) -> None:
    members = [Bench.remote() for _ in range(MEMBERS)]
    ray.get([member.read.remote() for member in members])
    for name in works.SPINS:
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
        actor = Bench.remote()
        array = np.ones(works.ARRAY_BYTES // 8)
        works.blocking_calls(
            lambda method, *words: getattr(actor, method).remote(*words),
            ray.get,
            array,
            seconds,
            names,
            ray.get,
        )
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
