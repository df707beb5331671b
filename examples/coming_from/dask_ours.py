from actors import Actor, method
from runtime.blocking import open_local_cluster


def square(number: int) -> int:
    return number * number


class Counter(Actor):
    def __init__(self) -> None:
        self.value = 0

    @method
    async def add(self, amount: int) -> int:
        self.value += amount
        return self.value


if __name__ == "__main__":
    with open_local_cluster(nodes=1) as cluster:
        print(cluster.future(square, 7).result())
        with cluster.executor() as executor:
            print(list(executor.map(square, range(5))))
        counter = cluster.spawn(Counter)
        print(counter.add(5))
