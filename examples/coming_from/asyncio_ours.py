import asyncio

from actors import method
from runtime.aio import AsyncioActor, open_local_cluster


class Counter(AsyncioActor):
    def __init__(self) -> None:
        self.value = 0

    @method
    async def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    @method
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def main() -> None:
    async with open_local_cluster(nodes=1) as cluster:
        counter = await cluster.spawn(Counter)
        print(await counter.add(5))
        print(sorted(await asyncio.gather(*(counter.add(1) for _ in range(3)))))
        try:
            async with asyncio.timeout(0.1):
                await counter.sleep(60)
        except TimeoutError:
            print("too slow")


if __name__ == "__main__":
    asyncio.run(main())
