"""Deep calls: methods that call methods that call methods, over several nodes and back into actors
that wait, with cancellations, deadlines and repeats anywhere on the way.

Each of these calls has one outcome, which is true of what ran; what a caller has given up ends; and
the turns of all actors are free in the end. Each node has a group of actors of its own, to which it
makes one chain of calls at a time. So without faults it is known how a chain must end. Only some
seeds have deep calls. They are drawn apart from everything else, so the runs of other seeds are the
same as without them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import attrs
import trio

from actors import Actor, message, method
from actors.errors import (
    CallCycleError,
    CallError,
    CallTimeoutError,
    NotExecutedError,
    RemoteError,
    UnderstudyError,
)
from actors.retry import RetryPolicy
from runtime.node import Node
from runtime.simulation.load import Load
from runtime.simulation.name_races import cancelled_after

RELAYS = 3
"""Actors of one node's group. They are on any nodes."""

PAUSE = 1.5
"""Mean seconds between two chains of a node."""

DEPTHS = (3, 8)
"""The least and the most calls in a chain."""

DEEPEST = 120
"""Calls in some of the chains, which stay within one node: Python's stack must not limit them."""

VERY_DEEP = 0.03
"""The share of these."""

LIMITED = 0.25
"""The share of the calls that have a limit of their own, besides the first one of a chain."""

SECONDS = (0.05, 0.3, 4.0)
"""The first call of a chain has so many virtual seconds, one of these."""

WORK = (0.0, 0.0, 0.01, 0.2)
"""Virtual seconds that a method takes before it calls the next one, at most, one of these."""

STEPS = (5, 30, 100)
"""A cancellation comes within so many steps of tasks, one of these."""

LATE = 0.3
"""Virtual seconds by which a call may exceed its limit; and after which, without faults, a method
must have ended whose caller has given it up.
"""

AGAIN = RetryPolicy(max_retries=50, initial_delay=0.02, attempt_timeout=0.3, budget=None)
"""The retry policy of calls that may be repeated: they are, before they can have been answered."""

CYCLE = "cycle"
"""How a chain ends that comes back to an actor which lets no others in."""

PING_SECONDS = 10.0
"""Virtual seconds in which each actor answers in the calm."""

Way = Literal["in_turn", "reentrant", "beside", "again"]
WAYS: tuple[Way, ...] = ("in_turn", "reentrant", "reentrant", "beside", "again")
TURNS = ("in_turn", "reentrant")
"""Ways that take the turn of their actor."""

Limit = Literal["none", "timeout", "scope", "steps"]


@message
@attrs.frozen
class Hop:
    """One call of a chain: the number of its actor in the group, how it is called, and its limit.
    `amount`: seconds, or steps of tasks. `work`: seconds before the call is made. `raises`: raise
    its error instead of returning what it was. `times`: how often the call is made, each within the
    one before.
    """

    number: int
    way: str
    limit: str
    amount: float
    work: float
    raises: bool
    times: int = 1


class Relay(Actor):
    """Passes a call on to the next actor of its chain."""

    @method
    async def in_turn(self, call: int, hops: list[Hop], relays: list[Any]) -> list[int | str]:
        """Keep others out meanwhile."""
        return await self._pass_on(call, hops, relays)

    @method(reentrant=True)
    async def reentrant(self, call: int, hops: list[Hop], relays: list[Any]) -> list[int | str]:
        """Let calls of the own chain in meanwhile."""
        return await self._pass_on(call, hops, relays)

    @method(concurrent=True)
    async def beside(self, call: int, hops: list[Hop], relays: list[Any]) -> list[int | str]:
        """Let all others in meanwhile."""
        return await self._pass_on(call, hops, relays)

    @method(concurrent=True, idempotent=True)
    async def again(self, call: int, hops: list[Hop], relays: list[Any]) -> list[int | str]:
        """Likewise, for callers that repeat the call."""
        return await self._pass_on(
            call, hops, relays, f" on {self.node.name}.{self.node.incarnation}"
        )

    @method
    async def ping(self) -> None:
        """Show that the turn is free."""

    async def _pass_on(
        self, call: int, hops: list[Hop], relays: list[Any], place: str = ""
    ) -> list[int | str]:
        deep = DeepCalls.current()
        with deep.running(call, place):
            if not hops:
                return [call]
            await trio.sleep(hops[0].work)
            return [call, *await deep.call(self.node.name, hops, relays)]


