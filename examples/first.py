"""A counter in another process: its methods are awaited as if it were here."""

import trio

from understudy import Actor, method, open_local_cluster


class Counter(Actor):
    def __init__(self, start: int = 0) -> None:
        self.value = start

    @method
    async def add(self, amount: int) -> int:
        self.value += amount
        return self.value


async def main() -> None:
    async with open_local_cluster(nodes=2) as cluster:
        counter = await cluster.node.options(name="counter", on="worker-1").spawn(Counter, 10)
        print(await counter.add(5))
        same = await cluster.node.lookup("counter", Counter)
        with trio.fail_after(2):  # the deadline travels with the call
            print(await same.add(1))


if __name__ == "__main__":
    trio.run(main)
