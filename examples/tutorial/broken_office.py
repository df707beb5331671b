"""Chapter 1, broken: a seat that is taken, and a method without its mark."""

import trio

from box_office import BoxOffice, SeatTakenError
from runtime import open_node


class CarelessOffice(BoxOffice):
    async def close(self) -> None:
        self.sold.clear()


async def main() -> None:
    async with open_node() as node:
        office = await node.spawn(CarelessOffice, 3)
        await office.buy(1, "ada")
        try:
            await office.buy(1, "bob")
        except SeatTakenError as error:
            print("caught:", error)
        await office.close()


if __name__ == "__main__":
    trio.run(main)
