"""Calls through a proxy that spoils their connections, and the books on the outcome of each.

Callers and actors are in two processes, and all links between them lead through the proxy. `python
-m tests.links.proxied_calls [CALLS] [SEED]` makes 100,000 calls without failpoints and 100,000 with
them, and prints the counts.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal, TypeVar

import attrs
import trio

from actors import RetryPolicy
from actors.errors import (
    CallTimeoutError,
    DeadlineExceededError,
    NotAMemberError,
    NotExecutedError,
    OutcomeUnknownError,
)
from runtime import Node, open_node
from runtime.environment import SystemEnvironment
from runtime.testing import Faults, Platform
from tests.command_arguments import call_with_arguments
from tests.links.ledger_node import NAME, SECRET, TIMINGS, Ledger
from tests.links.proxy import ProxyNetwork, Weather, open_proxy

T = TypeVar("T")
Outcome = Literal["value", "raised", "sent", "not executed", "unknown", "cancelled"]

LARGE = 200_000
BREAKS = 20
STALLS = 10
PATIENT = RetryPolicy(max_retries=20, initial_delay=0.02, max_delay=0.2, attempt_timeout=1.0)


@attrs.frozen(kw_only=True)
class Load:
    """What is to be called. `calls`: at least so many, and more until the weather has broken
    `BREAKS` connections and stalled `STALLS`: a fast machine would be done before. `callers`: tasks
    on each node. `faults`: failpoints, then all calls may be repeated.
    """

    seed: int
    calls: int
    nodes: int = 3
    actors: int = 8
    callers: int = 64
    faults: bool = False
    weather: Weather = attrs.field(factory=Weather)


@attrs.define
class Books:
    """What callers were told, entry by entry, and what the actors have written down."""

    outcomes: dict[int, Outcome] = attrs.field(factory=dict)
    entries: Counter[int] = attrs.field(factory=Counter)
    errors: Counter[str] = attrs.field(factory=Counter)
    wrong_answers: list[int] = attrs.field(factory=list)
    lateness: float = 0.0
    """By how many seconds the latest call has overrun its timeout."""
    longest: float = 0.0
    faults: Counter[str] = attrs.field(factory=Counter)
    seconds: float = 0.0

    def mistakes(self) -> list[str]:
        """Every entry whose caller was told something else than what has happened."""
        allowed = {
            "value": {1},
            "raised": {1},
            "sent": {1},
            "not executed": {0},
            "unknown": {0, 1},
            "cancelled": {0, 1},
        }
        found = [
            f"entry {number}: {outcome}, and {self.entries[number]} runs"
            for number, outcome in self.outcomes.items()
            if self.entries[number] not in allowed[outcome]
        ]
        found += [
            f"entry {number}: nobody made this call"
            for number in self.entries
            if number not in self.outcomes
        ]
        return found + [f"entry {number}: a wrong answer" for number in self.wrong_answers]

    def summary(self) -> str:
        """For people."""
        counts = Counter(self.outcomes.values())
        rate = len(self.outcomes) / self.seconds if self.seconds else 0.0
        return (
            f"{len(self.outcomes)} calls in {self.seconds:.1f} s ({rate:.0f}/s): {dict(counts)}\n"
            f"  errors: {dict(self.errors)}\n  faults: {dict(self.faults)}\n"
            f"  longest call {self.longest:.2f} s, latest after its timeout {self.lateness:.2f} "
            f"s, mistakes {len(self.mistakes())}"
        )


def are_enough(faults: Counter[str]) -> bool:
    """Whether the weather has been as bad as these tests want it."""
    broken = faults["reset"] + faults["end"] + faults["half-close"]
    return broken >= BREAKS and faults["stall"] + faults["stall one way"] >= STALLS


class Callers:
    """The tasks that make the calls of a load, and keep the books."""

    def __init__(self, load: Load, faults: Counter[str]) -> None:
        self.books = Books()
        self._load = load
        self._faults = faults
        self._draw = random.Random(load.seed)
        self._numbers = itertools.count()
        self._padding = random.Random(0).randbytes(LARGE)

    async def run(self, handles: list[Ledger]) -> None:
        """Make calls, one after the other, each to an actor drawn, until all have been made under
        enough faults, or this node has lost its place.
        """
        is_member = True
        # Bounded: a proxy that spoils nothing must fail the test, not keep it running.
        most = 20 * self._load.calls
        while is_member:
            number = next(self._numbers)
            if number >= most or (number >= self._load.calls and are_enough(self._faults)):
                break
            began = trio.current_time()
            is_member = await self._call(self._draw.choice(handles), number)
            self.books.longest = max(self.books.longest, trio.current_time() - began)

    async def _call(self, handle: Ledger, number: int) -> bool:
        """Make one, and note its outcome; False if calls of this node are of no use
        any more.
        """
        draw, books = self._draw, self.books
        padding = self._padding[: LARGE if draw.random() < 0.01 else draw.randrange(100)]
        kind = draw.random()
        expected = (number, zlib.crc32(padding))
        timeout = 2 ** draw.uniform(-6, 2)
        began = trio.current_time()
        outcome: Outcome = "value"
        is_member = True
        try:
            if self._load.faults or kind < 0.15:
                answer = await handle.enter_again.options(retry=PATIENT, timeout=60)(
                    number, padding
                )
            elif kind < 0.60:
                answer = await handle.enter(number, padding)
            elif kind < 0.65:
                answer = await handle.enter_slowly(number, padding)
            elif kind < 0.75:
                answer = await handle.enter_beside_others(number, padding)
            elif kind < 0.85:
                try:
                    answer = await handle.enter.options(timeout=timeout)(number, padding)
                finally:
                    books.lateness = max(books.lateness, trio.current_time() - began - timeout)
            elif kind < 0.95:
                await handle.enter.send(number, padding)
                answer, outcome = expected, "sent"
            elif kind < 0.98:
                answer = await handle.refuse(number, padding)
            else:
                with trio.move_on_after(timeout) as scope:
                    answer = await handle.enter_beside_others(number, padding)
                if scope.cancelled_caught:
                    answer, outcome = expected, "cancelled"
            if answer != expected:
                books.wrong_answers.append(number)
        except KeyError:
            outcome = "raised"
        except (NotExecutedError, OutcomeUnknownError) as error:
            outcome = "not executed" if isinstance(error, NotExecutedError) else "unknown"
            books.errors[type(error).__name__] += 1
            is_member = not isinstance(error, NotAMemberError)
        books.outcomes[number] = outcome
        return is_member


@asynccontextmanager
async def _ledger_process(address: str, environment: dict[str, str]) -> AsyncIterator[None]:
    """The process that hosts the actors."""
    command = [sys.executable, "-m", "tests.links.ledger_node", address.removeprefix("tcp:")]
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, env=environment)
    assert process.stdin is not None
    try:
        yield
    finally:
        with trio.CancelScope(shield=True), trio.move_on_after(20):
            await process.stdin.aclose()
            await process.wait()
        process.kill()


async def make_calls(load: Load) -> Books:
    """Make all calls of a load under bad weather, heal, and let the actors' books be read."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("UNDERSTUDY_")
    }
    if load.faults:
        environment["UNDERSTUDY_FAULTS"] = "reply-lost=0.1"
    async with open_proxy(load.seed) as proxy, AsyncExitStack() as stack:
        callers = Callers(load, proxy.counts)
        books = callers.books
        nodes: list[Node] = []
        switches: list[Faults] = []
        for number in range(load.nodes):
            faults = Faults()
            join = nodes[0].address if nodes else None
            network = ProxyNetwork(proxy)
            node = await stack.enter_async_context(
                open_node(
                    f"caller-{number}",
                    join=join,
                    secret=SECRET,
                    platform=Platform(
                        environment=SystemEnvironment(TIMINGS), network=network, faults=faults
                    ),
                )
            )
            nodes.append(node)
            switches.append(faults)
        await stack.enter_async_context(_ledger_process(nodes[0].address, environment))
        for node in nodes:
            await node.wait_for(load.nodes + 1)
        handles = await _spawn(nodes, load)
        if load.faults:
            for faults in switches:
                for point, probability in (
                    ("request-lost", 0.01),
                    ("request-repeated", 0.01),
                    ("in-flight", 0.001),
                ):
                    faults.add(point, probability, method="enter_again")  # type: ignore[arg-type]
        began = time.perf_counter()
        proxy.rage(load.weather)
        async with trio.open_nursery() as nursery:
            for _ in range(load.callers):
                for of_node in handles:
                    nursery.start_soon(callers.run, of_node)
        books.seconds = time.perf_counter() - began
        proxy.heal()
        for faults in switches:
            books.faults.update({fault.point: fault.struck for fault in faults.active})
            faults.clear()
        await _read(handles, books)
        books.faults.update(proxy.counts)
    return books


