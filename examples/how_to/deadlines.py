"""Give calls a time limit, and see that it ends the method as well, also through a second actor."""

import trio

from actors import Actor, method
from actors.errors import CallTimeoutError
from runtime import open_node


class Kitchen(Actor):
    def __init__(self) -> None:
        self.given_up = 0

    @method
    async def cook(self, seconds: float) -> str:
        try:
            await trio.sleep(seconds)
        except trio.Cancelled:
            self.given_up += 1
            raise
        return "soup"

    @method
    async def how_many_given_up(self) -> int:
        return self.given_up


class Waiter(Actor):
    def __init__(self, kitchen: Kitchen) -> None:
        self.kitchen = kitchen

    @method
    async def order(self) -> str:
        return await self.kitchen.cook(60)


async def main() -> None:
    async with open_node() as node:
        kitchen = await node.spawn(Kitchen)
        print(await kitchen.cook.options(timeout=5)(0.01))
        with trio.move_on_after(0.5) as scope:
            await kitchen.cook(60)
        print("given up by the scope:", scope.cancelled_caught)
        waiter = await node.spawn(Waiter, kitchen)
        try:
            await waiter.order.options(timeout=0.5)()
        except CallTimeoutError as error:
            print("timeout:", error.outcome)
        print("methods that ended early:", await kitchen.how_many_given_up())


if __name__ == "__main__":
    trio.run(main)
