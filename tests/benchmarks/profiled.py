"""Where the time of a work goes: `python -m tests.benchmarks.profiled named`.

Prints, for the process that calls and for the node that answers, the processor time of one unit of
the work, and then what a profiler counts of it: function calls, turns of the event loop, system
calls of sockets, cancel scopes, and the share of each room. The profiler makes all of it slower;
shares and counts are what to read.
"""

from __future__ import annotations

import cProfile
import itertools
import pstats
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import click
import trio

from actors import Actor, RetryPolicy, method
from runtime import LocalCluster
from tests.benchmarks.ours import Bench, Idle, Numbered, open_bench

Unit = Callable[[], Awaitable[object]]

AT_ONCE = {
    "named": 20,
    "named-alone": 1,
    "spawn": 1,
    "spawns": 1_000,
    "constructors": 1_000,
    "calls": 1_000,
    "retried": 1_000,
    "repeatable": 1_000,
    "call": 1,
    "repeatable-call": 1,
    "raising": 200,
}
"""The works, and how many tasks do each side by side."""

COUNTED = {
    "turns of the event loop": "get_events",
    "sends": "<method 'send' of '_socket.socket' objects>",
    "receives": "<method 'recv' of '_socket.socket' objects>",
    "tasks woken": "reschedule",
    "cancel scopes": "CancelScope.__enter__",
    "values encoded": "<built-in method cbor2._cbor2.dumps>",
    "values decoded": "<built-in method cbor2._cbor2.loads>",
}
"""Functions whose calls are shown, by what they are."""

WAITING = ("<method 'poll' of 'select.epoll' objects>", "<method 'acquire' of '_thread.lock'")
SCOPE_ENTRY = ("_run.py", "__enter__")
RESCHEDULING = ("_run.py", "reschedule")


@attrs.frozen
class Profile:
    """What a profiler found in one process: seconds by room without those of waiting, calls by
    room, and the calls of what `COUNTED` names.
    """

    seconds: dict[str, float]
    calls: dict[str, int]
    counted: dict[str, int]


def _room(path: str) -> str:
    """The room of the house, or the package, that a file belongs to."""
    parts = path.replace("\\", "/").split("/")
    for package in ("runtime", "actors"):
        if package in parts:
            inner = parts[parts.index(package) + 1 :]
            return f"{package}.{inner[0].removesuffix('.py')}" if package == "runtime" else package
    if "site-packages" in parts:
        return parts[parts.index("site-packages") + 1]
    return "written in C" if path == "~" else "of Python and attrs"


def _read(profiler: cProfile.Profile) -> Profile:
    seconds, calls, counted = Counter[str](), Counter[str](), Counter[str]()
    rows = pstats.Stats(profiler).stats  # type: ignore[attr-defined]  # not in the stubs
    for (path, _, name), (_, number, own, _, _) in rows.items():
        if not name.startswith(WAITING):
            seconds[_room(path)] += own
            calls[_room(path)] += number
        shown = name
        if path.endswith(SCOPE_ENTRY[0]) and name == SCOPE_ENTRY[1]:
            shown = "CancelScope.__enter__"
        if name == "reschedule" and not path.endswith(RESCHEDULING[0]):
            continue
        counted[shown] += number
    return Profile(dict(seconds), dict(calls), {what: counted[of] for what, of in COUNTED.items()})


class Profiled(Actor):
    """Profiles the process of its node."""

    def __init__(self) -> None:
        self.profiler: cProfile.Profile | None = None

    @method
    async def processor_time(self) -> float:
        """Seconds of the process until now."""
        return time.process_time()

    @method
    async def begin(self) -> None:
        """Profile from now on."""
        self.profiler = cProfile.Profile()
        self.profiler.enable()

    @method
    async def end(self) -> tuple[dict[str, float], dict[str, int], dict[str, int]]:
        """Stop, and return the fields of the `Profile`."""
        assert self.profiler is not None
        self.profiler.disable()
        found = _read(self.profiler)
        return found.seconds, found.calls, found.counted


def _units(cluster: LocalCluster, bench: Bench) -> dict[str, Unit]:
    placed, numbers = cluster.node.options(on="worker-1"), itertools.count()

    async def named() -> None:
        actor = await placed.options(name=f"one-{next(numbers)}").spawn(Idle)
        await actor.read()
        await cluster.node.stop(actor)

    async def spawn() -> None:
        await (await placed.spawn(Idle)).read()

    async def raising() -> None:
        try:
            await bench.fail(1)
        except ValueError:
            return

    return {
        "named": named,
        "named-alone": named,
        "spawn": spawn,
        "spawns": partial(placed.spawn, Idle),
        "constructors": partial(placed.spawn, Numbered, 1),
        "calls": bench.read,
        "retried": bench.read.options(retry=RetryPolicy()),
        "repeatable": bench.read_again.options(retry=RetryPolicy()),
        "call": bench.read,
        "repeatable-call": bench.read_again.options(retry=RetryPolicy()),
        "raising": raising,
    }


async def _work(unit: Unit, count: int, at_once: int) -> None:
    left = iter(range(count))

    async def some() -> None:
        for _ in left:
            await unit()

    async with trio.open_nursery() as nursery:
        for _ in range(min(at_once, count)):
            nursery.start_soon(some)


async def measure(work: str, count: int) -> list[str]:
    """The lines about one work."""
    at_once = AT_ONCE[work]
    async with open_bench() as (bench, cluster):
        profiled = await cluster.node.options(on="worker-1").spawn(Profiled)
        do = partial(_work, _units(cluster, bench)[work], count, at_once)
        await do()
        before = time.process_time(), await profiled.processor_time()
        await do()
        after = time.process_time(), await profiled.processor_time()
        await profiled.begin()
        profiler = cProfile.Profile()
        profiler.enable()
        await do()
        profiler.disable()
        found = _read(profiler), Profile(*await profiled.end())
    lines = [f"{work}: {count:,} units, {at_once:,} side by side; each of them"]
    for place, who in enumerate(("caller", "node")):
        lines += _shown(who, (after[place] - before[place]) / count, found[place], count)
    return lines


def _shown(who: str, seconds: float, profile: Profile, count: int) -> list[str]:
    calls, whole = sum(profile.calls.values()) / count, sum(profile.seconds.values())
    lines = [f"{who}: {1e6 * seconds:,.0f} µs of processor time; {calls:,.0f} function calls"]
    lines += [f"  {number / count:8.2f} {what}" for what, number in profile.counted.items()]
    rooms = sorted(profile.seconds.items(), key=lambda item: -item[1])
    lines += [
        f"  {100 * own / whole:7.1f} % {profile.calls[room] / count:8.1f} calls  {room}"
        for room, own in rooms
        if own >= 0.01 * whole
    ]
    return lines


@click.command(help=__doc__)
@click.argument("works", nargs=-1, type=click.Choice(list(AT_ONCE)))
@click.option("--count", default=2_000, show_default=True, help="Units of each work.")
def main(works: tuple[str, ...], count: int) -> None:
    """Print the lines of each work."""
    for work in works or tuple(AT_ONCE):
        click.echo("\n".join(trio.run(measure, work, count)))


if __name__ == "__main__":
    main()
