"""A process that writes to a store on disk and says what was acknowledged: `python -m
tests.store.store_process DIRECTORY`.

Each line that it prints is the number of a counter's increment, printed after the store's answer.
It goes on until it is killed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from runtime.environment import SystemEnvironment
from runtime.store.embedded_store import EmbeddedStore
from runtime.store.interface import Compare, Put

WRITERS = 8


async def increment(store: EmbeddedStore, writer: int) -> None:
    """Count up, one transaction of two keys after another."""
    key = f"counters/{writer}"
    entry = await store.get(key)
    number, revision = (int(entry.value), entry.mod_revision) if entry is not None else (0, 0)
    while True:
        number += 1
        value = b"%d" % number
        result = await store.transaction(
            [Compare(key, "mod_revision", revision)],
            [Put(key, value), Put(f"mirror/{writer}", value)],
        )
        assert result.succeeded
        revision = result.revision
        sys.stdout.write(f"{writer} {number} {revision}\n")
        sys.stdout.flush()


async def main(directory: str) -> None:
    """Open the store and let all writers write."""
    store = await EmbeddedStore.on_disk(SystemEnvironment(), Path(directory))
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        lease = await store.grant(60)
        sys.stdout.write(f"lease {lease} 0\n")
        for writer in range(WRITERS):
            nursery.start_soon(increment, store, writer)


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
