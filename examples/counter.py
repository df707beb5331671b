"""A counter on another node: spawned, called, fetched by reference and looked up by name."""

import trio

from actors import Actor, RetryPolicy, method
from runtime import open_local_cluster


class Counter(Actor):
    def __init__(self, start: int = 0) -> None:
        self.value = start

    @method
    async def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    @method(idempotent=True)
    async def read(self) -> int:
        return self.value


async def main() -> None:
    async with open_local_cluster(nodes=2) as cluster:
        node = cluster.node
        counter = await node.options(name="counter", on="worker-1").spawn(Counter, 10)
        print(await counter.add(5))
        with trio.fail_after(0.5):
            print(await counter.add(1))
        print(await counter.read.options(retry=RetryPolicy(max_retries=5))())
        await counter.add.send(1)
        reference = await counter.read.remote()
        print(await reference.fetch(), "kept by", reference.owner)
        same = await node.lookup("counter", Counter)
        print(await same.read())


if __name__ == "__main__":
    trio.run(main)
