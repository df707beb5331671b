from distributed import Client


def square(number: int) -> int:
    return number * number


class Counter:
    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int) -> int:
        self.value += amount
        return self.value


if __name__ == "__main__":
    with Client(n_workers=1, threads_per_worker=2, dashboard_address=None) as client:
        print(client.submit(square, 7).result())
        print(client.gather(client.map(square, range(5))))
        counter = client.submit(Counter, actor=True).result()
        print(counter.add(5).result())
