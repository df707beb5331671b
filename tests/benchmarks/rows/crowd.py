"""A hundred thousand idle actors in one node: what each weighs, and random calls to them from an
actor of another node.
"""

from __future__ import annotations

from tests.benchmarks.floor import open_floor
from tests.benchmarks.measuring import (
    CALLERS,
    Figure,
    Row,
    Settings,
    at_least,
    at_most,
    in_turn,
    pipelined,
)
from tests.benchmarks.memory import floor_weight
from tests.benchmarks.ours import Crowd, Visitor, open_bench

COUNT = 100_000
AT_ONCE = 1_000
KIBIBYTE = 1024


async def measure(settings: Settings) -> list[Row]:
    """The weight is taken once: the difference of two readings of one process, by the number of
    actors.
    """
    count = settings.size(COUNT)
    step = min(count, AT_ONCE)
    async with open_bench() as (_, cluster), open_floor() as floor:
        crowd = await cluster.node.options(on="worker-1").spawn(Crowd)
        await crowd.grow(step)
        before = await crowd.weight()
        await cluster.start_node()
        visitor = await cluster.node.options(on="worker-2").spawn(Visitor)
        for _ in range(0, count, step):
            await visitor.meet(await crowd.grow(step))
        each = (await crowd.weight() - before) / count / KIBIBYTE
        bare, _ = await floor_weight("objects", count)
        calls = await in_turn(
            settings.rounds,
            lambda: visitor.visit(settings.seconds),
            lambda: pipelined(floor.call, settings.seconds),
        )
    weight = Row(
        f"each of {count:,} idle actors",
        "KiB",
        _once(each),
        _once(bare / KIBIBYTE),
        against="floor, an object in a dict",
    )
    return [
        at_most(weight, 2),
        at_least(
            Row(
                f"random calls to them, {CALLERS:,} callers",
                "calls/s",
                *calls,
                against="floor, to one mailbox",
            ),
            value=60_000,
        ),
    ]


def _once(value: float) -> Figure:
    return Figure(value, value, value)
