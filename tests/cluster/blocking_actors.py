"""Actors that block the event loop of their node."""

from __future__ import annotations

import time

from actors import Actor, method
from tests.loaders import SourceLoader, generated, without_entry

TEMPLATE = """
import time
def sleep_and_divide(seconds):
    time.sleep(seconds)
    return 1 / 0
"""


class Blocker(Actor):
    """Computes on the loop, as no actor should."""

    def __init__(self) -> None:
        self.runs = 0

    @method
    async def block(self, seconds: float) -> int:
        self.runs += 1
        time.sleep(seconds)  # noqa: ASYNC251  that is what it is for
        return self.runs

    @method
    async def block_in_template(self, seconds: float) -> None:
        """Block in code whose source only a loader has, which raises; then raise there."""
        space = generated(SourceLoader(without_entry), TEMPLATE)
        space["sleep_and_divide"](seconds)

    @method(concurrent=True, idempotent=True)
    async def where(self) -> tuple[str, int, int]:
        return self.node.name, self.epoch, self.runs
