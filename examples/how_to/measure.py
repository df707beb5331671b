"""Measure calls of your own: how many a second, and how long the slow ones take."""

import statistics
import time

import trio

from actors import Actor, method
from runtime import open_node


class Table(Actor):
    def __init__(self) -> None:
        self.rows: dict[int, int] = {}

    @method
    async def insert(self, key: int, value: int) -> None:
        self.rows[key] = value


async def one_by_one(table: Table, count: int) -> list[float]:
    """The seconds that each call took, made one after the other."""
    times = []
    for key in range(count):
        began = time.perf_counter()
        await table.insert(key, key)
        times.append(time.perf_counter() - began)
    return times


async def at_once(table: Table, count: int, tasks: int) -> float:
    """Calls a second, made by several tasks."""

    async def insert_some() -> None:
        for key in range(count // tasks):
            await table.insert(key, key)

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(tasks):
            nursery.start_soon(insert_some)
    return count / (time.perf_counter() - began)


async def main() -> None:
    async with open_node("here") as here, open_node("there", join=here.address) as there:
        table = await here.options(on=there.name).spawn(Table)
        await one_by_one(table, 100)  # Warm up: the first call connects.
        times = sorted(await one_by_one(table, 500))
        middle, slow = statistics.median(times), times[int(len(times) * 0.99)]
        print(f"one by one: {middle * 1e6:.0f} us in the middle, {slow * 1e6:.0f} us at 99 %")
        print(f"100 tasks: {await at_once(table, 5_000, 100):.0f} calls a second")


if __name__ == "__main__":
    trio.run(main)
