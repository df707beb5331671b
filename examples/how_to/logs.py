"""Log from actors, so that each line says which actor wrote it, and during which call."""

import logging
import sys

import trio

from actors import Actor, method
from runtime import LogFilter, open_node

logger = logging.getLogger("shop")


class Shop(Actor):
    @method
    async def order(self, item: str) -> None:
        logger.info("ordered %s", item)


def log_to_standard_output() -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.addFilter(LogFilter())
    handler.setFormatter(logging.Formatter("%(levelname)s %(actor)s.%(method)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


async def main() -> None:
    log_to_standard_output()
    async with open_node() as node:
        for name in ("north", "south"):
            shop = await node.options(name=name).spawn(Shop)
            await shop.order("tea")


if __name__ == "__main__":
    trio.run(main)
