import ray


@ray.remote(max_restarts=-1)
class Counter:
    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    def fail(self) -> None:
        raise ValueError("no more")


ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
counter = Counter.options(name="counter").remote()
print(ray.get(counter.add.remote(5)))
print(ray.get([counter.add.remote(1) for _ in range(3)]))
same = ray.get_actor("counter")
print(ray.get(same.add.remote(1)))
try:
    ray.get(counter.fail.remote())
except ValueError:
    print("it raised")
