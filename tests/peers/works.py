"""What each library is asked to do, and how its script says what it measured.

Only the standard library is imported here: the scripts run in environments of their own, where
nothing of this project is installed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

IN_FLIGHT = 1_000
ACTORS = 1_000
KIBIBYTE = 1024
MEBIBYTE = 1024 * KIBIBYTE
ARRAY_BYTES = 8 * MEBIBYTE
MEMBERS = int(os.environ.get("PEERS_MEMBERS", "2"))
"""Processes that do the items of a map."""
SPINS = {"map-10us": (1e-5, 5_000), "map-1ms": (1e-3, 1_000), "map-50ms": (0.05, 40)}
"""Maps of items that compute: seconds of each, and how many in each second of the measurement."""
LESS_IS_BETTER = ("ms",)


@dataclass(frozen=True)
class Work:
    """One line of the table. `unit` is what its figure counts."""

    title: str
    unit: str

    @property
    def less_is_better(self) -> bool:
        """Whether the smallest figure wins."""
        return self.unit in LESS_IS_BETTER


WORKS = {
    "sequential": Work("calls, one after the other", "calls/s"),
    "pipelined": Work("calls, 1,000 in flight", "calls/s"),
    "echo-1k": Work("echo of 1 KiB, one after the other", "calls/s"),
    "echo-64k": Work("echo of 64 KiB, both ways", "MiB/s"),
    "echo-array": Work("echo of an 8 MiB array, both ways", "MiB/s"),
    "raise": Work("calls that raise, 200 in flight", "calls/s"),
    "first": Work("a new actor in a running process, and its answer", "ms"),
    "actors": Work("1,000 new actors there", "actors/s"),
    "kill": Work("SIGKILL of the process until the caller's error", "ms"),
    "map-10us": Work(f"map, items of 10 µs, {MEMBERS} processes", "items/s"),
    "map-1ms": Work(f"map, items of 1 ms, {MEMBERS} processes", "items/s"),
    "map-50ms": Work(f"map, items of 50 ms, {MEMBERS} processes", "items/s"),
    "map-array": Work(f"map, arrays of 1 MiB, {MEMBERS} processes", "items/s"),
}


def seconds_and_works() -> tuple[float, set[str]]:
    """What the command line asks for: how long each work may take, and which ones.

    A script is called with the seconds and the names of works; without names, it does all.
    """
    names = set(sys.argv[2:]) or set(WORKS)
    return float(sys.argv[1]) if len(sys.argv) > 1 else 1.0, names


def report(work: str, figure: float) -> None:
    """Print one figure as a line of JSON."""
    print(json.dumps({"work": work, "figure": figure}), flush=True)


def rate(call: Callable[[], object], seconds: float, step: int = 10) -> float:
    """Blocking calls per second, one after the other, after a tenth of the time as warm-up."""
    _repeat(call, seconds / 10, step)
    return _repeat(call, seconds, step)


def _repeat(call: Callable[[], object], seconds: float, step: int) -> float:
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(step):
            call()
        count += step
    return count / (time.perf_counter() - began)


def waves(start: Callable[[], object], wait: Callable[[list[object]], object], seconds: float,
          size: int = IN_FLIGHT) -> float:  # fmt: skip
    """Calls per second where `size` are started, and then all are waited for."""
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        wait([start() for _ in range(size)])
        count += size
    return count / (time.perf_counter() - began)


async def asyncio_rate(call: Callable[[], Awaitable[object]], seconds: float) -> float:
    """Awaited calls per second of asyncio, one after the other, after a warm-up."""
    for limit in (seconds / 10, seconds):
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < limit:
            for _ in range(10):
                await call()
            count += 10
    return count / (time.perf_counter() - began)


async def asyncio_crowd(
    call: Callable[[], Awaitable[object]], seconds: float, callers: int = IN_FLIGHT
) -> float:
    """Calls per second of so many asyncio tasks that each call again as soon as they can."""
    began = time.perf_counter()

    async def caller() -> int:
        count = 0
        while time.perf_counter() - began < seconds:
            await call()
            count += 1
        return count

    counts = await asyncio.gather(*[caller() for _ in range(callers)])
    return sum(counts) / (time.perf_counter() - began)


def mebibytes(calls: float, size: int) -> float:
    """MiB per second, both ways, of so many echoes of `size` bytes per second."""
    return 2 * calls * size / MEBIBYTE


def median_milliseconds(call: Callable[[], object], count: int) -> float:
    """How long one of `count` blocking calls takes."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        took.append(1000 * (time.perf_counter() - began))
    return sorted(took)[count // 2]


def items_of(work: str, seconds: float) -> list[float]:
    """The arguments of `spin` for a map: as much work for each library."""
    each, count = SPINS[work]
    return [each] * max(MEMBERS, int(count * seconds))


def array_count(seconds: float) -> int:
    """How many arrays of 1 MiB a map is given."""
    return max(MEMBERS, int(200 * seconds))


def spin(seconds: float) -> float:
    """Compute for so long: the work of an item."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
    return seconds


def first(array: object) -> float:
    """Look at a large argument: the work of an item that is an array."""
    return float(array[0])  # type: ignore[index]


class Bench:
    """The actor of the libraries whose actors are plain classes. Does as little as possible."""

    def read(self) -> int:
        """A small answer."""
        return 16

    def echo(self, data: object) -> object:
        """Give back what was sent."""
        return data

    def fail(self) -> None:
        """Raise."""
        raise ValueError("as asked")

    def wait(self) -> None:
        """Never return."""
        time.sleep(1000)

    def pid(self) -> int:
        """Of the process of the actor."""
        return os.getpid()

    def spin(self, seconds: float) -> float:
        """An item of a map."""
        return spin(seconds)

    def first(self, array: object) -> float:
        """An item of a map that is an array."""
        return first(array)


def blocking_calls(
    start: Callable[..., Any],
    wait: Callable[[Any], object],
    array: object,
    seconds: float,
    names: set[str],
    wait_all: Callable[[Any], object] | None = None,
) -> None:
    """The works of calls for a library that starts a call of `Bench` and waits for it in two steps.
    `start(method, *arguments)` returns what `wait` is given. `array`: of `ARRAY_BYTES`. `wait_all`:
    the library's own way to wait for many that do not raise, where it has one.
    """

    def call(*words: object) -> object:
        return wait(start(*words))

    def wait_for_all(started: list[object]) -> None:
        for each in started:
            try:
                wait(each)
            except ValueError:
                continue

    if "sequential" in names:
        report("sequential", rate(lambda: call("read"), seconds))
    if "pipelined" in names:
        report("pipelined", waves(lambda: start("read"), wait_all or wait_for_all, seconds))
    report_echoes(lambda data: rate(lambda: call("echo", data), seconds), array, names)
    if "raise" in names:
        report("raise", waves(lambda: start("fail"), wait_for_all, seconds, 200))


def report_echoes(rate_of: Callable[[object], float], array: object, names: set[str]) -> None:
    """The works of echoes. `rate_of(data)`: echoes of it per second."""
    if "echo-1k" in names:
        report("echo-1k", rate_of(bytes(KIBIBYTE)))
    if "echo-64k" in names:
        report("echo-64k", mebibytes(rate_of(bytes(64 * KIBIBYTE)), 64 * KIBIBYTE))
    if "echo-array" in names:
        report("echo-array", mebibytes(rate_of(array), ARRAY_BYTES))