async def _spawn(nodes: list[Node], load: Load) -> list[list[Ledger]]:
    """For each node its own handles of all actors."""
    handles: list[list[Ledger]] = [[] for _ in nodes]
    # Not all at once: the nodes share this loop, and on a busy machine the last of hundreds of
    # lookups would wait for longer than a store is given.
    few = trio.CapacityLimiter(16)

    async def spawn(name: str) -> None:
        async with few:
            handles[0].append(
                await nodes[0].options(on=NAME, name=name, mailbox_limit=1_000_000).spawn(Ledger)
            )
            for node, known in zip(nodes[1:], handles[1:], strict=True):
                known.append(await node.lookup(name, Ledger))

    async with trio.open_nursery() as nursery:
        for number in range(load.actors):
            nursery.start_soon(spawn, f"ledger-{number}")
    return handles


async def _read(handles: list[list[Ledger]], books: Books) -> None:
    """What the actors have written down, after everything that was on its way to them has
    arrived.
    """

    # Of more than a thousand at once, the last would wait for longer than a call is given.
    some = trio.CapacityLimiter(200)

    async def flush(handle: Ledger) -> None:
        # The last of what this node has to say to that actor: calls of one node to one actor start
        # in their order.
        async with some:
            await _insist(handle.flush.options(timeout=1.0))

    async def read(handle: Ledger) -> None:
        async with some:
            books.entries.update(await _insist(handle.all.options(timeout=1.0)))

    for step, chosen in ((flush, itertools.chain.from_iterable(handles)), (read, handles[0])):
        async with trio.open_nursery() as nursery:
            for handle in chosen:
                nursery.start_soon(step, handle)


