"""Two nodes that find each other by an address and a secret, as on two machines."""

import trio

from actors import Actor, method
from runtime import open_node

SECRET = "at least sixteen bytes, the same on all machines"


class Greeter(Actor):
    @method
    async def greet(self, who: str) -> str:
        return f"hello {who}, from {self.node.name}"


async def main() -> None:
    async with (
        # On the first machine. There: listen="0.0.0.0:7400".
        open_node("first", listen="127.0.0.1:0", secret=SECRET) as first,
        # On the second one. There: join="10.0.0.1:7400", the address of the first.
        open_node("second", join=first.address, secret=SECRET) as second,
    ):
        greeter = await second.options(name="greeter", on="first").spawn(Greeter)
        print(await greeter.greet("you"))
        print([member.name for member in second.members()])


if __name__ == "__main__":
    trio.run(main)
