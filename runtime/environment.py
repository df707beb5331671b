"""The only way out: time, randomness, ids, processes and threads of a node.

Everything a node decides depends on what it is told and on its `Environment`, so that the same code runs under a virtual clock and a
seeded generator. Product code outside this module never touches `time`, `random`, `uuid` or `os.urandom`.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import attrs
import trio

from runtime.liveness import has_ended, host_identity, process_start

T = TypeVar("T")


@attrs.frozen
class Process:
    """An operating system's process. `host`: equal for those that can see each other, "" where that cannot be told."""

    host: str
    pid: int
    started: str


def real_seconds() -> float:
    """The machine's own clock, where time is virtual: to say how long something took."""
    return time.perf_counter()


class Environment(Protocol):
    """What a node may ask of the world around it."""

    def now(self) -> float:
        """Seconds on a monotonic clock whose zero means nothing; the clock of trio's deadlines."""
        ...

    def wall_time(self) -> float:
        """Seconds since 1970 UTC: for people to read, never for decisions."""
        ...

    def random(self) -> float:
        """A number in [0, 1): for jitter and load spreading, never for secrets."""
        ...

    def token(self, size: int) -> bytes:
        """`size` unpredictable bytes: for nonces, secrets and ids that must not collide."""
        ...

    def process(self) -> Process:
        """The one that this node runs in."""
        ...

    def has_ended(self, process: Process) -> bool:
        """True only if it is certain that `process` runs no more, which nobody on another host can say."""
        ...

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Run what blocks beside the event loop. It is waited for even when cancelled: a thread cannot be stopped."""
        ...


class SystemEnvironment:
    """The real world: trio's clock, the kernel's randomness, its processes and threads."""

    def __init__(self) -> None:
        self._generator = random.Random(os.urandom(16))

    def now(self) -> float:
        """See `Environment.now`; must be called inside `trio.run`."""
        return trio.current_time()

    def wall_time(self) -> float:
        """See `Environment.wall_time`."""
        return time.time()

    def random(self) -> float:
        """See `Environment.random`."""
        return self._generator.random()

    def token(self, size: int) -> bytes:
        """See `Environment.token`."""
        return os.urandom(size)

    def process(self) -> Process:
        """See `Environment.process`."""
        return Process(host_identity(), os.getpid(), process_start(os.getpid()))

    def has_ended(self, process: Process) -> bool:
        """See `Environment.has_ended`."""
        return bool(process.host) and process.host == host_identity() and has_ended(process.pid, process.started)

    async def in_thread(self, function: Callable[[], T]) -> T:
        """See `Environment.in_thread`."""
        return await trio.to_thread.run_sync(function)
