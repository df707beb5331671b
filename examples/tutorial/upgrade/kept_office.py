"""Chapter 10: version 2 of the box office, in which seats have prices."""

from actors import Actor, ChildSpec, SpawnOptions, method
from box_office import SeatTakenError

OLD_PRICE = 20


class KeptOffice(Actor):
    def __init__(self, seats: int) -> None:
        self.seats = seats

    async def on_start(self) -> None:
        saved = await self.saved() or {}
        # Version 1 has saved the buyer alone.
        self.sales: dict[int, tuple[str, int]] = {
            seat: (sale, OLD_PRICE) if isinstance(sale, str) else tuple(sale)
            for seat, sale in saved.items()
        }

    @method(idempotent=True)
    async def buy(self, seat: int, buyer: str, price: int = 25) -> str:
        sales = {**self.sales, seat: self.sales.get(seat, (buyer, price))}
        if sales[seat][0] != buyer:
            raise SeatTakenError(f"seat {seat} is taken")
        ticket = f"seat {seat} is for {buyer}, at {sales[seat][1]}"
        await self.save(sales, answer=ticket)
        self.sales = sales
        return ticket

    @method(idempotent=True)
    async def free(self) -> int:
        return self.seats - len(self.sales)

    @method(idempotent=True)
    async def income(self) -> int:
        return sum(price for _, price in self.sales.values())

    @method(idempotent=True)
    async def where(self) -> str:
        return self.node.name


def theatre(seats: int, **labels: str) -> ChildSpec:
    """How a supervisor starts the office, on a node with these labels."""
    return ChildSpec(
        id="box-office",
        actor=KeptOffice,
        args=(seats,),
        options=SpawnOptions(name="box-office", labels=labels),
    )
