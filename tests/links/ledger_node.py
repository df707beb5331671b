"""A node process that hosts ledgers: `python -m tests.links.ledger_node JOIN_ADDRESS`. It lives until its input ends."""

from __future__ import annotations

import logging
import sys
import zlib

import trio

from actors import Actor, method
from runtime import open_node
from runtime.membership import members

SECRET = "a secret of the tests with a proxy"
NAME = "ledgers"


class Ledger(Actor):
    """Writes down every run of every entry; each caller makes each entry once, so a second run of one is a doubled call."""

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


async def main(address: str) -> None:
    """Host until told to stop. Weather that costs a node its lease ends the ledgers and says nothing about calls, so this one's is long."""
    members.LEASE_SECONDS = 60.0
    async with open_node(NAME, join=address, secret=SECRET):
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    trio.run(main, *sys.argv[1:])
