"""Refused calls: clients with roles, and nodes, that call what they may not, in every way in which
a call can travel, while nodes die and connections break.

What an actor's methods and its node's `authorize` do not allow never runs, and is refused to a
caller that is answered; what they allow is not refused. Only some seeds have refused calls. They
are drawn apart from everything else, so the runs of other seeds are the same as without them.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import attrs
import trio

from actors import Actor, RetryPolicy, method
from actors.errors import NotAllowedError, UnderstudyError
from actors.filters import Call
from actors.method import BoundMethod, MethodDefinition
from actors.options import CallOptions
from actors.peers import PeerRole, may_call
from runtime.isolation import WithoutProcesses
from runtime.node import Node, internals_of
from runtime.node.opening import Platform, open_node
from runtime.simulation.cluster import PORT, SECRET
from runtime.simulation.load import Load

ACTORS = 2
"""Names that all callers choose from."""

ROLES: tuple[PeerRole, ...] = ("client", "observer")

PAUSE = 1.5
"""Mean seconds between the calls of a caller."""

SESSION = 8
"""Calls that a client makes before it leaves, at most."""

SECONDS = 3.0
"""Seconds that a call is given."""

JOIN_SECONDS = 10.0
"""Seconds that a client is given to join."""

ALLOWED, FORBIDDEN = "allowed", "forbidden"
"""The second argument of a call, of which `authorize` refuses the latter."""

AGAIN = RetryPolicy(max_retries=5, initial_delay=0.05, attempt_timeout=0.3, repeat_unknown=True)

METHODS = ("open", "open_in_thread", "look", "melt", "scan")
WAYS = ("awaited", "awaited", "again", "send", "remote", "items", "items by name")


class Strongbox(Actor):
    """An actor that reports each run of its methods to the checker."""

    @method
    async def open(self, call: int, word: str) -> int:
        """For those who may call methods in general."""
        return RefusedCalls.current().ran(call)

    @method
    def open_in_thread(self, call: int, word: str) -> int:
        """Likewise."""
        return RefusedCalls.current().ran(call)

    @method(allow=("observer",), idempotent=True)
    async def look(self, call: int, word: str) -> int:
        """For observers."""
        return RefusedCalls.current().ran(call)

    @method(allow=(), concurrent=True)
    async def melt(self, call: int, word: str) -> int:
        """For nodes."""
        return RefusedCalls.current().ran(call)

    @method(allow=("operator",))
    async def scan(self, call: int, word: str) -> AsyncIterator[int]:
        """For operators."""
        yield RefusedCalls.current().ran(call)


async def _items(instance: Actor, *args: object, **kwargs: object) -> None:
    """Any arguments pass: what the node says to them is looked at."""


ITEMS = MethodDefinition(name="@items", function=_items)
"""How pools call methods of actors."""


class Unlisted(Actor):
    """A class that no node lists as spawnable."""

    def __init__(self, call: int) -> None:
        RefusedCalls.current().ran(call)


def authorize(call: Call) -> bool:
    """The rule of every node."""
    return FORBIDDEN not in call.args and FORBIDDEN not in call.kwargs.values()


@attrs.define(eq=False)
class RefusedCalls(Load):
    """What was called without a right to it, and what ran."""

    title = "refused calls"
    check = "refused is not executed"
    share = 0.05

    refused: int = 0
    allowed: int = 0
    """Calls that ran."""
    _forbidden: dict[int, str] = attrs.field(factory=dict)
    """Calls that must not run, by their numbers."""
    _numbers: int = 0

    def ran(self, call: int) -> int:
        """Record a run."""
        self.allowed += 1
        if call in self._forbidden:
            self.violated("", f"{self._forbidden[call]} ran")
        return call

    async def run(self, node: Node, draw: random.Random) -> None:
        """Call from one node, and from clients in its process, until it is `over`."""
        generation = self.generation
        async with trio.open_nursery() as nursery:
            for role in ROLES:
                own = random.Random(draw.random())
                nursery.start_soon(self._join, node, role, own, generation)
            while not self.over:
                await trio.sleep(draw.expovariate(1 / PAUSE))
                with trio.move_on_after(SECONDS), suppress(UnderstudyError):
                    members = [one.name for one in node.members() if one.state == "up"]
                    name, on = _name(draw, generation), draw.choice([None, *members])
                    box = await node.options(name=name, on=on).get_or_spawn(Strongbox)
                    await self._call(node, "node", box, draw)

    def attach(self) -> None:
        """Let every node refuse what is forbidden."""
        self.cluster.authorize = authorize

    def summary(self) -> str:
        """Return how many calls were refused, and how many ran."""
        return f"{self.refused} calls were refused, {self.allowed} ran"

    async def _join(self, node: Node, role: PeerRole, draw: random.Random, generation: int) -> None:
        """Join as a client again and again, by any node."""
        process = self.cluster.machines[node.name].process
        assert process is not None
        platform = Platform(
            environment=process.environment, network=process.network, isolation=WithoutProcesses
        )
        while not self.over:
            await trio.sleep(draw.expovariate(1 / PAUSE))
            address = f"{draw.choice(list(self.cluster.machines))}:{PORT}"
            scope = trio.CancelScope(deadline=trio.current_time() + JOIN_SECONDS)
            with scope, suppress(UnderstudyError, OSError):
                async with open_node(
                    join=address, cluster="simulated", secret=SECRET, role=role, platform=platform
                ) as client:
                    scope.deadline = float("inf")
                    for _ in range(draw.randrange(SESSION) + 1):
                        if self.over:
                            break
                        await trio.sleep(draw.expovariate(1 / PAUSE))
                        await self._call_as_client(client, role, draw, generation)

    async def _call_as_client(
        self, client: Node, role: PeerRole, draw: random.Random, generation: int
    ) -> None:
        with trio.move_on_after(SECONDS), suppress(UnderstudyError):
            if draw.random() < 0.1:
                await self._spawn(client, role, draw)
                return
            box = await client.lookup(_name(draw, generation), Strongbox)
            await self._call(client, role, box, draw)

    async def _spawn(self, client: Node, role: PeerRole, draw: random.Random) -> None:
        what = f"a start of a class that is not listed, by the role {role!r}"
        call = self._next(what)
        on = draw.choice([None, *self.cluster.machines])
        await self._refused(what, "start", lambda: client.options(on=on).spawn(Unlisted, call))

    async def _call(self, node: Node, role: PeerRole, box: Any, draw: random.Random) -> None:
        called, way = draw.choice(METHODS), draw.choice(WAYS)
        word = draw.choice((ALLOWED, ALLOWED, FORBIDDEN))
        what = f"{called} ({way}, {word}) by the role {role!r}"
        if way == "remote" and role == "observer":
            # It may not fetch what it may call.
            way = "awaited"
        may_run = (
            word != FORBIDDEN
            and way != "items by name"
            and may_call(role, Strongbox.__methods__[called].allow)
        )
        call = self._next("" if may_run else what)
        ask = _asking(node, box, called, way, call, word)
        if not may_run:
            await self._refused(what, way, ask)
            return
        try:
            await ask()
        except NotAllowedError as error:
            self.violated("", f"{what} was refused: {error}")

    async def _refused(self, what: str, way: str, ask: Callable[[], Awaitable[object]]) -> None:
        """Make a call that must not run."""
        try:
            answer = await ask()
        except NotAllowedError:
            self.refused += 1
        else:
            if way != "send":
                self.violated("", f"{what} was answered {answer!r}")

    def _next(self, what: str) -> int:
        """Return the number of a call. `what`: of one that must not run."""
        self._numbers += 1
        if what:
            self._forbidden[self._numbers] = what
        return self._numbers


def _name(draw: random.Random, generation: int) -> str:
    return f"strongbox-{generation}-{draw.randrange(ACTORS)}"


def _asking(
    node: Node, box: Any, called: str, way: str, call: int, word: str
) -> Callable[[], Awaitable[object]]:
    """Return what makes the call."""
    if way.startswith("items"):
        items: Any = BoundMethod[..., Any](
            internals_of(node).endpoint.caller, box.address, ITEMS, CallOptions(timeout=SECONDS)
        )
        key, rows = f"batch {call}", [[call, word]]
        if way == "items":
            return lambda: items(called, key, rows)
        return lambda: items(method=called, batch=key, rows=rows)
    bound = getattr(box, called)
    if called == "scan":
        return lambda: _read(bound(call, word))
    if way == "send":
        return lambda: bound.send(call, word)
    timed = bound.options(timeout=SECONDS)
    if way == "remote":
        return lambda: _fetch(timed.remote(call, word))
    if way == "again":
        return lambda: timed.options(retry=AGAIN)(call, word)
    return lambda: timed(call, word)


async def _read(stream: AsyncIterator[object]) -> object:
    return [item async for item in stream]


async def _fetch(reference: Awaitable[Any]) -> object:
    return await (await reference).fetch()
