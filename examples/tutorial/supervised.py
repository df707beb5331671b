"""Chapter 4: a supervisor starts the box office again when its process has died."""

import logging

import trio

from actors import ChildSpec, SpawnOptions, Supervisor
from box_office import BoxOffice
from runtime import open_local_cluster


async def main() -> None:
    async with open_local_cluster(nodes=2) as cluster:
        node = cluster.node
        child = ChildSpec(
            id="box-office", actor=BoxOffice, args=(3,), options=SpawnOptions(name="box-office")
        )
        await node.options(name="theatre").singleton(Supervisor, [child])
        office = await node.lookup("box-office", BoxOffice)
        print(await office.buy(1, "ada"))

        home = await office.where()
        cluster.process(home).kill()
        await cluster.process(home).wait()
        print(await office.buy(1, "bob"))


if __name__ == "__main__":
    logging.getLogger("understudy").setLevel(logging.CRITICAL)  # the process is killed on purpose
    trio.run(main)
