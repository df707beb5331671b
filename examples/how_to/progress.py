"""Show how far a long method has come: let it be a stream."""

from collections.abc import AsyncIterator

import trio
import trio.lowlevel

from actors import Actor, method
from runtime import open_node


class Importer(Actor):
    def __init__(self) -> None:
        self.rows = 0

    @method
    async def load(self, rows: int) -> AsyncIterator[float]:
        """Yields the share that is done."""
        for number in range(rows):
            self.rows += 1
            await trio.lowlevel.checkpoint()
            if (number + 1) % 25 == 0:
                yield (number + 1) / rows


async def main() -> None:
    async with open_node() as node:
        importer = await node.spawn(Importer)
        async for share in importer.load(100):
            print(f"{share:.0%}")


if __name__ == "__main__":
    trio.run(main)
