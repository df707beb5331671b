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
    async def fail(self) -> None:
        raise ValueError("no more")


if __name__ == "__main__":
    with open_local_cluster(nodes=1) as cluster:
        counter = cluster.options(name="counter").spawn(Counter)
        print(counter.add(5))
        futures = [counter.add.future(1) for _ in range(3)]
        print([future.result() for future in futures])
        same = cluster.lookup("counter", Counter)
        print(same.add(1))
        try:
            counter.fail()
        except ValueError:
            print("it raised")
