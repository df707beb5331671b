"""Chapter 3: what a caller learns when the process of an actor dies."""

import logging

import trio

from actors import NotExecutedError, OutcomeUnknownError, method
from box_office import BoxOffice
from runtime import open_local_cluster


class CardOffice(BoxOffice):
    @method
    async def buy_by_card(self, seat: int, buyer: str) -> str:
        await trio.sleep(2)  # the bank takes its time
        return await self.buy(seat, buyer)


async def main() -> None:
    async with open_local_cluster(nodes=2) as cluster:
        office = await cluster.node.options(name="box-office", on="worker-1").spawn(CardOffice, 3)

        async def buy(seat: int) -> None:
            try:
                print(await office.buy_by_card(seat, "ada"))
            except OutcomeUnknownError as error:
                print(f"seat {seat} may be sold ({type(error).__name__})")
            except NotExecutedError as error:
                print(f"seat {seat} is certainly not sold ({type(error).__name__})")

        await buy(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(buy, 2)
            await trio.sleep(1)  # it runs now
            cluster.process("worker-1").kill()
            await cluster.process("worker-1").wait()
        await buy(3)


if __name__ == "__main__":
    logging.getLogger("understudy").setLevel(logging.CRITICAL)  # the process is killed on purpose
    trio.run(main)
