"""Chapter 2: the box office is in one process, its customers are in another."""

import logging

import trio

from actors import UnderstudyError
from box_office import BoxOffice, SeatTakenError
from runtime import open_local_cluster


async def main() -> None:
    async with open_local_cluster(nodes=2) as cluster:
        node = cluster.node
        office = await node.options(name="box-office", on="worker-1").spawn(BoxOffice, 3)
        print(await office.buy(1, "ada"))

        same = await node.lookup("box-office", BoxOffice)
        try:
            await same.buy(1, "bob")
        except SeatTakenError as error:
            print("caught:", error)

        cluster.process("worker-1").kill()
        await cluster.process("worker-1").wait()
        try:
            await office.buy(2, "bob")
        except UnderstudyError as error:
            print("gone:", type(error).__name__)


if __name__ == "__main__":
    logging.getLogger("understudy").setLevel(logging.CRITICAL)  # the process is killed on purpose
    trio.run(main)
