"""A founding node with its store on disk: `python -m tests.cluster.founder_process DIRECTORY
LISTEN`. Lives until it is killed.
"""

from __future__ import annotations

import logging
import sys

import trio

from runtime import open_node


async def main(directory: str, listen: str) -> None:
    """Found, or come back; prints name, incarnation and address."""
    async with open_node(listen=listen, data_dir=directory) as node:
        sys.stdout.write(f"{node.name} {node.incarnation} {node.address}\n")
        sys.stdout.flush()
        await trio.sleep_forever()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    trio.run(main, *sys.argv[1:])  # type: ignore[arg-type]
