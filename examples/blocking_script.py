"""A counter used from a script without an event loop: calls that block, threads, a stream."""

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from actors import Actor, method
from runtime.blocking import Blocking, open_local_cluster


class Counter(Actor):
    def __init__(self, start: int = 0) -> None:
        self.value = start

    @method
    async def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    @method
    async def countdown(self) -> AsyncIterator[int]:
        while self.value:
            self.value -= 1
            yield self.value


def fill(counter: Blocking[Counter]) -> None:
    for _ in range(5):
        counter.add(1)


def main() -> None:
    with open_local_cluster(nodes=2) as cluster:
        counter = cluster.options(name="counter").spawn(Counter, 10)
        print(counter.add(5))
        with ThreadPoolExecutor(4) as threads:
            for _ in range(4):
                threads.submit(fill, counter)
        print(counter.add.future(1).result())
        reference = counter.add.remote(1)
        print(reference.fetch(), "fetched")
        print(list(cluster.lookup("counter", Counter).countdown())[-3:])


if __name__ == "__main__":
    main()
