"""`python -m tests.pools.disturbed_map`: maps over the members of real node processes, of which one
after the other is killed, or asked to leave, while others join. Prints what happened. Its status is
1 if an item was lost or has a wrong result, if one of an idempotent method is of unknown outcome,
or if one of another method that had begun was repeated.
"""

from __future__ import annotations

import argparse
import functools
import random
import sys
from collections import Counter

import attrs
import trio

from actors import Actor, method
from actors.errors import OutcomeUnknownError, PoisonedItemError
from actors.pools import MapCounts
from runtime import LocalCluster, open_local_cluster

NODES = 4
ITEM_SECONDS = 0.002


class Waiter(Actor):
    """Waits for a moment with each item: a map of many lasts, and the machine stays idle."""

    @method(idempotent=True)
    async def often(self, item: int) -> int:
        await trio.sleep(ITEM_SECONDS)
        return item * item

    @method
    async def once(self, item: int) -> int:
        await trio.sleep(ITEM_SECONDS)
        return item * item


@attrs.define
class Story:
    """What happened in one map."""

    kills: int = 0
    leaves: int = 0
    wrong: list[int] = attrs.Factory(list)
    unknown: int = 0
    poisoned: int = 0
    counts: MapCounts | None = None


async def disturb(cluster: LocalCluster, story: Story, draw: random.Random) -> None:
    """Kill a node, or ask it to leave, and start another one, for ever."""
    while True:
        await trio.sleep(0.5 + draw.random())
        alive = [one for one in cluster.processes.values() if one.running]
        victim = draw.choice(alive)
        if draw.random() < 0.3:
            story.leaves += 1
            await victim.leave()
        else:
            story.kills += 1
            victim.kill()
        await cluster.start_node()


async def disturbed(items: int, seed: int, *, repeats: bool) -> Story:
    """One map of so many items, of a method that may be repeated or not."""
    story, draw = Story(), random.Random(seed)
    async with open_local_cluster(nodes=NODES) as cluster:
        pool = await cluster.node.pool("waiters", Waiter, size=NODES)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(disturb, cluster, story, draw)
            bound = Waiter.often if repeats else Waiter.once
            results = pool.map(bound, range(items), on_error="return")
            index = 0
            async for result in results:
                if isinstance(result, PoisonedItemError):
                    story.poisoned += 1
                elif isinstance(result, OutcomeUnknownError):
                    story.unknown += 1
                elif result != index * index:
                    story.wrong.append(index)
                index += 1
            story.counts = results.counts()
            if index != items:
                story.wrong.append(index)
            nursery.cancel_scope.cancel()
    return story


def main() -> int:
    """Both kinds of maps."""
    parser = argparse.ArgumentParser(prog="tests.pools.disturbed_map", description=__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    failures: Counter[str] = Counter()
    for repeats in (True, False):
        work = functools.partial(disturbed, options.items, options.seed, repeats=repeats)
        story = trio.run(work)
        assert story.counts is not None
        sys.stdout.write(
            f"{'idempotent' if repeats else 'not idempotent'}: {options.items} items in "
            f"{story.counts.seconds:.0f} s; {story.kills} nodes killed, {story.leaves} left; "
            f"{story.counts.repeated} repeated, {story.unknown} of unknown outcome, "
            f"{story.poisoned} poisoned, {len(story.wrong)} lost or wrong\n"
        )
        failures["lost or wrong"] += len(story.wrong)
        failures["of unknown outcome"] += story.unknown if repeats else 0
        failures["repeated"] += 0 if repeats else story.counts.repeated
    return int(any(failures.values()))


if __name__ == "__main__":
    sys.exit(main())
