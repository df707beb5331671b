"""Functions in worker processes of a cluster: `run`, futures and an executor, from a script."""

from __future__ import annotations

import math

from actors import RetryPolicy
from runtime.blocking import open_local_cluster


def count_primes(below: int) -> int:
    """Work for a processor: it runs in a process of its own, and blocks nothing else."""
    return sum(
        all(number % divisor for divisor in range(2, math.isqrt(number) + 1))
        for number in range(2, below)
    )


def main() -> None:
    with open_local_cluster(nodes=2) as cluster:
        print(cluster.run(count_primes, 1000))
        future = cluster.future(count_primes, 2000)
        print(future.result())
        # A worker that dies takes no other item with it, and this item may be run again.
        patient = cluster.options(retry=RetryPolicy(max_retries=3, repeat_unknown=True))
        with patient.executor(max_workers=2) as executor:
            print(list(executor.map(count_primes, [10, 100, 1000])))


if __name__ == "__main__":
    main()
