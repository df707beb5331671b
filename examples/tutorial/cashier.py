"""Chapter 9: an actor that blocks the event loop of its node, which no actor may do."""

import time

from actors import Actor, method


class Cashier(Actor):
    @method
    async def count(self) -> None:
        time.sleep(30)  # a plain `def` method would run in a thread
