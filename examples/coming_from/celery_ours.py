from runtime.blocking import open_local_cluster


def square(number: int) -> int:
    return number * number


def fail() -> None:
    raise ValueError("no more")


if __name__ == "__main__":
    with open_local_cluster(nodes=1) as cluster:
        print(cluster.future(square, 7).result(timeout=10))
        results = [cluster.future(square, number) for number in range(5)]
        print([result.result(timeout=10) for result in results])
        try:
            cluster.future(fail).result(timeout=10)
        except ValueError:
            print("it raised")
