"""One of several nodes does a job, and another takes over when it leaves."""

import trio

from actors import Actor, RetryPolicy, method
from runtime import open_node


class Reaper(Actor):
    """What only one node may do at a time."""

    async def on_start(self) -> None:
        self.rounds = 0
        self.nursery.start_soon(self.work)

    async def work(self) -> None:
        while True:
            self.rounds += 1  # In place of the work.
            await trio.sleep(1)

    @method(idempotent=True)
    async def where(self) -> str:
        return self.node.name


PATIENT = RetryPolicy(max_retries=20, initial_delay=0.05)


async def main() -> None:
    async with open_node("first") as first, open_node("second", join=first.address) as second:
        async with open_node("third", join=first.address) as third:
            for candidate in (third, second):
                await candidate.options(name="reaper").singleton(Reaper)
            reaper = await first.lookup("reaper", Reaper)
            print("leader:", await reaper.where())
        print("leader:", await reaper.where.options(retry=PATIENT)())


if __name__ == "__main__":
    trio.run(main)
