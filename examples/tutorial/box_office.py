"""Chapter 1: a box office, which sells the seats of one evening."""

import trio

from actors import Actor, message, method
from runtime import open_node


@message
class SeatTakenError(Exception):
    """The seat is sold to another customer."""


class BoxOffice(Actor):
    def __init__(self, seats: int) -> None:
        self.seats = seats
        self.sold: dict[int, str] = {}

    @method(idempotent=True)
    async def buy(self, seat: int, buyer: str) -> str:
        if self.sold.setdefault(seat, buyer) != buyer:
            raise SeatTakenError(f"seat {seat} is taken")
        return f"seat {seat} is for {buyer}"

    @method(idempotent=True)
    async def free(self) -> int:
        return self.seats - len(self.sold)

    @method(idempotent=True)
    async def where(self) -> str:
        return self.node.name


async def main() -> None:
    async with open_node() as node:
        office = await node.options(name="box-office").spawn(BoxOffice, 3)
        print(await office.buy(1, "ada"))
        print(await office.free(), "seats are free")


if __name__ == "__main__":
    trio.run(main)