@attrs.define(eq=False)
class DeepCalls(Load):
    """The chains of all nodes, and how their calls ended."""

    title = "deep calls"
    check = "each call of a chain has an outcome"
    share = 0.05

    outcomes: Counter[str] = attrs.field(factory=Counter)
    """How often a call ended in each way."""
    _numbers: int = 0
    _runs: Counter[str] = attrs.field(factory=Counter)
    """By call, with its place if it may be repeated: how often it ran."""
    _ran: set[int] = attrs.field(factory=set)
    _denied: set[int] = attrs.field(factory=set)
    """Calls that were reported as not executed."""
    _given_up: dict[int, float] = attrs.field(factory=dict)
    """When callers gave up their calls."""
    _groups: dict[Node, list[Any]] = attrs.field(factory=dict)

    @contextmanager
    def running(self, call: int, place: str) -> Iterator[None]:
        """Record a run, from its begin to its end."""
        key = f"{call}{place}"
        self._runs[key] += 1
        self._ran.add(call)
        if self._runs[key] > 1:
            self.violated("", f"call {key} ran {self._runs[key]} times")
        if call in self._denied:
            self.violated("", f"call {key} ran after it was reported as not executed")
        try:
            yield
        finally:
            late = self.cluster.now() - self._given_up.get(call, self.cluster.now())
            if self.oracle.fair and late > LATE:
                self.violated("", f"call {key} ran for {late:.1f} s after its caller gave it up")

    async def run(self, node: Node, draw: random.Random) -> None:
        """Make chains of calls from one node, one after the other, until it is `over`."""
        self._groups[node] = []
        while True:
            await trio.sleep(draw.expovariate(1 / PAUSE) + LATE)
            if self.over:
                return
            with trio.move_on_after(5.0):
                await self._complete(node, draw)
            relays = self._groups[node]
            if len(relays) < RELAYS or self.over:
                continue
            is_plain = draw.random() < 0.5
            hops = _very_deep(draw) if draw.random() < VERY_DEEP else _drawn(draw, is_plain)
            try:
                result = await self.call(node.name, hops, relays)
            except UnderstudyError:
                continue
            if self.oracle.fair and is_plain and hops[0].amount == SECONDS[-1]:
                self._compare(node, hops, result)

    def summary(self) -> str:
        """Return how many calls were made, and how many returned."""
        return f"{self.outcomes.total()} calls within calls, {self.outcomes['ok']} returned"

    async def _complete(self, node: Node, draw: random.Random) -> None:
        """Start those actors of the group of a node that are not there. The first is on the node
        itself.
        """
        relays = self._groups[node]
        for number in range(RELAYS):
            if number < len(relays) and self._lives(relays[number]):
                continue
            members = [one.name for one in node.members() if one.state == "up"]
            on = draw.choice(members) if members and number else node.name
            try:
                relay = await node.options(on=on).spawn(Relay)
            except UnderstudyError:
                return
            relays[number : number + 1] = [relay]

    def _lives(self, relay: Any) -> bool:
        address = relay.address
        there = self.cluster.live(address.node)
        return there is not None and there.incarnation == address.incarnation

    async def call(self, node: str, hops: list[Hop], relays: list[Any]) -> list[int | str]:
        """Make the first of these calls, from `node`. Returns the numbers of all calls of the
        chain, and how the last of them failed if it did.
        """
        self._numbers += 1
        call, hop, began = self._numbers, hops[0], self.cluster.now()
        process = self.cluster.machines[node].process
        bound: Any = getattr(relays[hop.number], hop.way)
        if hop.limit == "timeout":
            bound = bound.options(timeout=hop.amount)
        if hop.way == "again":
            bound = bound.options(retry=AGAIN)
        rest = hops[1:] if hop.times == 1 else [attrs.evolve(hop, times=hop.times - 1), *hops[1:]]
        result: list[int | str] = []
        try:
            with _limited(hop) as scope:
                result = await bound(call, rest, relays)
            if scope.cancelled_caught:
                self._on_given_up(call)
                result = ["given up"]
            elif not result or result[0] != call:
                self.violated(node, f"call {call} was answered {result}")
        except UnderstudyError as error:
            self._on_failed(node, call, error)
            if hop.raises:
                raise
            result = [CYCLE if isinstance(error, CallCycleError) else type(error).__name__]
        except trio.Cancelled:
            self._on_given_up(call)
            raise
        self.outcomes[str(result[0]) if isinstance(result[0], str) else "ok"] += 1
        if self.cluster.machines[node].process is process:
            took = self.cluster.now() - began - self.cluster.stopped(node, began)
            if hop.limit in ("timeout", "scope") and took > hop.amount + LATE:
                self.violated(node, f"call {call} ended after {took:.1f} s of {hop.amount:g} s")
        return result

    def _on_given_up(self, call: int) -> None:
        self._given_up[call] = self.cluster.now()

    def _on_failed(self, node: str, call: int, error: UnderstudyError) -> None:
        """Check that an error is true of what ran."""
        if not isinstance(error, CallError):
            self.violated(node, f"call {call} ended with {type(error).__name__}: {error}")
        if isinstance(error, NotExecutedError):
            self._denied.add(call)
            if call in self._ran:
                self.violated(node, f"call {call} ran, and its caller got {error!r}")
        if isinstance(error, RemoteError) and call not in self._ran:
            self.violated(node, f"call {call} did not run, and its caller got {error!r}")
        if isinstance(error, CallTimeoutError):
            self._on_given_up(call)

    def _compare(self, node: Node, hops: list[Hop], result: list[int | str]) -> None:
        """Check the result of a chain without limits, in a run without faults: all calls were made,
        or the first that comes back to an actor which lets no others in was refused.
        """
        expected = _expected(hops)
        if expected is None:
            return
        calls, end = expected
        words = [one for one in result if isinstance(one, str)]
        if len(result) - len(words) != calls or words != end:
            self.violated(
                node.name,
                f"the chain {[(hop.number, hop.way) for hop in hops]} ended with {result}, and not "
                f"after {calls} calls with {end}",
            )

    async def look_for_leftovers(self) -> None:
        """Check, in the calm, that the turns of all actors are free."""
        for node, relays in self._groups.items():
            for relay in relays:
                if self.cluster.live(node.name) is not node or not self._lives(relay):
                    continue
                try:
                    await relay.ping.options(timeout=PING_SECONDS)()
                except CallTimeoutError as error:
                    self.violated(node.name, f"in the calm {relay.name} does not answer: {error}")
                except UnderstudyError:
                    continue


