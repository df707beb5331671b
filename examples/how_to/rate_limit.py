"""Let the whole cluster make at most so many requests a second: one actor gives out the turns."""

import trio

from actors import Actor, method
from runtime import open_node


class RateLimit(Actor):
    """A token bucket: `per_second` on average, and `burst` of them at once."""

    def __init__(self, per_second: float, burst: int) -> None:
        self.per_second = per_second
        self.burst = burst
        self.free_at = 0.0

    @method
    async def take(self) -> None:
        """Return when it is your turn. Turns are given in the order of the calls."""
        earliest = trio.current_time() - (self.burst - 1) / self.per_second
        self.free_at = max(self.free_at, earliest)
        await trio.sleep_until(self.free_at)
        self.free_at += 1 / self.per_second


async def main() -> None:
    async with open_node() as node:
        limit = await node.options(name="requests").get_or_spawn(RateLimit, 50, 5)
        began = trio.current_time()
        times: list[float] = []

        async def request() -> None:
            await limit.take()
            times.append(trio.current_time() - began)

        async with trio.open_nursery() as nursery:
            for _ in range(15):
                nursery.start_soon(request)
        # The first five at once, and the other ten 1/50 s apart.
        print("requests:", len(times), "in at least 0.19 s:", max(times) >= 0.19)


if __name__ == "__main__":
    trio.run(main)
