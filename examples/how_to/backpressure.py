"""A producer that is faster than its consumer waits, instead of filling the memory."""

import trio

from actors import Actor, method
from actors.errors import MailboxFullError
from runtime import open_node


class Slow(Actor):
    @method
    async def work(self, number: int) -> int:
        await trio.sleep(0.01)
        return number


async def main() -> None:
    async with open_node() as node:
        slow = await node.options(mailbox_limit=10).spawn(Slow)
        refused = 0

        async def call(number: int) -> None:
            nonlocal refused
            try:
                await slow.work(number)
            except MailboxFullError:
                refused += 1

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(call, number)
        print("without a bound of its own, refused:", refused > 0)

        refused, at_once = 0, trio.CapacityLimiter(8)

        async def call_in_turn(number: int) -> None:
            async with at_once:
                await call(number)

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(call_in_turn, number)
        print("with eight at once, refused:", refused)


if __name__ == "__main__":
    trio.run(main)
