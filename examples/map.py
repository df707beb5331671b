"""A pool works on the items of a `map`; one of its nodes is killed meanwhile, no item is lost."""

import logging

import trio

from actors import Actor, method
from runtime import open_local_cluster


def primes_below(limit: int) -> int:
    return sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(2, limit))


class Primes(Actor):
    @method(idempotent=True)  # to count once more does no harm
    def below(self, limit: int) -> int:
        return primes_below(limit)


async def main() -> None:
    async with open_local_cluster(nodes=3) as cluster:
        pool = await cluster.node.pool("primes", Primes, size=3)
        print(pool)
        limits = range(100, 3100, 10)
        counts: list[int] = []
        async for count in pool.map(Primes.below, limits):
            counts.append(count)
            if len(counts) == 50:
                cluster.process("worker-2").kill()
        print(len(counts), "results, as of a loop:", counts == list(map(primes_below, limits)))
        await pool.stop()


if __name__ == "__main__":
    logging.getLogger("understudy").setLevel(logging.ERROR)  # the death is meant
    trio.run(main)
