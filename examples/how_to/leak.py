"""See which values a node keeps, and which line made them."""

import sys

import trio

from actors import Actor, Reference, method
from runtime import open_node


class Cache(Actor):
    """Keeps a reference to every picture that it was ever asked for. That is the leak."""

    def __init__(self) -> None:
        self.kept: list[Reference[bytes]] = []

    @method
    async def picture(self, number: int) -> int:
        self.kept.append(await self.node.put(bytes(1_000_000)))
        return number

    @method
    async def forget(self) -> None:
        self.kept.clear()


async def show(address: str) -> None:
    """Type the command in another terminal."""
    words = ["refs", "--where", "--address", address]
    done = await trio.run_process(
        [sys.executable, "-m", "runtime.command_line", *words], capture_stdout=True
    )
    print("$ understudy refs --where")
    print(done.stdout.decode().rstrip())


async def main() -> None:
    async with open_node("shop", trace_references=True) as node:
        cache = await node.options(name="cache").spawn(Cache)
        for number in range(3):
            await cache.picture(number)
        await show(node.address)
        await cache.forget()
        await show(node.address)


if __name__ == "__main__":
    trio.run(main)
