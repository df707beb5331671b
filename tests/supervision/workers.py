"""A child that says where it lives, for tests of trees whose nodes die."""

from __future__ import annotations

import trio

from actors import Actor, method


class Worker(Actor):
    """Says where it lives, and which life it is."""

    @method(concurrent=True, idempotent=True)
    async def life(self) -> tuple[str, int]:
        return self.node.name, self.epoch

    @method
    async def fail(self) -> None:
        self.nursery.start_soon(self.explode)
        await trio.sleep_forever()

    async def explode(self) -> None:
        raise RuntimeError("boom")
