"""A stream from another node: read in part, and its generator closed behind the reader."""

from collections.abc import AsyncIterator

import trio

from actors import Actor, method
from runtime import open_local_cluster


class Library(Actor):
    def __init__(self) -> None:
        self.closed = 0

    @method
    async def squares(self, start: int) -> AsyncIterator[int]:
        number = start
        try:
            while True:
                yield number * number
                number += 1
        finally:
            self.closed += 1

    @method
    async def closed_so_far(self) -> int:
        return self.closed


async def main() -> None:
    async with open_local_cluster(nodes=1) as cluster:
        library = await cluster.node.options(on="worker-1").spawn(Library)
        async with library.squares(3) as squares:
            async for square in squares:
                print(square)
                if square > 30:
                    break
        print("generators closed:", await library.closed_so_far())


if __name__ == "__main__":
    trio.run(main)
