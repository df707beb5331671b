"""Chapter 5: the box office saves what it has sold, and the theatre keeps it open."""

import logging

import trio

from actors import ChildSpec, SpawnOptions, Supervisor, method
from box_office import BoxOffice, SeatTakenError
from runtime import open_local_cluster


class KeptOffice(BoxOffice):
    async def on_start(self) -> None:
        self.sold = await self.saved() or {}

    @method(idempotent=True)
    async def buy(self, seat: int, buyer: str) -> str:
        sold = {**self.sold, seat: self.sold.get(seat, buyer)}
        if sold[seat] != buyer:
            raise SeatTakenError(f"seat {seat} is taken")
        ticket = f"seat {seat} is for {buyer}"
        await self.save(sold, answer=ticket)
        self.sold = sold
        return ticket


def theatre(seats: int, **labels: str) -> ChildSpec:
    """How a supervisor starts the office, on a node with these labels."""
    return ChildSpec(
        id="box-office",
        actor=KeptOffice,
        args=(seats,),
        options=SpawnOptions(name="box-office", labels=labels),
    )


async def main() -> None:
    async with open_local_cluster(nodes=2) as cluster:
        node = cluster.node
        await node.options(name="theatre").singleton(Supervisor, [theatre(3)])
        office = await node.lookup("box-office", KeptOffice)
        print(await office.buy(1, "ada"))

        home = await office.where()
        cluster.process(home).kill()
        await cluster.process(home).wait()
        try:
            await office.buy(1, "bob")
        except SeatTakenError as error:
            print("caught:", error)
        print(await office.buy(2, "bob"))


if __name__ == "__main__":
    logging.getLogger("understudy").setLevel(logging.CRITICAL)  # the process is killed on purpose
    trio.run(main)
