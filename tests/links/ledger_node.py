"""A node process that hosts ledgers: `python -m tests.links.ledger_node JOIN_ADDRESS`. It lives
until its input ends.
"""

from __future__ import annotations

import logging
import sys
import zlib

import trio

from actors import Actor, method
from runtime import open_node
from runtime.environment import SystemEnvironment
from runtime.testing import Platform
from runtime.timings import Timings

SECRET = "a secret of the tests with a proxy"
NAME = "ledgers"


class Ledger(Actor):
    """Writes down every run of every entry; each caller makes each entry once, so a second run of
    one is a doubled call.
    """

    def __init__(self) -> None:
        self.entries: list[int] = []

    @method
    async def enter(self, number: int, padding: bytes = b"") -> tuple[int, int]:
        self.entries.append(number)
        return number, zlib.crc32(padding)

    @method
    async def enter_slowly(self, number: int, padding: bytes = b"") -> tuple[int, int]:
        self.entries.append(number)
        await trio.sleep(0.001)
        return number, zlib.crc32(padding)

    @method(concurrent=True)
    async def enter_beside_others(self, number: int, padding: bytes = b"") -> tuple[int, int]:
        self.entries.append(number)
        await trio.sleep(0.01)
        return number, zlib.crc32(padding)

    @method(idempotent=True)
    async def enter_again(self, number: int, padding: bytes = b"") -> tuple[int, int]:
        self.entries.append(number)
        return number, zlib.crc32(padding)

    @method
    async def refuse(self, number: int, padding: bytes = b"") -> tuple[int, int]:
        self.entries.append(number)
        raise KeyError(number)

    @method
    async def flush(self) -> None:
        pass

    @method(concurrent=True, idempotent=True)
    async def all(self) -> list[int]:
        return self.entries


TIMINGS = Timings(lease=60.0, renewals=36, renewal_retries=300, silence_share=1 / 24)
"""Of this node and of those of the callers. Weather that costs a node its lease says nothing about
calls, so leases are long. They are renewed as often as ever, and connections that fall silent are
redialled as soon.
"""


async def main(address: str) -> None:
    """Host until told to stop."""
    platform = Platform(environment=SystemEnvironment(TIMINGS))
    async with open_node(NAME, join=address, secret=SECRET, platform=platform):
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    trio.run(main, *sys.argv[1:])  # type: ignore[arg-type]