async def _insist(call: Callable[[], Awaitable[T]]) -> T:
    """Call until an answer is not lost: the actors' node goes on dropping some. On a busy machine a
    connection that broke may not be there again within the call's time: it did not run then.
    """
    while True:  # noqa: ASYNC913  a call is a checkpoint
        try:
            return await call()
        except (CallTimeoutError, DeadlineExceededError):
            continue


def with_failpoints(seed: int, calls: int) -> Load:
    """A load for failpoints: many actors, because each has a budget of retries, and many callers,
    because each waits for what is lost. Fewer make a small load: an attempt must not take longer
    than its time only because all others are in the same loop.
    """
    callers = 200 if calls > 10_000 else 60
    return Load(seed=seed, calls=calls, faults=True, actors=400, callers=callers)


def main(calls: int = 100_000, seed: int = 0) -> int:
    """The soak: both kinds of load. Returns how many mistakes there were."""
    logging.basicConfig(level=logging.ERROR)
    mistakes = 0
    for load in (Load(seed=seed, calls=calls), with_failpoints(seed, calls)):
        sys.stdout.write(f"seed {seed}, {'with' if load.faults else 'without'} failpoints\n")
        books = trio.run(make_calls, load)
        sys.stdout.write(
            books.summary() + "\n" + "".join(f"  {mistake}\n" for mistake in books.mistakes()[:20])
        )
        sys.stdout.flush()
        mistakes += len(books.mistakes())
    return mistakes


if __name__ == "__main__":
    sys.exit(1 if call_with_arguments(main) else 0)
