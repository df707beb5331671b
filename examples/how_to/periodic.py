"""Do something at intervals: a task of the actor calls one of the actor's own methods."""

import logging

import trio

from actors import Actor, method
from runtime import open_node


class Prices(Actor):
    """Prices that are fetched again every so many seconds."""

    def __init__(self, every: float) -> None:
        self.every = every
        self.fetched = 0

    async def on_start(self) -> None:
        self.nursery.start_soon(self._fetch_at_intervals)

    async def _fetch_at_intervals(self) -> None:
        due = trio.current_time()
        while True:
            try:
                # As a call, so that no other method runs at the same time.
                await self.handle.fetch()
            except ConnectionError as error:
                logging.warning("the prices stay as they are: %s", error)
            # What took too long is not made up for.
            due = max(due + self.every, trio.current_time())
            await trio.sleep_until(due)

    @method
    async def fetch(self) -> None:
        self.fetched += 1
        if self.fetched == 2:
            raise ConnectionError("the source of the prices is away")

    @method
    async def times(self) -> int:
        return self.fetched


async def main() -> None:
    async with open_node() as node:
        prices = await node.options(name="prices").singleton(Prices, 0.001)
        await trio.sleep(0.5)
        print("fetched more than 4 times, once in vain:", await prices.times() > 4)


if __name__ == "__main__":
    trio.run(main)
