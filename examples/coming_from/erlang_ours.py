import logging
import sys

import trio

from actors import Actor, ChildSpec, Supervisor, method
from actors.errors import ActorNotFoundError, CallError
from runtime import open_local_cluster


class Counter(Actor):
    def __init__(self) -> None:
        self.value = 0

    @method
    async def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    @method
    async def fail(self) -> None:
        sys.exit("no more")


async def main() -> None:
    logging.disable()
    async with open_local_cluster(nodes=1) as cluster:
        child = ChildSpec.of("counter", Counter)
        await cluster.node.options(name="top").spawn(Supervisor, [child], intensity=3, period=5)
        counter = await cluster.node.lookup("top/counter", Counter)
        print(await counter.add(5))
        try:
            await counter.fail()
        except CallError:
            pass
        print(await counter.add(1))
        try:
            await cluster.node.lookup("nobody", Counter)
        except ActorNotFoundError:
            print("no such actor")


if __name__ == "__main__":
    trio.run(main)
