"""Find out why a call does not come back: the program types the commands that you would type."""

import sys

import trio

from actors import Actor, method
from runtime import LocalCluster, open_local_cluster


class Database(Actor):
    @method
    async def query(self, text: str) -> str:
        await trio.sleep_forever()  # The bug.
        return text


class Shop(Actor):
    def __init__(self, database: Database) -> None:
        self.database = database

    @method
    async def order(self, item: str) -> str:
        return await self.database.query(f"SELECT {item}")


async def ask(cluster: LocalCluster, *words: str) -> None:
    """Type a command in another terminal."""
    done = await trio.run_process(
        [sys.executable, "-m", "runtime.command_line", *words, "--address", cluster.node.address],
        capture_stdout=True,
    )
    print("$ understudy", *words)
    print(done.stdout.decode().rstrip())


async def main() -> None:
    async with open_local_cluster(nodes=1) as cluster:
        start = cluster.node.options
        database = await start(name="database", on="worker-1").spawn(Database)
        shop = await start(name="shop", on="worker-1").spawn(Shop, database)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shop.order, "tea")
            await trio.sleep(0.5)
            await ask(cluster, "why", "shop")
            await ask(cluster, "stack", "database")
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
