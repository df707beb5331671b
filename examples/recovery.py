"""Kill the process of a supervised actor: it comes back elsewhere with the state it saved, and its
old handle still works.
"""

import logging

import trio

from actors import Actor, ChildSpec, SpawnOptions, Supervisor, method
from runtime import open_local_cluster


class Ledger(Actor):
    async def on_start(self) -> None:
        self.total = await self.saved() or 0

    @method
    async def add(self, amount: int) -> int:
        await self.save(self.total + amount)
        self.total += amount
        return self.total

    @method
    async def where(self) -> str:
        return self.node.name


async def main() -> None:
    async with open_local_cluster(nodes=0) as cluster:
        for name in ("left", "right"):
            await cluster.start_node(name, labels={"keeps": "ledgers"})
        spec = ChildSpec(
            id="ledger",
            actor=Ledger,
            options=SpawnOptions(name="ledger", labels={"keeps": "ledgers"}),
        )
        await cluster.node.options(name="supervisor").spawn(Supervisor, [spec])
        ledger = await cluster.node.lookup("ledger", Ledger)
        print("added:", await ledger.add(100))
        home = await ledger.where()
        cluster.process(home).kill()
        await cluster.process(home).wait()
        print("killed its process; added:", await ledger.add(1))
        print("elsewhere now:", await ledger.where() != home)


if __name__ == "__main__":
    logging.getLogger("understudy").setLevel(
        logging.CRITICAL
    )  # The process below is killed on purpose, and the log would tell of it.
    trio.run(main)
