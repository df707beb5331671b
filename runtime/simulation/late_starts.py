"""Late starts: actors that tasks start on a node which has just ended, or was asked to leave.

The nodes around it do not know that yet, or know it while they ask: a start is refused, repeated
elsewhere, or lost with its node. Actors are started one by one, many together in one message, and
as children of supervisors. Each start returns a handle of an actor that answers, or raises an error
that says what is certain; no actor exists twice, and none exists whose start was refused. Only some
seeds have late starts. They are drawn apart from everything else, so the runs of other seeds are
the same as without them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import attrs
import trio

from actors import Actor, ChildSpec, SpawnOptions, Supervisor, method
from actors.errors import (
    ActorDiedError,
    ActorNotFoundError,
    NameTakenError,
    NodeDiedError,
    NodeDrainingError,
    NotExecutedError,
    OutcomeUnknownError,
    SpawnError,
    SpawnManyError,
    UnderstudyError,
)
from actors.method import Address
from runtime.hosting.cell import ActorCell
from runtime.node import Node, internals_of
from runtime.simulation.cluster import Place
from runtime.simulation.load import Load

DELAYS = (0.0, 0.0, 0.02, 0.5, 4.0)
"""The most virtual seconds from the end of a node to starts on it, one of these."""

MOST = 2
"""How often each node starts actors when one has ended, at most."""

TOGETHER = 5
"""Actors that are started at the same time, at most."""

PATIENCE = 9.0
"""Virtual seconds after which a start is cancelled: two nodes that live and cannot reach each other
wait for each other.
"""

SLOW = (0.0, 0.0, 0.2, 4.0)
"""The most virtual seconds that the start of an actor takes, one of these."""

CALL_SECONDS = 4.0
"""Seconds that a call to an actor is given."""

STOPPED = 0.7
"""The share of the actors that are stopped again. The others are there in the calm."""

SETTLED_SECONDS = 40.0
"""Virtual seconds, in the calm, in which supervisors have started all children again, and children
whose supervisors are gone have ended.
"""

Way = Literal["alone", "named", "gathered", "gathered with names", "many", "children"]
WAYS: tuple[Way, ...] = ("alone", "named", "gathered", "gathered with names", "many", "children")

SERVICE = re.compile(r"(?<![\w-])@node\b(?!-)")
"""The service that starts actors, of which users know nothing; not a name that was generated."""

GATHERED = ("gathered", "gathered with names")
"""Ways whose actors run no code of their own when they start."""

Outcome = Literal["open", "handle", "not started", "gone", "unknown"]


class Latecomer(Actor):
    """An actor that tells the checker when it has started."""

    def __init__(self, number: int) -> None:
        self.number = number

    async def on_start(self) -> None:
        """Report the start, and take a while: its node may end meanwhile."""
        LateStarts.current().started(self.number, self.handle)
        await trio.sleep(LateStarts.current().slow_seconds())

    @method
    async def answer(self) -> int:
        """Return the number."""
        return self.number


class Gathered(Actor):
    """An actor whose start runs no code of its own, so that it travels with others."""

    @method
    async def answer(self) -> int:
        """Return nothing of interest."""
        return 0


KINDS = (Latecomer, Gathered)


@attrs.define(eq=False)
class Start:
    """One start, and how it ended. `name`: "" if the actor has none of its own. `address`: that of
    the handle. `number` is unique.
    """

    number: int
    way: Way
    on: str
    name: str
    place: Place
    """The node that asked for it."""
    outcome: Outcome = "open"
    address: Address | None = None
    error: str = ""
    is_stopped: bool = False
    """True once its stop was asked for."""

    def __str__(self) -> str:
        how = f", which ended with {self.error}" if self.error else ""
        return f"start {self.number} ({self.way}) on {self.on} by {self.place[0]}{how}"


@attrs.define(eq=False)
class LateStarts(Load):
    """What nodes have started on nodes that had just ended."""

    title = "late starts"
    check = "late starts are true"
    share = 0.05

    starts: list[Start] = attrs.field(factory=list)
    _instances: dict[int, list[Address]] = attrs.field(factory=dict)
    """By the number of the start: where its actor has started."""
    _trees: dict[str, list[Start]] = attrs.field(factory=dict)
    """The children of supervisors, by the names of those."""
    _ended: str = ""
    """The node that has ended last."""
    _changed: trio.Event = attrs.field(factory=trio.Event)
    _draw: random.Random = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._draw = random.Random(f"{self.cluster.seed} slow late starts")

    def slow_seconds(self) -> float:
        """Return how long a start takes."""
        return self._draw.choice(SLOW) * self._draw.random()

    def attach(self) -> None:
        """Learn when nodes end."""
        self.cluster.on_ended = self.on_ended

    def on_ended(self, name: str) -> None:
        """A node was killed, was asked to leave, or has left."""
        self._ended = name
        self._changed.set()
        self._changed = trio.Event()

    def started(self, number: int, handle: Any) -> None:
        """Record that the actor of a start has started."""
        found = self._instances.setdefault(number, [])
        found.append(handle.address)
        start = self.starts[number]
        if len(found) > 1 and start.way != "children":
            self._violated(start, f"its actor has started at {' and at '.join(map(str, found))}")

    async def run(self, node: Node, draw: random.Random) -> None:
        """Start actors from one node on nodes that end, until it is `over`."""
        async with trio.open_nursery() as nursery:
            while not self.over:
                await self._changed.wait()
                for _ in range(draw.randrange(MOST + 1)):
                    own = random.Random(draw.random())
                    nursery.start_soon(self._take_part, node, own, self._ended)

    def summary(self) -> str:
        """Return how many starts were made."""
        return f"{len(self.starts)} actors were to start on nodes that had just ended"

    async def _take_part(self, node: Node, draw: random.Random, on: str) -> None:
        await trio.sleep(draw.choice(DELAYS) * draw.random())
        if self.over:
            return
        way = draw.choice(WAYS)
        count = 1 if way in ("alone", "named") else draw.randrange(2, TOGETHER + 1)
        starts = self._begun(node, way, on, count)
        if way == "children":
            await self._supervise(node, draw, starts, on)
            return
        # Without those that are cancelled.
        found: dict[Start, Any] = {}
        with trio.move_on_after(PATIENCE):
            if way == "many":
                await self._start_many(node, starts, on, found)
            else:
                async with trio.open_nursery() as nursery:
                    for start in starts:
                        nursery.start_soon(self._start, node, start, on, found)
        for start, handle in found.items():
            await self._use(node, draw, start, handle)

    def _begun(self, node: Node, way: Way, on: str, count: int) -> list[Start]:
        """Enter starts that are about to be made."""
        named = way in ("named", "gathered with names", "children")
        first, place = len(self.starts), self.cluster.place(node.name, node.incarnation)
        numbers = range(first, first + count)
        starts = [Start(each, way, on, f"late-{each}" if named else "", place) for each in numbers]
        self.starts += starts
        return starts

    async def _start(self, node: Node, start: Start, on: str, found: dict[Start, Any]) -> None:
        options = node.options(name=start.name, on=on) if start.name else node.options(on=on)
        try:
            if start.way in GATHERED:
                handle: Any = await options.spawn(Gathered)
            else:
                handle = await options.spawn(Latecomer, start.number)
        except UnderstudyError as error:
            self._on_failed(start, error)
        else:
            start.outcome, start.address = "handle", handle.address
            found[start] = handle

    async def _start_many(
        self, node: Node, starts: Sequence[Start], on: str, found: dict[Start, Any]
    ) -> None:
        handles: list[Any] = []
        try:
            handles += await node.options(on=on).spawn_many(
                Latecomer, [(start.number,) for start in starts]
            )
        except SpawnManyError as failed:
            handles += failed.handles
            for number, reason in failed.errors.items():
                self._on_failed(starts[number], reason)
        except UnderstudyError as error:
            for start in starts:
                self._on_failed(start, error)
            return
        for start, handle in zip(starts, handles, strict=True):
            if handle is not None:
                start.outcome, start.address = "handle", handle.address
                found[start] = handle

    def _on_failed(self, start: Start, error: Exception) -> None:
        """Note what an error says is certain of a start."""
        start.error = f"{type(error).__name__}: {error}"
        if SERVICE.search(str(error)):
            self._violated(start, "the error is about a service of the runtime")
        if isinstance(error, NameTakenError):
            self._violated(start, "no other actor has ever had its name")
        if isinstance(error, NotExecutedError | SpawnError):
            start.outcome = "not started"
        elif isinstance(error, NodeDiedError):
            start.outcome = "gone"
        elif isinstance(error, OutcomeUnknownError):
            start.outcome = "unknown"
        else:
            self._violated(start, "the error does not say what is certain")
        begun = start.number in self._instances
        # A node that leaves ends the starts that are under way: what they have begun is gone.
        if begun and isinstance(error, NotExecutedError) and type(error) is not NodeDrainingError:
            self._violated(start, "its actor has started")

    async def _use(self, node: Node, draw: random.Random, start: Start, handle: Any) -> None:
        """Call what was started, and perhaps stop it again."""
        address = handle.address
        places = [start.place, self.cluster.place(address.node, address.incarnation)]
        try:
            answer = await handle.answer.options(timeout=CALL_SECONDS)()
            if start.way not in GATHERED and answer != start.number:
                self._violated(start, f"the actor of start {answer} answered")
        except (ActorNotFoundError, ActorDiedError) as error:
            if not self.over and all(map(self.cluster.is_well, places)):
                self._violated(start, f"the actor of its handle is not there: {error}")
        except UnderstudyError:
            # The nodes cannot reach each other, or one of them has left.
            pass
        if draw.random() < STOPPED:
            start.is_stopped = True
            with trio.move_on_after(CALL_SECONDS), suppress(UnderstudyError):
                await node.stop(handle)

    async def _supervise(
        self, node: Node, draw: random.Random, starts: Sequence[Start], on: str
    ) -> None:
        """Start a supervisor with children on a node that has ended, and perhaps stop it again."""
        name = f"late-supervisor-{starts[0].number}"
        self._trees[name] = list(starts)
        specs = [
            ChildSpec(
                id=start.name,
                actor=Latecomer,
                args=(start.number,),
                options=SpawnOptions(name=start.name, on=on),
            )
            for start in starts
        ]
        keeps = draw.random() * draw.choice((0.0, 1.0, 10.0))
        stops, here = draw.random() < STOPPED, draw.random() < 0.7
        with trio.move_on_after(PATIENCE), suppress(UnderstudyError):
            options = node.options(name=name) if here else node.options(name=name, on=on)
            supervisor = await options.spawn(Supervisor, specs)
            await trio.sleep(min(keeps, PATIENCE / 2))
            if stops:
                await node.stop(supervisor)

    async def look_for_leftovers(self) -> None:
        """Check, in the calm, that the actors of all starts are there, and no others; and that no
        child is left when the supervisors are stopped.
        """
        await self._settle()
        node = await self.cluster.node(self.cluster.founder)
        running = self._running()
        for name in filter(running.__contains__, self._trees):
            with trio.move_on_after(SETTLED_SECONDS), suppress(UnderstudyError):
                await node.stop(await node.lookup(name))
        await self._settle()

    async def _settle(self) -> None:
        with trio.move_on_after(SETTLED_SECONDS):
            while any(self._unsettled()):  # noqa: ASYNC110  asked as any outsider would
                await trio.sleep(0.5)
        for text in self._unsettled():
            self.violated("", text)

    def _running(self) -> dict[str, list[ActorCell]]:
        """The actors of all live nodes that were started here, by name."""
        found: dict[str, list[ActorCell]] = {}
        for host in map(self.cluster.live, self.cluster.machines):
            for cell in internals_of(host).cells.values() if host is not None else ():
                if isinstance(cell.instance, KINDS) or cell.address.name.startswith("late-"):
                    found.setdefault(cell.address.name, []).append(cell)
        return found

    def _unsettled(self) -> Iterator[str]:
        """What is not yet, or never will be, as it must be in the calm."""
        running = self._running()
        by_address = {_key(cell.address): cell for cells in running.values() for cell in cells}
        for name, cells in running.items():
            if len(cells) > 1 and name.startswith("late-"):
                yield f"in the calm {name} runs {len(cells)} times"
        for name, children in self._trees.items():
            for child in children:
                if (name in running) != (child.name in running):
                    there = "runs" if child.name in running else "does not run"
                    has = "has" if name in running else "has not"
                    yield f"in the calm {child.name} {there}, and {has} its supervisor {name}"
        excused, unknown = set[tuple[str, int, str, int]](), 0
        for start in self.starts:
            if start.way == "children":
                continue
            unknown += start.outcome in ("open", "unknown")
            if start.address is not None:
                excused.add(_key(start.address))
                yield from self._missing(start, by_address)
            elif start.outcome in ("not started", "gone"):
                yield from self._left_over(start, running)
        supervised = {child.name for tree in self._trees.values() for child in tree}
        strangers = [
            key
            for key, cell in by_address.items()
            if key not in excused and isinstance(cell.instance, KINDS) and key[2] not in supervised
        ]
        if len(strangers) > unknown:
            yield f"in the calm these run, and {unknown} starts are without outcome: {strangers}"

    def _missing(self, start: Start, running: Container[object]) -> Iterator[str]:
        address = start.address
        assert address is not None
        if (
            not start.is_stopped
            and self.cluster.is_well((address.node, address.incarnation, start.place[2]))
            and _key(address) not in running
        ):
            yield f"{start}: in the calm the actor of its handle is not at {address}"

    def _left_over(self, start: Start, running: Mapping[str, list[ActorCell]]) -> Iterator[str]:
        for cells in running.values():
            for cell in cells:
                number = getattr(cell.instance, "number", None)
                if number == start.number or cell.address.name == start.name:
                    yield f"{start}: in the calm its actor is at {cell.address}"

    def _violated(self, start: Start, text: str) -> None:
        self.violated(start.place[0], f"{start}: {text}")


def _key(address: Address) -> tuple[str, int, str, int]:
    return address.node, address.incarnation, address.name, address.epoch
