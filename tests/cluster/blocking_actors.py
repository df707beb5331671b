"""Actors that block the event loop of their node."""

from __future__ import annotations

import time

from actors import Actor, method


class Blocker(Actor):
    """Computes on the loop, as no actor should."""

    def __init__(self) -> None:
        self.runs = 0

    @method
    async def block(self, seconds: float) -> int:
        self.runs += 1
        time.sleep(seconds)  # noqa: ASYNC251  that is what it is for
        return self.runs

    @method(concurrent=True, idempotent=True)
    async def where(self) -> tuple[str, int, int]:
        return self.node.name, self.epoch, self.runs
