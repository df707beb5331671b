from actors import Actor, method
from runtime.blocking import open_local_cluster


class Counter(Actor):
    def __init__(self) -> None:
        self.value = 0

    @method
    async def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    @method
    async def owner(self) -> str:
        return self.node.name


if __name__ == "__main__":
    with open_local_cluster(nodes=1) as cluster:
        counter = cluster.options(on="worker-1").spawn(Counter)
        print(counter.add(5))
        futures = [counter.add.future(1) for _ in range(3)]
        print(sorted(future.result() for future in futures))
        print(counter.owner())
