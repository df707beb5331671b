"""Move a large array once, and let several actors work on it where it is."""

import numpy as np
import trio

from actors import Actor, Reference, method
from runtime import open_node


class Source(Actor):
    @method
    async def image(self, size: int) -> np.ndarray:
        return np.arange(size * size, dtype=np.float32).reshape(size, size)


class Statistics(Actor):
    @method
    async def mean(self, image: np.ndarray) -> float:
        """Gets the value: the runtime fetches it before the method runs."""
        return float(image.mean())

    @method
    async def largest(self, image: Reference[np.ndarray]) -> float:
        """Gets the reference, and calls a method of the value where that is."""
        return float(await image.call.max())


async def main() -> None:
    async with open_node() as node:
        source, statistics = await node.spawn(Source), await node.spawn(Statistics)
        image = await source.image.remote(1_000)  # Four megabytes, and they stay there.
        print("mean:", await statistics.mean(image.as_value()))
        print("largest:", await statistics.largest(image))


if __name__ == "__main__":
    trio.run(main)