@contextmanager
def _limited(hop: Hop) -> Iterator[trio.CancelScope]:
    if hop.limit == "steps":
        with cancelled_after(int(hop.amount)) as scope:
            yield scope
    else:
        with trio.move_on_after(hop.amount if hop.limit == "scope" else float("inf")) as scope:
            yield scope


def _drawn(draw: random.Random, is_plain: bool) -> list[Hop]:
    """Draw a chain. A plain one has a limit at its first call only."""
    hops = []
    for place in range(draw.randint(*DEPTHS)):
        limit: Limit = "none"
        amount = draw.choice(SECONDS)
        if place == 0:
            limit = draw.choice(("timeout", "scope"))
        elif not is_plain and draw.random() < LIMITED:
            limit = draw.choice(("timeout", "scope", "steps"))
        if limit == "steps":
            amount = float(draw.randrange(draw.choice(STEPS)) + 1)
        raises = draw.random() < 0.3 and not is_plain
        work = draw.choice(WORK) * draw.random()
        hops.append(Hop(draw.randrange(RELAYS), draw.choice(WAYS), limit, amount, work, raises))
    return hops


def _very_deep(draw: random.Random) -> list[Hop]:
    """A chain within one node whose last method takes longer than the first call has."""
    first = Hop(0, "beside", "scope", SECONDS[1], 0.0, False)
    others = Hop(0, "beside", "none", 0.0, 0.0, False, DEEPEST)
    last = Hop(0, "beside", "none", 0.0, 2 * SECONDS[1], False)
    return [first, others, last]


def _expected(hops: list[Hop]) -> tuple[int, list[str]] | None:
    """How many calls of a chain run, and how it ends; None if that is not known: where an actor has
    several of its methods in the chain, calls may run beside some of them.
    """
    holders: dict[int, list[str]] = {}
    for place, hop in enumerate(hops):
        if hop.way not in TURNS:
            continue
        before = holders.setdefault(hop.number, [])
        if len(before) > 1:
            return None
        if before == ["in_turn"]:
            return place, [CYCLE]
        before.append(hop.way)
    return len(hops), []
