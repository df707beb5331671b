"""Many nodes in real processes that all call each other for the first time at once, round after
round.

    python -m tests.cluster.meeting [NODES [PROCESSES [ROUNDS [SECONDS [CALLS]]]]]

100 nodes in 10 processes by default, 100 rounds or as many as fit in 600 seconds, and one call from
each node to each other in a round. The founder, with the store, is in this process. Between two
rounds every node gives up its links to all others but the founder, so that in each round all
handshakes, sessions and crossed dials are those of nodes that never met: the number of links that
were left is checked. Each round counts the calls that failed, those that did not run exactly once,
and the warnings of all processes.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import cast

import attrs
import cbor2
import trio

from actors import Actor, method
from runtime import open_node
from runtime.environment import SystemEnvironment
from runtime.links.link import Link
from runtime.local_cluster import PRELOADED
from runtime.node import Node, internals_of
from runtime.processes import ForkServer, open_fork_server
from runtime.processes.fork_loop import settle_collector
from runtime.testing import Platform
from runtime.timings import Timings

SECRET = "a secret for the tests of meetings"
FOUNDER = "founder"
LEAST_WAIT = 0.3
"""Seconds from when a round is told to the nodes until it begins, and for each node some more: all
must have been told by then.
"""

WAIT_FOR_EACH = 0.005
MOST_PARTINGS = 100


def unhurried() -> Platform:
    """That of a node whose lease a busy machine does not cost it: what is looked for here are links
    that end although both their nodes live.
    """
    return Platform(
        environment=SystemEnvironment(Timings(lease=60.0, store_call=60.0, join_answer=60.0))
    )


class Guest(Actor):
    """Calls its counterparts on all other nodes, and counts what it is called."""

    def __init__(self) -> None:
        self.others: list[Guest] = []
        self.heard: dict[str, int] = {}

    def links(self) -> list[Link]:
        """Those to other nodes but the founder."""
        links = internals_of(cast(Node, self.node)).links.values()
        return [link for link in links if link.peer.role == "node" and link.peer.name != FOUNDER]

    @method
    async def learn(self, guests: list[Guest]) -> None:
        """Who the counterparts are."""
        own = f"guest-{self.node.name}"
        self.others = [guest for guest in guests if guest.name != own]

    @method(concurrent=True)
    async def hear(self, caller: str) -> str:
        """The caller's name, once it was counted."""
        self.heard[caller] = self.heard.get(caller, 0) + 1
        return caller

    @method(concurrent=True)
    async def meet(self, seconds: float, times: int) -> list[str]:
        """Call each of the others `times` times at once, when the host's clock shows `seconds`.
        Returns what went wrong.
        """
        # All processes of one host read the same monotonic clock.
        await trio.sleep(max(0.0, seconds - time.monotonic()))
        wrong: list[str] = []

        async def call(other: Guest) -> None:
            try:
                if await other.hear(self.name) != self.name:
                    wrong.append("the answer to another call")
            except Exception as error:
                wrong.append(f"{self.name}: {type(error).__name__}: {error}")

        async with trio.open_nursery() as nursery:
            for other in self.others:
                for _ in range(times):
                    nursery.start_soon(call, other)
        return wrong

    @method(concurrent=True)
    async def settle(self, times: int) -> list[str]:
        """What was not heard `times` times since the last time; counted anew from now on."""
        heard, self.heard = self.heard, {}
        wrong = [
            f"{self.name} heard {caller} {count} times, not {times}"
            for caller, count in heard.items()
            if count != times
        ]
        if len(heard) != len(self.others):
            wrong.append(f"{self.name} heard {len(heard)} others, not {len(self.others)}")
        return wrong

    @method(concurrent=True)
    async def part(self) -> list[str]:
        """Give up all links to other nodes but the founder; returns the names of those nodes."""
        links = self.links()
        for link in links:
            internals_of(cast(Node, self.node)).endpoint.peers.give_up(link, "the round is over")
        return [link.peer.name for link in links]


@attrs.define
class Outcome:
    """What rounds came to."""

    nodes: int
    processes: int
    rounds: int = 0
    calls: int = 0
    slowest: float = 0.0
    """Seconds from the beginning of a round to its last answer."""
    wrong: list[str] = attrs.field(factory=list)
    warnings: list[str] = attrs.field(factory=list)

    def __str__(self) -> str:
        return (
            f"{self.nodes} nodes in {self.processes} processes, {self.rounds} rounds, "
            f"{self.calls} calls over links that were new in each: "
            f"{len(self.wrong)} things went wrong, {len(self.warnings)} warnings; the slowest "
            f"round took {self.slowest:.1f} s"
        )


