"""A founding node with its store on disk: `python -m tests.cluster.founder_process DIRECTORY
LISTEN [container]`. Lives until it is killed.
"""

from __future__ import annotations

import logging
import os
import sys

import attrs
import trio

from runtime import open_node
from runtime.environment import Process, SystemEnvironment
from runtime.testing import Platform


class Contained(SystemEnvironment):
    """A process in a container of its own: it sees no process of another start."""

    def process(self) -> Process:
        return attrs.evolve(super().process(), host=f"container {os.getpid()}")

    def has_ended(self, process: Process) -> bool:
        return False


async def main(directory: str, listen: str, where: str = "") -> None:
    """Found, or come back; prints name, incarnation and address."""
    platform = Platform(environment=Contained()) if where == "container" else Platform()
    async with open_node(listen=listen, data_dir=directory, platform=platform) as node:
        sys.stdout.write(f"{node.name} {node.incarnation} {node.address}\n")
        sys.stdout.flush()
        await trio.sleep_forever()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    trio.run(main, *sys.argv[1:])  # type: ignore[arg-type]
