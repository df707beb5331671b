"""The only way out: time, randomness and ids of a node.

Everything a node decides depends on what it is told and on its `Environment`, so that the same code runs under a virtual clock and a
seeded generator. Product code outside this module never touches `time`, `random`, `uuid` or `os.urandom`.
"""

from __future__ import annotations

import os
import random
import time
from typing import Protocol

import trio


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


class SystemEnvironment:
    """The real world: trio's clock, the kernel's randomness."""

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