@attrs.define
class Party:
    """Nodes that meet."""

    guests: list[Guest]
    outcome: Outcome

    async def meet(self, times: int) -> None:
        """One round."""
        count = len(self.guests)
        begin = time.monotonic() + LEAST_WAIT + WAIT_FOR_EACH * count
        self.outcome.wrong += await self._all(
            [partial(guest.meet, begin, times) for guest in self.guests]
        )
        self.outcome.slowest = max(self.outcome.slowest, time.monotonic() - begin)
        self.outcome.wrong += await self._all(
            [partial(guest.settle, times) for guest in self.guests]
        )
        self.outcome.rounds += 1
        self.outcome.calls += count * (count - 1) * times

    async def part(self) -> None:
        """End all links between the nodes, so that the next round finds none."""
        for _ in range(MOST_PARTINGS):
            # A node that parts later may have dialled one that has parted already: until none finds
            # a link any more.
            if not await self._all([guest.part for guest in self.guests]):
                return
        self.outcome.wrong.append("links between the nodes begin though nobody calls")

    async def _all(self, asked: list[Callable[[], Awaitable[list[str]]]]) -> list[str]:
        found: list[str] = []

        async def ask(each: Callable[[], Awaitable[list[str]]]) -> None:
            found.extend(await each())

        async with trio.open_nursery() as nursery:
            for each in asked:
                nursery.start_soon(ask, each)
        return found


class _Warnings(logging.Handler):
    def __init__(self, warnings: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.warnings = warnings

    def emit(self, record: logging.LogRecord) -> None:
        self.warnings.append(f"{record.levelname} of this process: {record.getMessage()}")


@asynccontextmanager
async def open_party(nodes: int, processes: int) -> AsyncIterator[Party]:
    """`nodes` nodes in `processes` processes, and a founder in this one."""
    outcome = Outcome(nodes, processes)
    handler = _Warnings(outcome.warnings)
    logger = logging.getLogger("understudy")
    logger.addHandler(handler)

    def on_line(name: str, line: str) -> None:
        if not line.startswith(("INFO", "DEBUG")):
            outcome.warnings.append(f"{name}: {line}")

    names = [f"node-{number}" for number in range(1, nodes + 1)]
    try:
        async with (
            open_fork_server(
                preload=(*PRELOADED, "tests.cluster.meeting"), on_line=on_line, ready_timeout=120.0
            ) as server,
            open_node(
                FOUNDER, listen="127.0.0.1:0", secret=SECRET, platform=unhurried()
            ) as founder,
        ):
            async with trio.open_nursery() as nursery:
                for number in range(processes):
                    nursery.start_soon(
                        _start,
                        server,
                        founder.address,
                        f"process-{number + 1}",
                        names[number::processes],
                    )
            await founder.wait_for(nodes + 1)
            guests = [
                await founder.options(name=f"guest-{name}", on=name).spawn(Guest) for name in names
            ]
            party = Party(guests, outcome)
            for guest in guests:
                await guest.learn(guests)
            await party.part()
            yield party
    finally:
        logger.removeHandler(handler)


async def _start(server: ForkServer, founder: str, name: str, nodes: list[str]) -> None:
    child = await server.start(
        "tests.cluster.meeting:run_nodes", cbor2.dumps([founder, nodes]), name
    )
    await child.ready()


def run_nodes(argument: bytes, report: Callable[[bytes], None]) -> None:
    """What a process does; started by the fork server."""
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    founder, names = cbor2.loads(argument)
    trio.run(_serve, founder, names, report)


async def _serve(founder: str, names: list[str], report: Callable[[bytes], None]) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with AsyncExitStack() as nodes:
            for name in names:
                await nodes.enter_async_context(
                    open_node(
                        name,
                        listen="127.0.0.1:0",
                        join=founder,
                        secret=SECRET,
                        platform=unhurried(),
                    )
                )
            settle_collector()
            report(b"")
            async for _ in signals:
                break


async def run_rounds(
    nodes: int, processes: int, rounds: int, seconds: float, times: int, say: Callable[[str], None]
) -> Outcome:
    """At most `rounds` rounds, none of which begins after `seconds`."""
    began = time.monotonic()
    async with open_party(nodes, processes) as party:
        say(f"{nodes} nodes are there after {time.monotonic() - began:.1f} s")
        began = time.monotonic()
        while party.outcome.rounds < rounds and time.monotonic() - began < seconds:
            await party.meet(times)
            await party.part()
            if party.outcome.rounds % 10 == 0 or party.outcome.wrong:
                say(str(party.outcome))
        # What is logged while nodes are stopped is none of this.
        return attrs.evolve(
            party.outcome, wrong=list(party.outcome.wrong), warnings=list(party.outcome.warnings)
        )


def main(arguments: list[str]) -> int:
    """The exit status."""
    given = [int(argument) for argument in arguments]
    nodes, processes, rounds, seconds, times = [*given, *(100, 10, 100, 600, 1)[len(given) :]]
    outcome = trio.run(
        run_rounds, nodes, processes, rounds, float(seconds), times, partial(print, flush=True)
    )
    sys.stdout.write("\n".join((str(outcome), *outcome.wrong[:20], *outcome.warnings[:20], "")))
    return 1 if outcome.wrong or outcome.warnings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
