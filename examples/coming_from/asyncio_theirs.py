import asyncio


class Counter:
    def __init__(self) -> None:
        self.value = 0

    async def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def main() -> None:
    counter = Counter()
    print(await counter.add(5))
    print(sorted(await asyncio.gather(*(counter.add(1) for _ in range(3)))))
    try:
        async with asyncio.timeout(0.1):
            await counter.sleep(60)
    except TimeoutError:
        print("too slow")


asyncio.run(main())
