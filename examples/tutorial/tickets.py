"""Chapter 7: a pool prints tickets, which takes a processor some time."""

import hashlib
import logging
import os

import trio

from actors import Actor, method
from actors.errors import PoisonedItemError
from runtime import open_local_cluster


class Printer(Actor):
    @method(idempotent=True)  # the same ticket twice does no harm
    def ticket(self, seat: int) -> str:
        if seat == 13:
            os._exit(1)  # a bug that ends the whole process
        code = b"%d" % seat
        for _ in range(20_000):
            code = hashlib.sha256(code).digest()
        return f"{seat}-{code.hex()[:6]}"


async def main() -> None:
    async with open_local_cluster(nodes=2) as cluster:
        printers = await cluster.node.pool("printers", Printer, size=3, isolation="process")
        tickets = [ticket async for ticket in printers.map(Printer.ticket, range(1, 13))]
        print(len(tickets), "tickets, the first is", tickets[0])

        async for result in printers.map(Printer.ticket, range(12, 15), on_error="return"):
            if isinstance(result, PoisonedItemError):
                print("given up:", len(result.deaths), "members have died of it")
            else:
                print(result)


if __name__ == "__main__":
    logging.getLogger("understudy").setLevel(logging.CRITICAL)  # processes die on purpose
    trio.run(main)
