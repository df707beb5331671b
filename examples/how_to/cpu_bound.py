"""Compute on several cores without holding up the event loop of a node."""

import os

from runtime.blocking import open_local_cluster


def count_primes(first: int, last: int) -> int:
    return sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(max(2, first), last))


if __name__ == "__main__":
    with open_local_cluster(nodes=2) as cluster:
        parts = [(n * 1_000, (n + 1) * 1_000) for n in range(10)]
        futures = [cluster.future(count_primes, first, last) for first, last in parts]
        print(sum(future.result() for future in futures), "primes below 10000")
        here = cluster.run(os.getpid) == os.getpid()
        print("in this process:", here)
